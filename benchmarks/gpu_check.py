"""`make gpu-check`: the whole fleet with the transformers engine beside the library's own loop, on the GPU
where there is one. Needs torch, transformers and sentence-transformers, and no vLLM.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch
import typer
from rich.console import Console
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import BertWordPieceTokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

from benchmarks.engine.__main__ import embedded
from benchmarks.engine.contender import START_SECONDS, WORK_SECONDS, process
from benchmarks.engine.fleet import run_job
from benchmarks.engine.words import words
from benchmarks.report import Line, Median, show
from nightshift.common.processes.process_group import ProcessGroup

console = Console(highlight=False)

WANTED = 0.97

LABELS = ("good", "bad", "neither")

LONGEST = 256


@dataclass(frozen=True, slots=True)
class Size:
    """What is measured on this kind of device."""

    device: str
    dtype: str
    hidden: int
    layers: int
    rows: int
    batch_size: int


GPU = Size("cuda", "bfloat16", 768, 12, 40_000, 256)
"""A BERT of about 100 M parameters."""

CPU = Size("cpu", "float32", 128, 2, 2_000, 32)


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
) -> None:
    """Measure embed and classify, fleet beside library, then two workers on one device and a kill -9."""
    size = GPU if torch.cuda.is_available() else CPU
    name = torch.cuda.get_device_name() if size is GPU else "no GPU here: this is the CPU"
    console.print(f"device: {name}; {size.dtype}, {size.layers} layers of {size.hidden}")
    count = rows or size.rows
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        home = Path(folder)
        models = _models(home, size)
        data = _rows(home, count)
        with embedded(home / "home") as (database_url, broker_url):
            servers = {"database_url": database_url, "broker_url": broker_url}
            reaper = ["-m", "nightshift.producer.cli", "reaper"]
            with process(_python(reaper), home / "reaper.log", **servers):
                for task, loop in (("embed", _encode), ("classify", _classify)):
                    fleet = Rig(task, models[task], data, home, size, servers)
                    lines.append(_compare(fleet, loop, count, rounds))
                lines.append(
                    _two_workers(Rig("embed", models["embed"], data, home, size, servers), count)
                )
    show("gpu-check", lines)


def _python(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, *arguments]


def _models(home: Path, size: Size) -> dict[str, str]:
    """A BERT with random weights, as sentence-transformers and as a classifier: speed needs no training."""
    known = words()
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator([" ".join(known)], vocab_size=30_000, show_progress=False)
    bare = home / "bare"
    bare.mkdir()
    tokenizer.save_model(str(bare))
    fast = BertTokenizerFast(vocab_file=str(bare / "vocab.txt"), model_max_length=LONGEST)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_000,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=LONGEST,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
    )
    BertModel(config).save_pretrained(bare)
    fast.save_pretrained(bare)
    transformer = Transformer(str(bare), max_seq_length=LONGEST)
    pooling = Pooling(size.hidden)
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(home / "embed"))
    BertForSequenceClassification(config).save_pretrained(home / "classify")
    fast.save_pretrained(home / "classify")
    return {"embed": str(home / "embed"), "classify": str(home / "classify")}


def _rows(home: Path, count: int) -> Path:
    generator = np.random.default_rng(0)
    known = np.asarray(words())
    lengths = generator.integers(10, 90, count)
    texts = [" ".join(generator.choice(known, length)) for length in lengths]
    path = home / "rows.parquet"
    pq.write_table(pa.table({"id": [f"r-{at}" for at in range(count)], "text": texts}), path)
    return path


Loop = Callable[[str, Path, Path, Size], float]


def _encode(model: str, data: Path, out: Path, size: Size) -> float:
    """`SentenceTransformer.encode` over the file, and the vectors to Parquet; seconds of work, warm."""
    kind = getattr(torch, size.dtype)
    loaded = SentenceTransformer(model, device=size.device, model_kwargs={"torch_dtype": kind})
    loaded.encode(["warm up"] * size.batch_size, batch_size=size.batch_size)
    began = time.monotonic()
    table = pq.read_table(data)
    texts = table.column("text").to_pylist()
    vectors = loaded.encode(texts, batch_size=size.batch_size, show_progress_bar=False)
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(np.asarray(vectors, np.float32).ravel()), vectors.shape[1]
    )
    pq.write_table(pa.table({"id": table.column("id"), "embedding": column}), out)
    return time.monotonic() - began


def _classify(model: str, data: Path, out: Path, size: Size) -> float:
    """A sequence classifier over rows that are sorted by length, as `encode` does it; seconds of work."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    kind = getattr(torch, size.dtype)
    loaded = AutoModelForSequenceClassification.from_pretrained(model, torch_dtype=kind)
    loaded = loaded.to(size.device).eval()

    def shares(texts: list[str]) -> np.ndarray:
        given = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        logits = loaded(**given.to(size.device)).logits
        found: np.ndarray = torch.softmax(logits.float(), dim=-1).cpu().numpy()
        return found

    with torch.inference_mode():
        shares(["warm up"] * size.batch_size)
        began = time.monotonic()
        table = pq.read_table(data)
        texts = table.column("text").to_pylist()
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found = np.empty((len(texts), len(LABELS)), np.float32)
        for start in range(0, len(order), size.batch_size):
            some = order[start : start + size.batch_size]
            found[some] = shares([texts[at] for at in some])
    labels = [LABELS[at] for at in found.argmax(axis=1)]
    pq.write_table(pa.table({"id": table.column("id"), "label": labels}), out)
    return time.monotonic() - began


