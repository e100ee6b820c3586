"""The main loop of a child: claim -> read -> render -> infer -> write -> commit."""

import dataclasses
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import structlog

from common import formats, parts, storage
from common.descriptor import RowRanges
from common.errors import (
    EngineDead,
    LeaseLost,
    LedgerUnavailable,
    NightshiftError,
    Permanent,
    Retryable,
    StorageUnavailable,
)
from common.faultpoints import Moment, reached
from common.ledger import Ledger, batches, shares
from common.ledger.batches import Claimant, Lease
from common.ledger.connection import IDLE_IN_TRANSACTION_SECONDS, Connection
from common.parts import Failure, clean
from common.settings import Settings
from common.states import RowErrorKind
from worker.engines.protocol import Engine, Outcome, Refusal, Request, Work
from worker.job_cache import JobCache, KnownJob
from worker.profile import NO_PROFILE, Profile, Stage
from worker.publish import Publisher
from worker.results import PartTable, RowResults, merged, part_table
from worker.window import MOST_BATCHES, SHARE_SECONDS, HeldBatch, Window

log = structlog.get_logger(__name__)

EMPTY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses after claims that found nothing, before the child waits for the next hint: Celery takes
up to a second to look for one after a task."""

DEFAULT_MAX_ATTEMPTS = 3
"""Tries of a batch whose job cannot be read."""

OUTAGE_PAUSE_SECONDS = 5.0
"""A batch that was given back because of an outage is not claimed again for so long."""


class Runner:
    """Keeps one engine full with the batches of its queue.

    Each batch has a thread from claim to commit; the engine mixes the rows of all of them.
    `engine_died` is called when the engine can serve nobody any more. `asked_at` is when Postgres
    was last asked for batches (monotonic seconds).
    """

    def __init__(
        self,
        who: Claimant,
        ledger: Ledger,
        engine: Engine,
        settings: Settings,
        engine_died: Callable[[str], None],
        profile: Profile = NO_PROFILE,
    ) -> None:
        # Twice what the engine runs at once: as many rows wait in it as it works on.
        self.window = Window(rows=2 * engine.concurrency)
        self.draining = threading.Event()
        self.asked_at = time.monotonic()
        self._who = who
        self._ledger = ledger
        self._engine = engine
        self._settings = settings
        self._engine_died = engine_died
        self._jobs = JobCache(ledger)
        self._cache = formats.ReadCache(settings.read_cache_bytes)
        self._given_up = threading.Event()
        self._profile = profile
        self._publisher = Publisher(ledger, self._given_up, profile)
        self._claiming = threading.Lock()
        self._unsure_until = -math.inf
        self._usual_rows = 1
        self._share_until = -math.inf
        self._threads = ThreadPoolExecutor(MOST_BATCHES, thread_name_prefix="batch")

    def work(self, woken: str, *, wait: bool) -> int:
        """Claims and starts batches until there are none left; returns how many.

        With `wait` it waits for its turn and for room in the window, which holds the message's
        thread, and so Celery, back from taking hints that a sibling could use. Without, it does
        nothing while another thread is at it.
        """
        if not self._claiming.acquire(blocking=wait):
            return 0
        try:
            return self._claim_on(woken)
        finally:
            self._claiming.release()

    def _claim_on(self, woken: str) -> int:
        """Claims until nothing came for a while: more may be admitted at any moment."""
        claimed, pauses = 0, iter(EMPTY_PAUSES_SECONDS)
        while self.window.wait_for_room():
            leases = self._claim(woken)
            if leases:
                claimed, pauses = claimed + len(leases), iter(EMPTY_PAUSES_SECONDS)
                self._begin(leases)
            elif leases is not None and self.window.holds_its_share and not self.draining.is_set():
                continue
            elif (pause := next(pauses, None)) is None or self.draining.wait(pause):
                break
        return claimed

    def _begin(self, leases: Sequence[Lease]) -> None:
        held = [HeldBatch(lease, len(lease.todo)) for lease in leases]
        for batch in held:
            self.window.add(batch)
        for batch in held:
            try:
                self._threads.submit(self._process, batch)
            except RuntimeError as error:  # no thread for it: a sibling may have one
                self._release(batch.lease, error)
                self._let_go(batch)

    def _let_go(self, batch: HeldBatch) -> None:
        self.window.remove(batch)
        self._profile.engine.let_go()

    def drain(self, seconds: float) -> None:
        """Claims nothing more, finishes what fits in `seconds`, keeps the finished rows of the
        rest, gives back what is left. Returns when nothing is held.
        """
        self.draining.set()
        self.window.close()
        ends = time.monotonic() + seconds
        if self._claiming.acquire(timeout=seconds):
            self._claiming.release()  # a claim under way is in the window now
        if self.window.wait_empty(max(0.0, ends - time.monotonic())):
            return
        for batch in self.window.held():
            batch.stop()
        if not self.window.wait_empty(max(5.0, seconds / 2)):
            self._given_up.set()
            self.window.wait_empty(5.0)

    def _claim(self, woken: str) -> list[Lease] | None:
        """What was leased; None when Postgres did not answer."""
        self.asked_at = time.monotonic()
        try:
            self._release_unknown()
            with self._profile.span(Stage.CLAIM) as span, self._ledger.transaction() as connection:
                leases = self._claim_share(connection, woken)
                span.count = len(leases)
        except Retryable as error:
            log.warning("claim_failed", error=str(error))
            self._unsure_until = math.inf
            return None
        self._profile.engine.claimed(len(leases))
        if leases:
            self._usual_rows = max(1, sum(len(lease.todo) for lease in leases) // len(leases))
        return leases

    def _claim_share(self, connection: Connection, woken: str) -> list[Lease]:
        """As much as there is room for; when little is left, no more than siblings can spare."""
        lease_seconds = self._settings.lease_seconds
        held = self.window.held()
        if not held or time.monotonic() > self._share_until:
            share = shares.fair_share(connection, self._who, lease_seconds)
            if share == 0:
                return []
            self.window.bound(share)
            self._share_until = time.monotonic() + SHARE_SECONDS
        rows, most = self.window.room()
        if most == 0:
            return []
        return batches.claim(
            connection,
            self._who,
            room_rows=rows,
            # No more than may fit: what a claim looks at is locked for its siblings.
            max_batches=min(most, rows // self._usual_rows + 1),
            idle=not held,
            woken=woken,
            lease_seconds=lease_seconds,
        )

    def _release_unknown(self) -> None:
        """After a claim whose answer was lost: nobody would renew what it may have leased.

        Its COMMIT may still be on its way for as long as Postgres keeps its session.
        """
        if time.monotonic() > self._unsure_until:
            return
        known = [batch.lease.batch_id for batch in self.window.held()]
        with self._ledger.transaction() as connection:
            batches.release_owner(connection, self._who.owner, kept=known)
        last = time.monotonic() + IDLE_IN_TRANSACTION_SECONDS
        self._unsure_until = min(self._unsure_until, last)

    def _process(self, batch: HeldBatch) -> None:
        """One batch from its lease to its commit; every way it can end is decided here."""
        lease = batch.lease
        try:
            reached(Moment.CLAIMED)
            self._run(batch)
        except LeaseLost:
            log.info("lease_lost", batch_id=lease.batch_id, attempt=lease.attempt)
        except EngineDead as error:
            self._engine_died(str(error))
        except (StorageUnavailable, LedgerUnavailable) as error:
            # An outage is nobody's fault: nothing is charged, and nothing dies of it.
            self._release(lease, error)
        except NightshiftError as error:
            self._fail(lease, error)
        except BaseException as error:
            log.exception("batch_crashed", batch_id=lease.batch_id, attempt=lease.attempt)
            self._fail(lease, error)
        finally:
            self._let_go(batch)

    def _run(self, batch: HeldBatch) -> None:
        job = self._job(batch.lease.job_id)
        # Whoever submitted it may not have had this operator's roots.
        storage.check_roots(
            [batch.lease.descriptor.source.uri, job.spec.output.uri], self._settings.allowed_roots
        )
        results, requests = self._read(batch, job)
        self._infer(batch, job, results, requests)
        batch.publishing = True
        finished = RowRanges.from_indices(results.finished())
        if len(finished) == len(batch.lease.todo):
            self._publish(batch.lease, job, results, None)
        elif batch.unwanted or not len(finished):
            self._release(batch.lease)
        elif batch.lease.redo is not None:
            self._publish(batch.lease.narrowed(finished), job, results, None)
        else:
            self._publish(batch.lease, job, results, finished)

    def _job(self, job_id: int) -> KnownJob:
        """Asked for by every batch: only the first of a job waits for the ledger."""
        known = self._jobs.known(job_id)
        return known or self._publisher.patiently(partial(self._jobs.get, job_id))

    def _read(self, batch: HeldBatch, job: KnownJob) -> tuple[RowResults, list[Request]]:
        """The batch's rows as requests; what cannot be read or rendered is a failure already."""
        spec, lease = job.spec, batch.lease
        with self._profile.span(Stage.READ):
            rows = formats.read_rows(
                dataclasses.replace(lease.descriptor, rows=lease.todo),
                spec.read_columns,
                self._cache,
                schema=job.inputs,
                id_column=spec.input.id,
            )
        reached(Moment.READING)
        passed = [part.select(spec.passed_columns) for part in (rows.table, rows.bad_table)]
        results = RowResults([*rows.row_index, *rows.bad], pa.concat_tables(passed))
        for index, bad in rows.bad.items():
            results.failures[index] = Failure.of(bad.kind, bad.message)
        requests: list[Request] = []
        with self._profile.span(Stage.RENDER):
            for rendered in job.renderer.render(rows.table, rows.row_index):
                if isinstance(rendered, Request):
                    requests.append(rendered)
                else:
                    index, refusal = rendered
                    results.outcomes[index] = refusal
        self.window.row_finished(batch, len(lease.todo) - len(requests))
        return results, requests

    def _infer(
        self, batch: HeldBatch, job: KnownJob, results: RowResults, requests: list[Request]
    ) -> None:
        def emit(position: int, outcome: Outcome) -> None:
            # After a stop the engine may still finish a row; by then the part may be under way.
            with taking:
                if closed.is_set():
                    return
                results.outcomes[requests[position].row_index] = outcome
            self.window.row_finished(batch)
            reached(Moment.ANSWERED)

        taking, closed = threading.Lock(), threading.Event()

        if batch.lease.doomed:
            for position in range(len(requests)):
                emit(
                    position,
                    Refusal(
                        RowErrorKind.ENGINE_DIED, "the engine died each time it ran this row alone"
                    ),
                )
            return
        work = Work(
            job.spec.task, requests, job.spec.retry.row_timeout_seconds, emit, self._profile
        )
        batch.attach(work)
        try:
            with self._profile.span(Stage.INFER):
                self._engine.run(work)
        finally:
            with taking:
                closed.set()
            work.stop()

    def _publish(
        self, lease: Lease, job: KnownJob, results: RowResults, finished: RowRanges | None
    ) -> None:
        schema, bare = job.output, False
        if schema is None:
            schema, bare = self._publisher.patiently(
                partial(self._jobs.output_schema, job, results)
            )
        with self._profile.span(Stage.TABLE):
            table = part_table(job.spec, schema, results)
        if lease.redo is not None and lease.kept_part is not None:
            table = self._with_kept(lease, job, table)
        self._publisher.publish(
            lease, job.spec, table, self._provenance(lease, job), finished, bare=bare
        )
        log.info(
            "batch_done",
            batch_id=lease.batch_id,
            attempt=lease.attempt,
            rows=len(table.table),
            rows_failed=len(table.errors),
        )

    def _with_kept(self, lease: Lease, job: KnownJob, new: PartTable) -> PartTable:
        uri = parts.located(job.spec.output.uri, lease.kept_part or "")
        if uri is None:
            raise Permanent(f"the part {lease.kept_part} with the kept answers is gone")
        schema = new.table.schema
        stored = parts.stored_schema(lease.kept_part or "", job.spec, job.inputs, schema)
        old = formats.read_part(uri, job.spec.output.format, stored)
        redone = set(lease.todo)
        kept = old.filter(
            pa.array([index not in redone for index in old.column("row_index").to_pylist()])
        )
        return merged(new, parts.widened(kept, schema), job.spec.input.id)

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

    def _release(self, lease: Lease, outage: Exception | None = None) -> None:
        """Gives a batch back and waits for the ledger: one that expires is charged. Best effort
        once the child has no time left.
        """
        if outage is not None:
            log.warning("outage", batch_id=lease.batch_id, error=str(outage))
        if isinstance(outage, LedgerUnavailable) and self._given_up.is_set():
            return  # whoever reports the end of this child gives it back

        def release() -> None:
            with self._ledger.transaction() as connection:
                batches.release(
                    connection,
                    [lease],
                    error=None if outage is None else clean(str(outage)),
                    pause_seconds=0 if outage is None else OUTAGE_PAUSE_SECONDS,
                )

        try:
            self._publisher.patiently(release)
        except Retryable as error:
            log.warning("release_failed", batch_id=lease.batch_id, error=str(error))

    def _fail(self, lease: Lease, error: BaseException) -> None:
        log.warning(
            "batch_failed", batch_id=lease.batch_id, attempt=lease.attempt, error=str(error)
        )
        said = clean(str(error) or type(error).__name__)
        try:
            job = self._jobs.known(lease.job_id) or self._jobs.get(lease.job_id)
            most = job.spec.retry.max_attempts
        except Exception:  # a spec that this code cannot read is a reason to fail, too
            most = DEFAULT_MAX_ATTEMPTS

        def fail() -> None:
            with self._ledger.transaction() as connection:
                batches.fail(
                    connection,
                    lease,
                    said,
                    permanent=isinstance(error, Permanent),
                    max_attempts=most,
                    backoff_seconds=random.uniform(0.5, 1.5),
                )

        try:
            self._publisher.patiently(fail)
        except LeaseLost:
            log.info("lease_lost", batch_id=lease.batch_id, attempt=lease.attempt)
        except Retryable as unreachable:
            log.warning("fail_failed", batch_id=lease.batch_id, error=str(unreachable))
