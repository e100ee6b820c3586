"""Batches through the worker's own code, from the file to the part, around an engine; and what a row costs in it."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Line, Median, spread
from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.formats import output_schema, part_rows
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches.records import Claimant, Lease
from nightshift.common.settings import load_settings
from nightshift.common.spec import JobSpec
from nightshift.worker.batch.finished import Finished
from nightshift.worker.batch.inference import Inference
from nightshift.worker.batch.load import Loader
from nightshift.worker.child_context import ChildContext
from nightshift.worker.engines.function.engine import FunctionEngine
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.job_cache import JobCache, KnownJob
from nightshift.worker.outages import PatientLedger
from nightshift.worker.outcomes import BatchOutcomes
from nightshift.worker.outputs import Outputs
from nightshift.worker.rows.prompts import Renderer
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window

BATCH_ROWS, BATCHES_AT_ONCE, ROUNDS = 1024, 4, 7


INPUTS = pa.schema([("id", pa.int64()), ("text", pa.string())])


FUNCTION = {
    "task": {"kind": "function"},
    "engine": {"backend": "function", "callable": "echo:echo"},
    "output": {"schema": {"echoed": "string"}},
}


@dataclass(slots=True)
class Rig:
    """The parts of a child that a batch passes, around an engine, for one job over one file."""

    child: ChildContext
    job: KnownJob
    source: SourceFile
    loader: Loader
    inference: Inference
    finished: Finished

    @classmethod
    def of(cls, folder: Path, spec: JobSpec, engine: Engine, rows: int) -> "Rig":
        """A rig for a job that runs in this engine, over so many rows."""
        file = folder / "in.parquet"
        texts = [f"row {row} says something of medium length" for row in range(rows)]
        pq.write_table(pa.table({"id": range(rows), "text": texts}, INPUTS), file)
        found = file.stat()
        source = SourceFile(str(file), "parquet", found.st_size, str(found.st_mtime_ns), rows, 0)
        job = KnownJob(
            1, Owner("ledger", "job"), spec, INPUTS, Renderer(spec.task), {},
            output_schema.output_schema(spec, INPUTS), resolved=dict(engine.resolve(spec.task)),
        )  # fmt: skip
        ledger = PatientLedger(Ledger("postgresql://localhost/none"), Recorder())
        jobs = JobCache(ledger)
        jobs._known[job.id] = job
        child = ChildContext(
            Claimant("rig", "pool", "key", engine.name, engine.version), ledger, engine,
            load_settings(), Window(2 * BATCHES_AT_ONCE * BATCH_ROWS), Recorder(),
            lambda _: None, lambda _, __: None,
        )  # fmt: skip
        return cls(
            child, job, source, Loader(child, jobs, Outputs()), Inference(child),
            Finished(child, jobs, BatchOutcomes(child, jobs)),
        )  # fmt: skip

    def run(self, rows: int, batch_rows: int = BATCH_ROWS) -> None:
        """All rows once, some batches side by side; no answer is known from before."""
        self.inference = Inference(self.child)
        with ThreadPoolExecutor(BATCHES_AT_ONCE) as threads:
            list(
                threads.map(lambda first: self.batch(first, batch_rows), range(0, rows, batch_rows))
            )

    def batch(self, first: int, rows: int) -> None:
        """One batch from its file to its part."""
        descriptor = Descriptor(self.source, RowRanges.of((first, first + rows)))
        lease = Lease(first + 1, 1, "rig", self.job.id, first, descriptor, False, False, None, None)
        batch = HeldBatch(lease, rows)
        self.child.window.add(batch)
        loaded = self.loader.load(batch)
        future = self.inference.start(loaded)
        future.result()
        publication = self.finished.publication(loaded, future)
        assert publication is not None
        table = publication.table
        if table.errors:
            raise SystemExit(f"{len(table.errors)} rows failed: {table.errors[0]}")
        data = part_rows.encode_part(
            table.table, self.job.spec.output.format, publication.provenance
        )
        part = Path(self.job.spec.output.uri) / f"{first}.parquet"
        part_rows.write_encoded(str(part), data)
        part.unlink()
        self.child.window.remove(batch)


def spec_in(folder: Path, sections: dict[str, Any]) -> JobSpec:
    """A job with these sections, whose input and output lie in a folder."""
    output = {"uri": str(folder / "out"), **sections.get("output", {})}
    whole = {"name": "rows", "input": {"uri": str(folder / "in.parquet"), "id": "id"}, **sections}
    return JobSpec.model_validate({**whole, "output": output})


@contextmanager
def rig_around(
    sections: dict[str, Any], load: Callable[[JobSpec], Engine], rows: int
) -> Iterator[Rig]:
    """The rig of a job in a folder of its own, whose engine is closed in the end."""
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        spec = spec_in(Path(folder), sections)
        engine = load(spec)
        try:
            yield Rig.of(Path(folder), spec, engine, rows)
        finally:
            engine.close()


def function_rig(rows: int) -> AbstractContextManager[Rig]:
    """The rig of a function that returns a text of each row."""
    folders = (str(Path(__file__).parents[1]),)
    settings = load_settings(allowed_modules=("echo",), callable_paths=folders)

    def load(spec: JobSpec) -> Engine:
        return FunctionEngine.load(cast("Any", spec.engine), settings)

    return rig_around(FUNCTION, load, rows)


def cpu_seconds() -> float:
    """CPU seconds of this process, and of those that it has started."""
    below = (each.cpu_times() for each in psutil.Process().children(recursive=True))
    return time.process_time() + sum(each.user + each.system for each in below)


@dataclass(frozen=True, slots=True)
class Contender:
    """A rig by its name; `wanted` is None where there is no target."""

    name: str
    rig: Callable[[int], AbstractContextManager[Rig]]
    rows: int
    wanted: int | None = None


def measured(contender: Contender) -> Line:
    """CPU of a row, and rows/s while nothing else runs."""
    spent, rates = [], []
    with contender.rig(contender.rows) as rig:
        rig.run(2 * BATCH_ROWS)
        gc.collect()
        gc.freeze()  # as a child does once its engine is loaded
        for _ in range(ROUNDS):
            before, began = cpu_seconds(), time.perf_counter()
            rig.run(contender.rows)
            rates.append(contender.rows / (time.perf_counter() - began))
            spent.append(1e6 * (cpu_seconds() - before) / contender.rows)
    cpu, rate, wanted = Median.of(spent), Median.of(rates), contender.wanted
    return Line(
        "a row in one child",
        contender.name,
        f"{rate.value:,.0f} rows/s, {cpu.value:.3g} us CPU a row",
        ""
        if wanted is None
        else f"{Median.of([each / wanted for each in rates])} of what is wanted",
        ROUNDS,
        f"{spread(rates)} rows/s, {spread(spent)} us",
        "" if wanted is None else f"{wanted:,} rows/s",
        "" if wanted is None else rate.verdict(wanted),
    )


OF_FUNCTION = Contender("function, rows of one word", function_rig, 65_536)
