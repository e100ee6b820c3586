"""What a thread of a child does for the batches that it carries: read -> infer -> write -> commit."""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import (
    EngineDead,
    EngineRefused,
    EngineUnavailable,
    JobRefused,
    LeaseLost,
    LedgerUnavailable,
    NightshiftError,
    Permanent,
    Retryable,
    StorageUnavailable,
)
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import dataset, part_names
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.part_store import PartStore
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.settings import Settings
from nightshift.common.states import RowErrorKind
from nightshift.common.text import kept_message
from nightshift.worker.engines.protocol import Engine, Outcome, Refusal, Request, Work
from nightshift.worker.job_cache import JobCache, KnownJob
from nightshift.worker.publish import Publication, Publisher
from nightshift.worker.rows.results import RowResults, part_table, with_kept_rows
from nightshift.worker.telemetry.events import BatchEnded, LeaseFoundLost, Stage
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import HeldBatch, Window

DEFAULT_MAX_ATTEMPTS = 3
"""Tries of a batch whose job cannot be read."""

GATHER_SECONDS = 0.25
"""How long small batches and the threads that carry them wait for each other, so that they are
committed together and do not fight for Python's lock; what is under way comes to its end first."""

OUTAGE_PAUSE_SECONDS = 5.0
"""A batch that was given back because of an outage is not claimed again for so long."""


@dataclasses.dataclass(slots=True, eq=False)
class Load:
    """A batch that was read: its requests, and what is known of its rows so far."""

    batch: HeldBatch
    job: KnownJob
    results: RowResults
    requests: list[Request]
    _taking: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _closed: bool = False

    def take(self, position: int, outcome: Outcome) -> bool:
        """Keeps the outcome of a request; False when it comes too late."""
        with self._taking:
            if not self._closed:
                self.results.outcomes[self.requests[position].row_index] = outcome
            return not self._closed

    def close(self) -> None:
        """After a stop the engine may still finish a row; by then the part may be under way."""
        with self._taking:
            self._closed = True


KEEPS_ANSWERS = (EngineUnavailable, StorageUnavailable)
"""Outages that an engine met take back no answer that it gave before."""

Left = tuple[Load, "Future[None]"]
"""A batch that left the engine, and how."""


