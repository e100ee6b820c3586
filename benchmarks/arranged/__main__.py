"""`make bench-arranged`: rows that have something in common, through raw vLLM and through the fleet."""

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import typer
from rich.console import Console

from benchmarks.arranged.datasets import DATASETS, EXAMPLE, SPARE_TOKENS, TOKEN_BYTES, Dataset
from benchmarks.engine import model
from benchmarks.engine.__main__ import embedded
from benchmarks.engine.contender import ENVIRONMENT, START_SECONDS, WORK_SECONDS, process
from benchmarks.engine.fleet import run_job
from benchmarks.report import Line, Median, keep, show, spread
from nightshift.common.settings import child_environment, load_settings
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.arrange.arrange import arranged_plan
from nightshift.producer.submit.planning import planner

MAX_TOKENS = 8
"""Tokens of each free answer."""

REVIEW_TOKENS = 512
"""Tokens that the model of the examples takes."""

LABEL_TOKENS = 64
"""Most tokens of a label: none is cut."""

ARGS: dict[str, Any] = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "max_model_len": 2048,
    "enforce_eager": True,
    "enable_prefix_caching": True,
}

FLEETS = {"fleet": "in dataset order", "arranged": "arranged"}
"""The fleets that are held against raw vLLM in dataset order."""

ORDERS = {"fleet": "none", "arranged": "prefix"}

console = Console(highlight=False)

Found = dict[str, Any]
"""What one contender has found: seconds, texts in dataset order, share of the prompt tokens in cache."""


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="Datasets, by name, with commas between.")] = "",
) -> None:
    """Measure raw vLLM, the fleet and the arranged fleet over each dataset, in turn."""
    chosen = [each for each in DATASETS if not only or each.name in only.split(",")]
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    said: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-arranged-") as name:
        home = Path(name)
        made = str(model.make(home / "model"))
        with embedded(home / "home") as (database_url, broker_url):
            servers = {"database_url": database_url, "broker_url": broker_url}
            for number in range(rounds):
                for dataset in chosen:
                    place = home / f"{dataset.name}-{number}"
                    place.mkdir()
                    rows = place / "rows.parquet"
                    made_rows = dataset.make(np.random.default_rng(number))
                    pq.write_table(pa.Table.from_pylist(made_rows), rows)
                    args = ARGS | {
                        "kv_cache_memory_bytes": TOKEN_BYTES * (dataset.cache_tokens + SPARE_TOKENS)
                    }
                    of = str(EXAMPLE / "model") if dataset.reviews else made
                    args |= {"max_model_len": REVIEW_TOKENS} if dataset.reviews else {}
                    fleet = partial(_fleet, of, rows, place, args, dataset.labels, servers)
                    turns: list[tuple[str, Callable[[], Found]]] = [
                        ("raw", partial(_raw, of, rows, place, args, dataset.labels)),
                        *((who, partial(fleet, ORDERS[who])) for who in dataset.fleets),
                    ]
                    # None of them always follows the other.
                    found = {who: turn() for who, turn in turns[:: 1 if number % 2 == 0 else -1]}
                    said[dataset.name] = _note(dataset, made_rows, found, rates, ratios)
    lines = [
        _line(each, rates, ratios, who, said[each.name]) for each in chosen for who in each.fleets
    ]
    (show if only else keep)("arranged", lines)


def _raw(
    made: str, rows: Path, place: Path, args: dict[str, Any], labels: Sequence[str] = ()
) -> Found:
    out = place / "raw.json"
    plan = {
        "model": made,
        "rows": str(rows),
        "args": args,
        "max_tokens": LABEL_TOKENS if labels else MAX_TOKENS,
        "labels": labels,
        "out": str(out),
    }
    argv = [sys.executable, "-m", "benchmarks.arranged.raw", json.dumps(plan)]
    environment = child_environment(load_settings(), **ENVIRONMENT)
    with (place / "raw.log").open("wb") as log:
        subprocess.run(
            argv,
            env=environment,
            check=True,
            stdout=log,
            stderr=log,
            timeout=START_SECONDS + WORK_SECONDS,
        )
    found: Found = json.loads(out.read_text())
    return found