@dataclass
class Rig:
    """The fleet over one task: jobs, one after the other, each into a folder of its own."""

    task: str
    model: str
    data: Path
    home: Path
    size: Size
    servers: dict[str, str]
    jobs: int = 0

    @contextmanager
    def worker(self, name: str) -> Iterator[tuple[ProcessGroup, Path]]:
        """A worker of one slot, and its log."""
        log = self.home / f"{self.task}-{name}.log"
        argv = _python(["-m", "nightshift.worker.cli", "--slots", "1"])
        with process(argv, log, **self.servers, run_dir=str(self.home / f"run-{name}")) as group:
            yield group, log

    def run(
        self,
        group: ProcessGroup,
        log: Path,
        seconds: float = WORK_SECONDS,
        limit: int | None = None,
        begun: Callable[[psycopg.Connection[Any]], object] = lambda _: None,
    ) -> tuple[float, pa.Table]:
        """Runs a job; the seconds from its first claim to its last commit, and its output by row."""
        self.jobs += 1
        output = self.home / f"{self.task}-{os.getpid()}-{id(self)}-{self.jobs}"
        size = self.size
        spec = {
            "name": f"gpu-{self.task}",
            "input": {"uri": str(self.data), "id": "id", "limit": limit},
            # Rows that are equal would run once here, and twice in the library.
            "task": {"kind": self.task, "text": "{{ text }}", "dedupe": False},
            "engine": {
                "backend": "transformers",
                "model": self.model,
                "device": size.device,
                "dtype": size.dtype,
                "batch_size": size.batch_size,
                "max_length": LONGEST,
                "truncate": True,
            },
            "output": {"uri": str(output)},
            "batch": {"rows": 4 * size.batch_size},
        }
        _, span = run_job(spec, self.servers, group, log, seconds, begun)
        table = ds.dataset(output, format="parquet", exclude_invalid_files=True).to_table()
        return span, table.sort_by("row_index")


def _compare(rig: Rig, loop: Loop, count: int, rounds: int) -> Line:
    """Rounds of both, one after the other; the models of the two are never loaded at once."""
    ratios, rates, watch = [], [], Watch()
    for number in range(rounds):
        with rig.worker(f"{number}") as (group, log):
            rig.run(group, log, START_SECONDS, limit=2 * rig.size.batch_size)
            with watch.looking():
                seconds, table = rig.run(group, log)
        out = rig.home / f"library-{rig.task}-{number}.parquet"
        own = loop(rig.model, rig.data, out, rig.size)
        if rig.size.device == "cuda":
            torch.cuda.empty_cache()
        differing = _differing(rig.task, table, pq.read_table(out))
        ratios.append(own / seconds)
        rates.append(count / seconds)
        console.print(
            f"{rig.task}: fleet {count / seconds:,.0f} rows/s, library {count / own:,.0f}, "
            f"{differing} of {count} answers differ; {watch}"
        )
    ratio = Median.of(ratios)
    return Line(
        section="gpu-check",
        contender=f"{rig.task} on {rig.size.device} ({watch})",
        rate=f"{np.median(rates):,.0f} rows/s",
        ratio=str(ratio),
        rounds=rounds,
        spread=f"{min(rates):,.0f} to {max(rates):,.0f}",
        wanted=f"at least {WANTED}",
        verdict=ratio.verdict(WANTED),
    )


def _differing(task: str, fleet: pa.Table, library: pa.Table) -> int:
    """Rows whose answers are not the same: labels, or vectors more than 0.02 apart by cosine."""
    assert fleet.column("error").null_count == len(fleet), "rows failed"
    assert fleet.column("id").to_pylist() == library.column("id").to_pylist()
    if task == "classify":
        pairs = zip(*(each.column("label").to_pylist() for each in (fleet, library)), strict=True)
        return sum(one != other for one, other in pairs)
    one, other = (
        np.stack(each.column("embedding").to_numpy(zero_copy_only=False)).astype(np.float32)
        for each in (fleet, library)
    )
    cosines = (one * other).sum(axis=1) / (
        np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    )
    return int((cosines < 0.98).sum())


def _two_workers(rig: Rig, count: int) -> Line:
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
        rig.run(first, log, START_SECONDS, limit=8 * rig.size.batch_size)
        with watch.looking():
            seconds, table = rig.run(first, log, begun=kill)
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