class Carrier:
    """Takes leased batches to their commits. For many threads at once.

    `engine_died` is called when the engine can serve nobody any more. Once `given_up` is set, no
    ledger and no store is waited for any longer.
    """

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        settings: Settings,
        window: Window,
        engine_died: Callable[[str], None],
        given_up: threading.Event,
        recorder: Recorder,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._settings = settings
        self._window = window
        self._engine_died = engine_died
        self._given_up = given_up
        self._recorder = recorder
        self._turns = threading.RLock()
        self._jobs = JobCache(ledger, settings.allowed_roots)
        self._cache = ReadCache(settings.read_cache_bytes)
        self._publisher = Publisher(ledger, given_up, recorder, window.engine_time)

    def carry(self, bundle: Sequence[HeldBatch]) -> None:
        """Batches of one job from their leases to their commits.

        They are read one after the other and run in the engine at once; those that left it by the
        time the ones before are committed are committed together.
        """
        try:
            self._carry(bundle)
        except BaseException as error:  # none may stay held by nobody
            for batch in bundle:
                self._end(batch, error)

    def _carry(self, bundle: Sequence[HeldBatch]) -> None:
        done: SimpleQueue[Left] = SimpleQueue()
        many = len(bundle) > 1
        running, waited_since = 0, time.monotonic()
        with self._turn(many):
            for batch in bundle:
                running += self._begin(batch, done)
                # A slow read holds back no finished neighbour for long.
                if not done.empty() and time.monotonic() - waited_since > GATHER_SECONDS:
                    running -= self._publish([done.get()], done)
                    waited_since = time.monotonic()
        while running:
            first = done.get()
            with self._turn(many):
                running -= self._publish([first], done)

    @contextmanager
    def _turn(self, many: bool) -> Iterator[None]:
        """Threads that carry many small batches take turns, or they would fight for Python's lock
        over each file. Whoever waits for a turn that takes long goes on beside it.
        """
        mine = many and self._turns.acquire(timeout=GATHER_SECONDS)
        try:
            yield
        finally:
            if mine:
                self._turns.release()

    def give_back(self, batch: HeldBatch, error: Exception) -> None:
        """A batch that cannot be carried here: a sibling may take it."""
        self._end(batch, StorageUnavailable(str(error)))

    def _begin(self, batch: HeldBatch, done: "SimpleQueue[Left]") -> bool:
        """Whether the engine has it; `done` is told when it left the engine."""
        if batch.stopped:
            self._end(batch, None, unfinished=True)
            return False
        try:
            load = self._read(batch)
            future = self._start(load)
        except BaseException as error:
            self._end(batch, error)
            return False

        def left(future: "Future[None]") -> None:
            # What is finished is waited for, should the engine die now.
            batch.publishing = not future.cancelled() and future.exception() is None
            done.put((load, future))

        future.add_done_callback(left)
        return True

    def _end(
        self, batch: HeldBatch, error: BaseException | None, *, unfinished: bool = False
    ) -> None:
        """Every way a batch can end is decided here, once; without an error it is committed, or
        given back as `unfinished`.
        """
        if batch.over:
            return
        lease, outcome = batch.lease, None
        try:
            match error:
                case None:
                    if unfinished:
                        outcome = self._release(lease, outcome="lost" if batch.lost else "released")
                case LeaseLost():
                    outcome = self._lost(lease)
                case EngineDead():
                    self._engine_died(str(error))
                case StorageUnavailable() | LedgerUnavailable() | EngineUnavailable():
                    # An outage is nobody's fault: nothing is charged, and nothing dies of it.
                    outcome = self._release(lease, error)
                case JobRefused():
                    outcome = self._fail_job(lease, error)
                case NightshiftError():
                    outcome = self._fail(lease, error)
                case _:
                    self._recorder.crash(
                        "batch_crashed", error, batch_id=lease.batch_id, attempt=lease.attempt
                    )
                    outcome = self._fail(lease, error)
        except BaseException as crash:  # it runs out and goes to others
            self._recorder.crash(
                "end_failed", crash, batch_id=lease.batch_id, attempt=lease.attempt
            )
        finally:
            batch.over, batch.work = True, None
            self._window.remove(batch)
            self._recorder.emit(BatchEnded, outcome)

    def _read(self, batch: HeldBatch) -> Load:
        """The batch's rows as requests; what cannot be read or rendered is a failure already."""
        lease = batch.lease
        reached(Moment.CLAIMED)
        job = self._job(lease.job_id)
        spec = job.spec
        # Whoever submitted it may not have had this operator's roots.
        storage.check_roots(
            [lease.descriptor.source.uri, spec.output.uri], self._settings.allowed_roots
        )
        with self._recorder.span(Stage.READ):
            rows = dataset.read_rows(
                spec,
                dataclasses.replace(lease.descriptor, rows=lease.todo),
                spec.read_columns,
                self._cache,
                job.inputs,
            )
        reached(Moment.READING)
        passed = [part.select(spec.passed_columns) for part in (rows.table, rows.bad_table)]
        row_index = [*rows.row_index, *rows.bad]
        results = RowResults(row_index, pa.concat_tables(passed), failures=dict(rows.bad))
        requests: list[Request] = []
        with self._recorder.span(Stage.RENDER):
            for rendered in job.renderer.render(rows.table, rows.row_index):
                if isinstance(rendered, Request):
                    requests.append(rendered)
                else:
                    index, refusal = rendered
                    results.outcomes[index] = refusal
        self._window.row_finished(batch, len(lease.todo) - len(requests))
        return Load(batch, job, results, requests)

    def _start(self, load: Load) -> "Future[None]":
        """Hands the batch to the engine."""
        batch, spec = load.batch, load.job.spec

        def emit(position: int, outcome: Outcome) -> None:
            if load.take(position, outcome):
                self._window.row_finished(batch)
                reached(Moment.ANSWERED)

        if batch.lease.isolated:
            dead = "the engine died each time it ran this row alone"
            for position in range(len(load.requests)):
                emit(position, Refusal(RowErrorKind.ENGINE_DIED, dead))
        if batch.lease.isolated or batch.stopped or not load.requests:
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing
        work = Work(spec.task, load.requests, spec.retry.row_timeout_seconds, emit, self._recorder)
        batch.attach(work)
        return self._engine.start(work)

    def _publish(self, group: list[Left], done: "SimpleQueue[Left]") -> int:
        """Publishes a group that left the engine, and all that did by now; returns how many."""
        while not done.empty():
            group.append(done.get())
        ready: list[tuple[HeldBatch, Publication]] = []
        ended: list[tuple[HeldBatch, BaseException | None]] = []
        for load, future in group:
            try:
                made = self._publication(load, future)
            except BaseException as error:
                ended.append((load.batch, error))
            else:
                if made is None:
                    ended.append((load.batch, None))
                else:
                    ready.append((load.batch, made))
        if ready:
            self._publisher.publish([made for _, made in ready])
        for batch, made in ready:
            self._end(batch, made.error)
        # Last: with a dead engine the child ends here, and what was finished is committed.
        for batch, failed in ended:
            self._end(batch, failed, unfinished=True)
        return len(group)

    def _publication(self, load: Load, future: "Future[None]") -> Publication | None:
        """What there is to publish; None when nothing is finished, or nothing wanted."""
        batch, lease = load.batch, load.batch.lease
        load.close()
        failed = None if future.cancelled() else future.exception()
        if failed is not None and not isinstance(failed, KEEPS_ANSWERS):
            raise failed
        if isinstance(failed, EngineRefused):
            self._pause(lease, failed)
        batch.publishing = True
        finished = RowRanges.from_indices(load.results.finished())
        if len(finished) == len(lease.todo):
            return self._table(lease, load, None)
        if batch.unwanted or not len(finished):
            if failed is not None:
                raise failed
            return None
        if lease.redo is not None:
            return self._table(lease.narrowed(finished), load, None)
        return self._table(lease, load, finished)

    def _table(self, lease: Lease, load: Load, kept_rows: RowRanges | None) -> Publication:
        job, schema, bare = load.job, load.job.output, False
        if schema is None:
            schema, bare = self._publisher.patiently(
                partial(self._jobs.output_schema, job, load.results)
            )
        with self._recorder.span(Stage.TABLE):
            table = part_table(job.spec, schema, load.results)
        made_by = self._provenance(lease, job)
        if lease.redo is not None and lease.kept_part is not None:
            parts = PartStore(job.spec, job.inputs, schema)
            uri = _kept_place(lease, job)
            whole, made_by = parts.merge(table.table, made_by, lease.todo, lease.kept_part, uri)
            table = with_kept_rows(table, whole, job.spec.input.id)
        claimed_at = load.batch.claimed_at
        return Publication(lease, job.spec, table, made_by, kept_rows, bare, claimed_at)

    def _job(self, job_id: int) -> KnownJob:
        """Asked for by every batch: only the first of a job waits for the ledger."""
        known = self._jobs.known(job_id)
        return known or self._publisher.patiently(partial(self._jobs.get, job_id))

    def _provenance(self, lease: Lease, job: KnownJob) -> dict[str, str]:
        return {
            **job.provenance,
            "batch": str(lease.batch_id),
            "attempt": str(lease.attempt),
            "worker": lease.owner,
            "engine": self._engine.name,
            "engine_version": self._engine.version,
            "revision": self._engine.revision or "",
        }

    def _lost(self, lease: Lease) -> str:
        self._recorder.emit(LeaseFoundLost, lease.batch_id, lease.attempt)
        return "lost"

    def _release(
        self, lease: Lease, outage: Exception | None = None, outcome: str = "released"
    ) -> str | None:
        """Gives a batch back and waits for the ledger: one that expires is charged. Best effort
        once the child has no time left.
        """
        if outage is not None:
            self._recorder.problem("outage", batch_id=lease.batch_id, error=str(outage))
        if isinstance(outage, LedgerUnavailable) and self._given_up.is_set():
            return None  # whoever reports the end of this child gives it back

        def release() -> None:
            with self._ledger.transaction() as connection:
                leasing.release(
                    connection,
                    [lease],
                    error=None if outage is None else kept_message(str(outage)),
                    pause_seconds=0 if outage is None else OUTAGE_PAUSE_SECONDS,
                )

        try:
            self._publisher.patiently(release)
            return outcome
        except Retryable as error:
            self._recorder.problem("release_failed", batch_id=lease.batch_id, error=str(error))
        return None

    def _pause(self, lease: Lease, why: Exception) -> None:
        """Nobody claims more of its job until a person has mended what `why` says."""

        def pause() -> None:
            with self._ledger.transaction() as connection:
                jobs.pause(connection, lease.job_id, kept_message(str(why)))

        self._recorder.problem("engine_refused", job_id=lease.job_id, error=str(why))
        try:
            self._publisher.patiently(pause)
        except NightshiftError as error:  # it is over, or the ledger is away for good
            self._recorder.problem("pause_failed", job_id=lease.job_id, error=str(error))

    def _fail_job(self, lease: Lease, error: JobRefused) -> str | None:
        """Before the batch is given back, or a sibling would claim it; nothing is charged."""
        self._recorder.problem("job_refused", job_id=lease.job_id, error=str(error))

        def fail() -> None:
            with self._ledger.transaction() as connection:
                jobs.fail(connection, lease.job_id, kept_message(str(error)))

        try:
            self._publisher.patiently(fail)
        except Retryable as unreachable:
            self._recorder.problem("fail_failed", batch_id=lease.batch_id, error=str(unreachable))
        return self._release(lease)

    def _fail(self, lease: Lease, error: BaseException) -> str | None:
        self._recorder.problem(
            "batch_failed", batch_id=lease.batch_id, attempt=lease.attempt, error=str(error)
        )
        said = kept_message(str(error) or type(error).__name__)
        try:
            job = self._jobs.known(lease.job_id) or self._jobs.get(lease.job_id)
            most = job.spec.retry.max_attempts
        except Exception:  # a spec that this code cannot read is a reason to fail, too
            most = DEFAULT_MAX_ATTEMPTS

        def fail() -> None:
            with self._ledger.transaction() as connection:
                leasing.fail(
                    connection,
                    lease,
                    said,
                    permanent=isinstance(error, Permanent),
                    max_attempts=most,
                    backoff_seconds=random.uniform(0.5, 1.5),
                )

        try:
            self._publisher.patiently(fail)
            return "failed"
        except LeaseLost:
            return self._lost(lease)
        except Retryable as unreachable:
            self._recorder.problem("fail_failed", batch_id=lease.batch_id, error=str(unreachable))
        return None


def _kept_place(lease: Lease, job: KnownJob) -> str:
    uri = part_names.located(job.spec.output.uri, lease.kept_part or "")
    if uri is None:
        raise Permanent(f"the part {lease.kept_part} with the kept answers is gone")
    return uri
