"""`make bench-peers`: the same rows through raw vLLM, the fleet, `vllm run-batch` and Ray Data LLM, in turns.

Each turn is one start of one contender. What a turn found lies in the folder, so that a run that broke
off, or that was told to do some turns only, goes on where it stopped.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console

from benchmarks.arranged.datasets import SPARE_TOKENS, TOKEN_BYTES, Rows, documents, nothing
from benchmarks.engine import model, rows
from benchmarks.engine.__main__ import embedded
from benchmarks.engine.contender import Contender, Plan, Result, Workload
from benchmarks.engine.contenders import Raw
from benchmarks.peers import picture
from benchmarks.peers.contenders import Nightshift, Ray, RunBatch
from benchmarks.peers.table import DATASETS, NAMES, lines
from benchmarks.report import keep, show
from nightshift.common.settings import child_environment, load_settings

NOTHING_ROWS = 1_500
DOCUMENTS = 150
CACHE_TOKENS = 16_500
"""Rows, and tokens of cache beside what the rows that run need: about a third of the documents."""

WARM_ROWS = 256
MAX_TOKENS = 8

ARGS = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "max_model_len": 1024,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "disable_log_stats": True,
    "kv_cache_memory_bytes": TOKEN_BYTES * (CACHE_TOKENS + SPARE_TOKENS),
}

console = Console(highlight=False)


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    turns: Annotated[int, typer.Option(min=0, help="Turns of this call; 0 is all.")] = 0,
    scale: Annotated[float, typer.Option(help="Times the rows; other than 1 is not kept.")] = 1,
    ray_python: Annotated[str, typer.Option(envvar="RAY_PYTHON", help="Has ray[data].")] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Keeps the turns here; else it is temporary.")
    ] = None,
) -> None:
    """Measure the fleet beside what else runs a model over a file of rows."""
    names = [name for name in NAMES if name != "ray" or _has_ray(ray_python)]
    left = turns or rounds * len(names)
    with _home(folder) as home:
        for number in range(rounds):
            # Every contender once; the order rotates, so that none always follows the same one.
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if not _file(home, number, name).exists():
                    if left == 0:
                        return
                    left -= 1
                    _turn(home, number, name, scale, ray_python)
            _check(home, number, names)
        found = {
            dataset: {
                name: [_rate(home, at, name, dataset) for at in range(rounds)] for name in names
            }
            for dataset in DATASETS
        }
    if scale == 1 and rounds >= 3:
        keep("peers", lines(found), rates=found)
        picture.draw(found)
    else:
        show("peers", lines(found))


def _has_ray(python: str) -> bool:
    """Whether the interpreter has what the contender needs; says so where it has not."""
    if not python:
        console.print("Ray Data is left out: RAY_PYTHON names no interpreter that has it.")
        return False
    argv = [python, "-c", "import ray.data.llm, vllm"]
    environment = child_environment(load_settings(), RAY_USAGE_STATS_ENABLED="0")
    if subprocess.run(argv, env=environment, capture_output=True).returncode:
        console.print(f"Ray Data is left out: {python} cannot import ray.data.llm and vllm.")
        return False
    return True


@contextmanager
def _home(folder: Path | None) -> Iterator[Path]:
    home = folder or Path(tempfile.mkdtemp(prefix="bench-peers-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        yield home
    finally:
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _file(home: Path, number: int, name: str) -> Path:
    return home / f"{number}-{name}.json"


def _turn(home: Path, number: int, name: str, scale: float, ray_python: str) -> None:
    """One start of one contender over both datasets."""
    place = home / f"{number}-{name}"
    shutil.rmtree(place, ignore_errors=True)  # of a turn that broke off
    place.mkdir()
    made = str(model.make(home / "model"))
    warm, *work = _workloads(home, number, scale)
    plan = Plan(made, str(place), warm, tuple(work), ARGS)
    with _contender(name, home, ray_python) as contender:
        results = contender.run(plan)
    for dataset, each in zip(DATASETS, results, strict=True):
        rate = len(each.tokens.prompt) / each.seconds
        console.print(
            f"round {number + 1}, {NAMES[name]}, {DATASETS[dataset]}: {rate:.1f} rows/s, {each.tokens}"
        )
    kept = {dataset: asdict(each) for dataset, each in zip(DATASETS, results, strict=True)}
    _file(home, number, name).write_text(json.dumps(kept))


@contextmanager
def _contender(name: str, home: Path, ray_python: str) -> Iterator[Contender]:
    if name == "nightshift":
        with embedded(home / "home") as (database_url, broker_url):
            yield Nightshift(name, database_url, broker_url)
    elif name == "ray":
        yield Ray(name, ray_python)
    else:
        yield Raw(name, "generate") if name == "raw" else RunBatch(name)


def _workloads(home: Path, number: int, scale: float) -> list[Workload]:
    """The rows that warm an engine, then both datasets of a round, of its own seed."""
    generator = np.random.default_rng(number)
    made: dict[str, Rows] = {
        "warm": nothing(np.random.default_rng(10_000), WARM_ROWS),
        "nothing": nothing(generator, round(NOTHING_ROWS * scale)),
        "documents": documents(generator, round(DOCUMENTS * scale)),
    }
    return [_workload(home / f"{name}-{number}.parquet", each) for name, each in made.items()]


def _workload(path: Path, made: Rows) -> Workload:
    texts = [f"{row['shared']} {row['own']}".strip() for row in made]
    pq.write_table(pa.table({"text": texts, "max_tokens": [MAX_TOKENS] * len(texts)}), path)
    return Workload(str(path), len(texts), 64)


def _result(home: Path, number: int, name: str, dataset: str) -> Result:
    return Result.read(json.loads(_file(home, number, name).read_text())[dataset])


def _check(home: Path, number: int, names: list[str]) -> None:
    """Every contender must have had the same prompts, made as many tokens as asked, and had the same engine
    as far as it tells.
    """
    for dataset in DATASETS:
        found = {name: _result(home, number, name, dataset) for name in names}
        path = home / f"{dataset}-{number}.parquet"
        rows.check(path, {name: each.tokens for name, each in found.items()})
        engines = [each.engine for each in found.values() if each.engine]
        assert all(engine == engines[0] for engine in engines), engines


def _rate(home: Path, number: int, name: str, dataset: str) -> float:
    result = _result(home, number, name, dataset)
    return len(result.tokens.prompt) / result.seconds


if __name__ == "__main__":
    typer.run(main)