def _fleet(
    made: str,
    rows: Path,
    place: Path,
    args: dict[str, Any],
    labels: Sequence[str],
    servers: dict[str, str],
    order: str,
) -> Found:
    """A warm worker; from the first claim to the last commit, by the ledger's own clock, and the time
    of the pass that arranges the rows.
    """
    place = place / order
    place.mkdir()
    reaper = [sys.executable, "-m", "nightshift.producer.cli", "reaper"]
    worker = [sys.executable, "-m", "nightshift.worker.cli"]
    warm = place / "warm.parquet"
    pq.write_table(
        pa.table({"shared": [""] * 64, "own": [f"warm {at} up" for at in range(64)]}), warm
    )
    with (
        process(reaper, place / "reaper.log", **servers),
        process(worker, place / "worker.log", **servers) as group,
    ):
        log = place / "worker.log"
        warming = _spec(made, warm, place / "warm", args, labels, "none")
        _job(warming, servers, group, log, START_SECONDS)
        spec = _spec(made, rows, place / "out", args, labels, order)
        seconds, cached = _job(spec, servers, group, log, WORK_SECONDS)
    passed = pass_seconds({**spec, "output": {"uri": str(place / "again")}})
    found = ds.dataset(place / "out", format="parquet", exclude_invalid_files=True).to_table(
        columns=["row_index", "output", "error"]
    )
    assert found.column("error").null_count == len(found), "rows failed"
    texts = found.sort_by("row_index").column("output").to_pylist()
    return {"seconds": seconds + passed, "texts": texts, "cached": cached, "pass": passed}


def pass_seconds(data: dict[str, Any]) -> float:
    """How long the rows of a job take to be arranged, into another directory."""
    spec = parse_spec(data, "the benchmark")
    plan = planner.plan(spec.input, spec.batch.rows, columns=spec.read_columns)
    began = time.monotonic()
    arranged_plan(spec, plan, output_uri=spec.output.uri, cache_tokens=None)
    return time.monotonic() - began


def _spec(
    made: str, rows: Path, output: Path, args: dict[str, Any], labels: Sequence[str], order: str
) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": LABEL_TOKENS if labels else MAX_TOKENS}
    form: dict[str, Any] = {"sampling": {**sampling, "ignore_eos": True}}
    if labels:
        form = {"sampling": sampling, "output": {"choice": list(labels)}}
    return {
        "name": "bench",
        "input": {"uri": str(rows)},
        "task": {
            "kind": "generate",
            "prompt": "{{ shared }} {{ own }}",
            **form,
        },
        "engine": {"backend": "vllm", "model": made, "args": args},
        "output": {"uri": str(output)},
        # Labels take as long as a token: batches are of the usual size.
        "batch": {"arrange": order} if labels else {"rows": 64, "arrange": order},
    }


def _job(
    spec: dict[str, Any], servers: dict[str, str], group: Any, log: Path, most_seconds: float
) -> tuple[float, float]:
    job, span = run_job(spec, servers, group, log, most_seconds)
    question = """
        SELECT cached_tokens::float8 / nullif(prompt_tokens_spent, 0) FROM job_sharing WHERE job = %s
    """
    with psycopg.connect(servers["database_url"], autocommit=True) as connection:
        ((cached,),) = connection.execute(question, (job,)).fetchall()
    return span, cached or 0.0


def _note(
    dataset: Dataset,
    rows: list[dict[str, str]],
    found: dict[str, Found],
    rates: dict[tuple[str, str], list[float]],
    ratios: dict[tuple[str, str], list[float]],
) -> str:
    """Keeps the rates; says how many answers differ, and what the caches had."""
    for who, each in found.items():
        rates[dataset.name, who].append(len(rows) / each["seconds"])
    for who in dataset.fleets:
        ratio = found["raw"]["seconds"] / found[who]["seconds"]
        ratios[dataset.name, who].append(ratio)
    last = dataset.fleets[-1]
    beside = "raw" if dataset.labels else "fleet"
    pairs = zip(found[beside]["texts"], found[last]["texts"], strict=True)
    differing = sum(one != other for one, other in pairs)
    cached = ", ".join(f"{who} {100 * each['cached']:.0f} %" for who, each in found.items())
    said = (
        f"{differing} of {len(rows)} answers differ "
        f"{'from those of raw vLLM' if dataset.labels else 'by the order'}; cached {cached}; the pass took "
        f"{found[last]['pass']:.1f} s"
    )
    figures = ", ".join(f"{who} {ratios[dataset.name, who][-1]:.2f}" for who in dataset.fleets)
    console.print(f"{dataset.what}: {figures} of raw vLLM; {said}")
    return said


def _line(
    dataset: Dataset,
    rates: dict[tuple[str, str], list[float]],
    ratios: dict[tuple[str, str], list[float]],
    who: str,
    said: str,
) -> Line:
    ratio, rate = Median.of(ratios[dataset.name, who]), Median.of(rates[dataset.name, who])
    raw = Median.of(rates[dataset.name, "raw"])
    judged = who == dataset.judged
    return Line(
        section="arranged",
        contender=f"{dataset.what}, {FLEETS[who]}{f' ({said})' if judged else ''}",
        rate=f"{rate.value:.1f} rows/s, raw {raw.value:.1f}",
        ratio=str(ratio),
        rounds=ratio.rounds,
        spread=spread(rates[dataset.name, who]),
        wanted=f"at least {dataset.wanted}" if judged else "",
        verdict=ratio.verdict(dataset.wanted) if judged else "",
    )


if __name__ == "__main__":
    typer.run(main)
