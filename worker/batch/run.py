"""What is done with a group of batches: read -> render -> infer -> publish."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import (
    BadInput,
    EngineGone,
    EngineRefused,
    EngineUnavailable,
    Permanent,
    StageHung,
    StorageUnavailable,
)
from nightshift.common.exit_codes import ExitCode
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import input_rows, part_names
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.part_rows import PartStore
from nightshift.common.formats.values import for_python
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.fleet.outages import Kind
from nightshift.common.spec import FunctionTask
from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.batch.inference import Inference, LoadedBatch
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import GivenBack, HeldBatch, Move, Progress, State
from nightshift.worker.job_cache import JobCache
from nightshift.worker.outcomes import BatchOutcomes
from nightshift.worker.outputs import Outputs
from nightshift.worker.publish import Publication, Publisher
from nightshift.worker.rows.results import RowResults, part_table, with_kept_rows

GATHER_SECONDS = 0.25
"""How long small batches, and the threads that run them, wait for each other: batches that finish
within this time are committed together, and threads do not fight for Python's lock."""

KEEPS_ANSWERS = (EngineUnavailable, StorageUnavailable)
"""An engine that met one of these outages has given answers before, and they are kept."""


LeftEngine = tuple[LoadedBatch, "Future[None]"]
"""A batch that left the engine, and how."""


