"""`make gpu-check`: the whole fleet with the transformers engine beside the library's own loops, on the GPU
where there is one. Needs torch, transformers and sentence-transformers. Without vLLM its line is left out.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import psycopg
import torch
import typer
from rich.console import Console

from benchmarks.embed import library
from benchmarks.embed.__main__ import TASKS, line
from benchmarks.embed.library import CPU, GPU
from benchmarks.embed.rig import Rig, Turn, servers, turn
from benchmarks.engine.contender import START_SECONDS, WORK_SECONDS
from benchmarks.report import Line, show
from benchmarks.row_cost.rig import OF_FUNCTION, measured

console = Console(highlight=False)

WANTED = 0.97

KINDS = ("short", "mixed")

LABELLED = "words,sentences"
"""Datasets of `make bench-arranged` whose answers are labels."""


@dataclass
class Watch:
    """How busy the GPU is, in percent, and how much of its memory is used, in MiB, by nvidia-smi."""

    busy: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Looks five times a second, where there is a GPU."""
        if shutil.which("nvidia-smi") is None:
            yield
            return
        query = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
        argv = ["nvidia-smi", *query, "--loop-ms=200"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as look:

            def read() -> None:
                for line in look.stdout or ():
                    busy, memory = line.split(",")
                    self.busy.append(float(busy))
                    self.memory.append(float(memory))

            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            try:
                yield
            finally:
                look.terminate()
                thread.join(5)

    def __str__(self) -> str:
        if not self.busy:
            return "no GPU"
        return f"GPU {np.mean(self.busy):.0f} % busy, {max(self.memory):,.0f} MiB at most"


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    rows: Annotated[int, typer.Option(min=0, help="Rows; 0: as the device is used to.")] = 0,
    kinds: Annotated[str, typer.Option(help="Kinds of rows, with commas between.")] = ",".join(
        KINDS
    ),
) -> None:
    """Measure embed and classify, fleet beside library, then two workers on one device and a kill -9; what a row
    costs a child; labels by one token, where vLLM is there.
    """
    size = GPU if torch.cuda.is_available() else CPU
    name = torch.cuda.get_device_name() if size is GPU else "no GPU here: this is the CPU"
    console.print(f"device: {name}; {size.dtype}, {size.layers} layers of {size.hidden}")
    count = rows or size.rows
    chosen = [kind for kind in KINDS if kind in kinds.split(",")]
    turns: dict[tuple[str, str], list[Turn]] = defaultdict(list)
    watches: dict[str, Watch] = defaultdict(Watch)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        home = Path(folder)
        models = library.models(home / "models", size)
        data = {kind: library.rows(home / f"{kind}.parquet", count, kind) for kind in chosen}
        with servers(home) as urls:
            for number in range(rounds):
                for task in TASKS:
                    rig = Rig(task, models[task], home, size, urls)
                    found = turn(rig, data, number, watches[task].looking)
                    for kind, each in found.items():
                        console.print(f"{task}, {kind} rows: {each}; {watches[task]}")
                        turns[task, kind].append(each)
            rig = Rig("embed", models["embed"], home, size, urls)
            two = _two_workers(rig, data[chosen[-1]], count)
    lines = [
        line(
            "gpu-check",
            f"{count:,} {kind} rows on {size.device}",
            task,
            each,
            WANTED,
            f" ({watches[task]})",
        )
        for (task, kind), each in turns.items()
    ]
    show("gpu-check", [*lines, two, measured(OF_FUNCTION)])
    if size is CPU or find_spec("vllm") is None:
        console.print("labels by one token are left out: that needs vLLM on a GPU")
        return
    argv = [sys.executable, "-m", "benchmarks.arranged", "--rounds", "1", "--only", LABELLED]
    subprocess.run(argv, check=True, timeout=WORK_SECONDS)


def _two_workers(rig: Rig, data: Path, count: int) -> Line:
    """Two workers share the device; the child of one is killed with signal 9 while the job runs."""
    killed: list[int] = []

    def kill(connection: psycopg.Connection[Any]) -> None:
        question = "SELECT count(*) FROM batches WHERE state = 'done' AND job_id = (SELECT max(id) FROM jobs)"
        until = time.monotonic() + WORK_SECONDS
        while connection.execute(question).fetchall()[0][0] < 2 and time.monotonic() < until:
            time.sleep(0.05)
        for child in psutil.Process(first.pid).children(recursive=True):
            if "celery" in " ".join(child.cmdline()):
                child.send_signal(signal.SIGKILL)
                killed.append(child.pid)
                return

    watch = Watch()
    with rig.worker("one") as (first, log), rig.worker("two"):
        rig.run(first, log, data, START_SECONDS, limit=8 * rig.size.batch_size)
        with watch.looking():
            seconds, table = rig.run(first, log, data, begun=kill)
    assert killed, "no child was there to kill"
    assert table.column("row_index").to_pylist() == list(range(count)), "rows are missing, or twice"
    assert table.column("error").null_count == count, "rows failed"
    console.print(
        f"two workers, one child killed: {count / seconds:,.0f} rows/s, no row lost; {watch}"
    )
    return Line(
        section="gpu-check",
        contender=f"two workers on {rig.size.device}, a child killed by signal 9 ({watch})",
        rate=f"{count / seconds:,.0f} rows/s",
        ratio="",
        rounds=1,
        spread="",
    )


if __name__ == "__main__":
    typer.run(main)
