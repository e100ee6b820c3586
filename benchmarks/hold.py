"""`make bench-hold`: answers that the engine always holds to their form, beside answers whose first try is free."""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import typer
import yaml
from transformers import AutoTokenizer

from benchmarks.engine.__main__ import embedded
from benchmarks.engine.contender import START_SECONDS, WORK_SECONDS, process
from benchmarks.engine.fleet import run_job
from benchmarks.report import Line, Median, keep, show, spread
from nightshift.common.settings import child_environment, load_settings

REVIEWS = Path(__file__).parents[1] / "examples" / "reviews"

LABELS = ["positive", "neutral", "negative"]

FORMS: dict[str, dict[str, Any]] = {
    "a label": {"choice": LABELS},
    "JSON": {
        "json_schema": {
            "type": "object",
            "properties": {"sentiment": {"enum": LABELS}},
            "required": ["sentiment"],
            "additionalProperties": False,
        }
    },
}
"""The model of the examples was trained to write labels, and never wrote JSON."""

MESSAGES = [
    {"role": "system", "content": "Name the sentiment of the review."},
    {"role": "user", "content": "{{ text }}"},
]

ARGS = {
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 64,
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    rows: Annotated[int, typer.Option(min=100)] = 4_000,
) -> None:
    """Measure both ways over reviews, in turn; then judge the answers of the last round."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    again: dict[tuple[str, str], float] = {}
    jobs: dict[tuple[str, str], int] = {}
    with tempfile.TemporaryDirectory(prefix="bench-hold-") as name:
        home = Path(name)
        data = home / "reviews.parquet"
        argv = [sys.executable, str(REVIEWS / "make_reviews.py"), "--split", "test"]
        subprocess.run([*argv, "--rows", str(rows), "--out", str(data)], check=True)
        prompts = _prompts(data)
        with embedded(home / "home") as (database_url, broker_url):
            servers = {"database_url": database_url, "broker_url": broker_url}
            reaper = [sys.executable, "-m", "nightshift.producer.cli", "reaper"]
            worker = [sys.executable, "-m", "nightshift.worker.cli"]
            with process(reaper, home / "reaper.log", **servers):
                log = home / "worker.log"
                with process(worker, log, **servers) as group:
                    warm = _spec(data, home / "warm", {"choice": LABELS}, limit=128)
                    run_job(warm, servers, group, log, START_SECONDS)
                    for number in range(rounds):
                        turns = [(form, hold) for form in FORMS for hold in ("always", "on_retry")]
                        for form, hold in turns[:: 1 if number % 2 == 0 else -1]:
                            out = home / f"{len(jobs)}-{number}-{hold}"
                            spec = _spec(data, out, {**FORMS[form], "hold": hold})
                            job, span = run_job(spec, servers, group, log, WORK_SECONDS)
                            seconds[form, hold].append(span)
                            again[form, hold] = _share_asked_again(out, prompts)
                            jobs[form, hold] = job
                scores = _scores(jobs, home, servers)
    lines = [_line(form, rows, seconds, again, scores) for form in FORMS]
    (keep if rounds >= 3 else show)("hold", lines)


def _spec(
    data: Path, output: Path, form: dict[str, Any], limit: int | None = None
) -> dict[str, Any]:
    return {
        "name": "bench-hold",
        "input": {"uri": str(data), "id": "review_id", "limit": limit},
        "task": {
            "kind": "generate",
            "messages": MESSAGES,
            "sampling": {"temperature": 0, "max_tokens": 40},
            "output": form,
            "dedupe": False,
        },
        "engine": {"backend": "vllm", "model": str(REVIEWS / "model"), "args": ARGS},
        "output": {"uri": str(output), "columns": ["label"]},
        "batch": {"rows": 64},
    }


def _prompts(data: Path) -> list[int]:
    """The tokens of each row's prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(str(REVIEWS / "model"))
    texts = pq.read_table(data).column("text").to_pylist()
    chats = [[MESSAGES[0], {"role": "user", "content": text}] for text in texts]
    prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return [len(ids) for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"]]


def _share_asked_again(out: Path, prompts: list[int]) -> float:
    """The share of rows whose prompt was sent more than once."""
    found = ds.dataset(out, format="parquet", exclude_invalid_files=True).to_table()
    assert found.column("error").null_count == len(found), "rows failed"
    spent = found.sort_by("row_index").column("prompt_tokens").to_pylist()
    again = sum(one > other for one, other in zip(spent, prompts, strict=True))
    return float(again / len(prompts))


def _scores(
    jobs: dict[tuple[str, str], int], home: Path, servers: dict[str, str]
) -> dict[tuple[str, str], str]:
    """What `nightshift judge` says of each job."""
    settings = {**servers, "allowed_modules": "right", "callable_paths": str(Path(__file__).parent)}
    worker = [sys.executable, "-m", "nightshift.worker.cli"]
    found = {}
    with process(worker, home / "judge.log", **settings):
        for number, (key, job) in enumerate(jobs.items()):
            file = home / f"judge-{number}.yaml"
            spec = {
                "name": f"judge-{number}",
                "task": {"kind": "function"},
                "engine": {"backend": "function", "callable": "right:check"},
                "output": {"uri": str(home / f"judged-{number}"), "schema": {"score": "double"}},
            }
            file.write_text(yaml.safe_dump(spec))
            argv = [sys.executable, "-m", "nightshift.producer.cli", "judge", str(job)]
            told = subprocess.run(
                [*argv, "--spec", str(file), "--json"],
                env=child_environment(load_settings(**settings)),
                check=True,
                timeout=WORK_SECONDS,
                capture_output=True,
                text=True,
            )
            score = json.loads(told.stdout)
            found[key] = f"{score['mean']:.4f} ± {score['standard_error']:.4f}"
    return found


def _line(
    form: str,
    rows: int,
    seconds: dict[tuple[str, str], list[float]],
    again: dict[tuple[str, str], float],
    scores: dict[tuple[str, str], str],
) -> Line:
    always, free = seconds[form, "always"], seconds[form, "on_retry"]
    ratio = Median.of([one / other for one, other in zip(always, free, strict=True)])
    rates = [rows / each for each in free]
    share = again[form, "on_retry"]
    return Line(
        section="hold",
        contender=f"{form}, hold: on_retry over always ({share:.1%} asked again; right {scores[form, 'on_retry']}, "
        f"always {scores[form, 'always']})",
        rate=f"{Median.of(rates).value:.0f} rows/s, always {rows / Median.of(always).value:.0f}",
        ratio=str(ratio),
        rounds=ratio.rounds,
        spread=spread(rates),
    )


if __name__ == "__main__":
    typer.run(main)