@dataclasses.dataclass(eq=False)
class BatchRunner:
    """Runs groups of leased batches up to their commits. For many threads at once."""

    child: ChildContext

    def __post_init__(self) -> None:
        self._jobs = JobCache(self.child.ledger, self.child.settings.allowed_roots)
        self._cache = ReadCache(self.child.settings.read_cache_bytes)
        self.publisher = Publisher(self.child)
        self._outcomes = BatchOutcomes(self.child, self._jobs)
        self.outputs = Outputs()
        self._inference = Inference(self.child)
        self._turns = threading.RLock()

    def run(self, group: Sequence[HeldBatch]) -> None:
        """Runs batches of one job from their leases to their commits.

        The batches are read one after the other and run in the engine at once. Those that have
        left the engine when a commit begins are committed together.
        """
        progress = Progress()
        for batch in group:
            batch.progress = progress
        try:
            self._run(group)
        except BaseException as error:  # or the batches would stay held by no thread
            for batch in group:
                self._outcomes.end(batch, error)

    def release(self, batch: HeldBatch, error: Exception) -> None:
        """Releases a batch that cannot run here: a sibling may take it."""
        self._outcomes.end(batch, StorageUnavailable(str(error)))

    def release_unbegun(self, batch: HeldBatch) -> None:
        """Releases a batch in place of its thread: no row of the batch has begun."""
        self._outcomes.end(batch, None)

    def give_back(self, given: Sequence[GivenBack]) -> None:
        """Gives batches back that the heartbeat has ended in place of their thread.

        If the thread goes on later, it ends none of them a second time. A part that the thread
        commits then counts only if nobody has claimed the batch in between.
        """
        seconds = self.child.settings.stage_timeout_seconds
        hung = StageHung(f"no row or file was read, rendered or written for {seconds:g} s")
        for each in given:
            self._outcomes.give_back(each, hung)

    def _run(self, group: Sequence[HeldBatch]) -> None:
        finished: SimpleQueue[LeftEngine] = SimpleQueue()
        many = len(group) > 1
        running, waited_since = 0, time.monotonic()
        with self._turn(many):
            for batch in group:
                running += self._start(batch, finished)
                # A slow read delays the commit of a finished neighbour by no more than this.
                if not finished.empty() and time.monotonic() - waited_since > GATHER_SECONDS:
                    running -= self._publish(finished.get(), finished)
                    waited_since = time.monotonic()
        while running:
            first = finished.get()
            with self._turn(many):
                running -= self._publish(first, finished)

    @contextmanager
    def _turn(self, many: bool) -> Iterator[None]:
        """Threads with many small batches take turns, or they would fight for Python's lock over
        each file. A thread that waits too long for its turn goes on beside the others.
        """
        acquired = many and self._turns.acquire(timeout=GATHER_SECONDS)
        try:
            yield
        finally:
            if acquired:
                self._turns.release()

    def _start(self, batch: HeldBatch, finished: "SimpleQueue[LeftEngine]") -> bool:
        """Reads a batch and hands it to the engine, which puts it into `finished`; False when the
        batch has ended already.
        """
        if not batch.runs:
            self._outcomes.end(batch, None)
            return False
        try:
            loaded = self.load(batch)
            future = self._inference.start(loaded)
        except BaseException as error:
            self._outcomes.end(batch, error)
            return False
        self._started(loaded, future, finished)
        return True

    def _started(
        self, loaded: LoadedBatch, future: "Future[None]", finished: "SimpleQueue[LeftEngine]"
    ) -> None:
        """The batch goes into `finished` once it leaves the engine."""

        def left_engine(future: "Future[None]") -> None:
            # A child whose engine dies now still waits for the commit of what is finished.
            if not future.cancelled() and future.exception() is None:
                loaded.batch.move(Move.LEAVE)
            finished.put((loaded, future))

        future.add_done_callback(left_engine)

    def load(self, batch: HeldBatch) -> LoadedBatch:
        """The batch's rows as requests; a row that cannot be read or rendered has failed already."""
        lease = batch.lease
        reached(Moment.CLAIMED)
        job = self._jobs.get(lease.job_id)
        self._jobs.resolve(job, self.child.engine)
        spec = job.spec
        self.child.window.weigh(batch, spec.sequences)
        roots = self.child.settings.allowed_roots
        with (
            batch.progress.stage() as moved,
            storage.within(roots or None, storage.SETTING),
            storage.within(job.roots, storage.OF_JOB),
        ):
            # The job may have been submitted where other roots are allowed.
            named = [lease.descriptor.source.uri, spec.output.uri]
            storage.check_roots(named, roots)
            storage.check_held(named, job.roots, storage.OF_JOB)
            if self.outputs.prove(job.id, spec.output.uri, job.owner):
                self.child.recorder.went_on(Kind.STORAGE, job.id)
            moved()
            with self.child.recorder.span(Stage.READ):
                rows = input_rows.read_rows(
                    spec,
                    dataclasses.replace(lease.descriptor, rows=lease.todo),
                    spec.read_columns,
                    self._cache,
                    job.inputs,
                    as_arranged=True,
                )
            reached(Moment.READING)
            with self.child.recorder.span(Stage.RENDER):
                requests, refused = job.renderer.render(rows.table, rows.row_index, moved)
        passed = [part.select(spec.passed_columns) for part in (rows.table, rows.bad_table)]
        row_index = [*rows.row_index, *rows.bad]
        results = RowResults(row_index, pa.concat_tables(passed), {**refused}, dict(rows.bad))
        self.child.window.spending.run(lease.job_id, len(lease.todo) - len(requests))
        self.child.window.row_finished(batch, len(lease.todo) - len(requests))
        given = for_python(rows.table) if isinstance(spec.task, FunctionTask) else None
        return LoadedBatch(batch, job, results, requests, given)

    def _publish(self, first: LeftEngine, finished: "SimpleQueue[LeftEngine]") -> int:
        """Publishes a batch that left the engine, with all that have left by now; their number."""
        group = [first]
        while not finished.empty():
            group.append(finished.get())
        ready: list[Publication] = []
        unpublished: list[tuple[HeldBatch, BaseException | None]] = []
        went_on = 0
        for loaded, future in group:
            publication, failure = None, None
            try:
                again = self._inference.goes_on(loaded, future)
                if again is not None:
                    self._started(loaded, again, finished)
                    went_on += 1
                    continue
                publication = self._publication(loaded, future)
            except BaseException as error:
                failure = error
            if publication is None:
                unpublished.append((loaded.batch, failure))
            else:
                ready.append(publication)
        if ready and self._is_own_output(ready):
            self.publisher.publish(ready)
        for each in ready:
            self._note_output(each)
            self._outcomes.end(each.batch, each.error, committed=each.committed)
        # Last, since a dead engine ends the child here: what was finished is committed before.
        for batch, failure in unpublished:
            self._outcomes.end(batch, failure)
        return len(group) - went_on

    def _is_own_output(self, ready: Sequence[Publication]) -> bool:
        """False where the output directory is another one by now that is somebody else's: no part is
        written, and each has that error.
        """
        job = self._jobs.get(ready[0].lease.job_id)
        try:
            with ready[0].batch.progress.stage():
                self.outputs.refuse_replaced(job.id, job.spec.output.uri, job.owner)
        except (BadInput, StorageUnavailable) as error:
            for each in ready:
                each.error = error
            return False
        return True

    def _note_output(self, each: Publication) -> None:
        """What the output did with a part. A job whose parts are refused again and again is paused:
        its rows would be computed for nothing each time.
        """
        job_id = each.lease.job_id
        if each.part is not None:
            self.outputs.took(job_id)
        elif isinstance(each.error, StorageUnavailable):
            each.error = self.outputs.refused(job_id, each.error, each.batch.claimed_at)

    def _publication(self, loaded: LoadedBatch, future: "Future[None]") -> Publication | None:
        """What there is to publish; None when no row is finished, or none is wanted."""
        batch = loaded.batch
        loaded.close()
        if (work := batch.work) is not None:  # who ends the batch meanwhile takes its work away
            self._outcomes.remark(loaded.job, work.remark)
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, KEEPS_ANSWERS):
            batch.stop()  # else rows of it could still go to another child
            raise error
        batch.move(Move.PUBLISH)
        lease = batch.lease
        if isinstance(error, EngineRefused):
            self._outcomes.pause_job(lease, error)
        if isinstance(error, EngineGone):
            self.child.leave(ExitCode.ENGINE_GONE, str(error))
        finished = RowRanges.from_indices(loaded.results.finished())
        if len(finished.minus(lease.todo)):
            raise RuntimeError("the engine answered rows that the batch does not hold")
        if len(finished) == len(lease.todo):
            return self._table(lease, loaded)
        if batch.state is State.OVER or not len(finished):
            if error is not None:
                raise error
            return None
        if lease.redo is not None:
            return self._table(lease.narrowed(finished), loaded)
        return self._table(lease, loaded, kept_rows=finished)

    def _table(
        self, lease: Lease, loaded: LoadedBatch, kept_rows: RowRanges | None = None
    ) -> Publication:
        job = loaded.job
        schema, bare = self._jobs.output_schema(job, loaded.results)
        made_by = {
            **job.provenance,
            "batch": str(lease.batch_id),
            "attempt": str(lease.attempt),
            "worker": lease.owner,
            "engine": self.child.engine.name,
            "engine_version": self.child.engine.version,
            "revision": self.child.engine.revision or "",
        }
        with loaded.batch.progress.stage() as moved:
            with self.child.recorder.span(Stage.TABLE):
                table = part_table(job.spec, schema, loaded.results)
            if lease.redo is not None and lease.kept_part is not None:
                moved()
                uri = part_names.located(job.spec.output.uri, lease.kept_part)
                if uri is None:
                    raise Permanent(f"the part {lease.kept_part} with the kept answers is gone")
                parts = PartStore(job.spec, job.inputs, schema)
                whole, made_by = parts.merge(table.table, made_by, lease.todo, lease.kept_part, uri)
                table = with_kept_rows(table, whole, job.spec.input.id)
        return Publication(loaded.batch, lease, job.spec, table, made_by, kept_rows, bare)
