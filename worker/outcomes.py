"""How a batch ends: committed, released, failed or lost; and what an error does to its job."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import (
    BadInput,
    EngineDead,
    EngineEnded,
    EngineUnavailable,
    JobRefused,
    LeaseLost,
    LedgerUnavailable,
    NeedsOtherEngine,
    NightshiftError,
    OutputRefused,
    Permanent,
    Retryable,
    StageHung,
    StorageUnavailable,
)
from nightshift.common.ledger.batches import failures, leasing
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import job_changes, jobs, spending
from nightshift.common.text import kept_message
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import GivenBack, HeldBatch, Move, Reason, State
from nightshift.worker.job_cache import JobCache, KnownJob
from nightshift.worker.outages import suppressed, tell_wait

P = ParamSpec("P")

DEFAULT_MAX_ATTEMPTS = 3
"""Attempts of a batch whose job cannot be read."""

OUTAGE_PAUSE_SECONDS = 5.0
"""A batch that was released because of an outage is not claimed again within this time."""

LONGEST_PAUSE_SECONDS = 3600.0
"""Longest pause of a batch that hangs each time. A try holds a thread for `stage_timeout_seconds`,
300 s by default: that is then a twelfth of the time."""


def pause_seconds(hung_before: int) -> float:
    """How long a batch waits that hung now and `hung_before` times before."""
    # After 20 doublings the longest pause is reached; the bound keeps the power from overflowing.
    return min(LONGEST_PAUSE_SECONDS, OUTAGE_PAUSE_SECONDS * 2.0 ** min(hung_before, 20))


@dataclass(frozen=True, slots=True)
class BatchOutcomes:
    """Ends each held batch once: tells the ledger, then drops the batch from the window."""

    child: ChildContext
    jobs: JobCache

    def end(
        self, batch: HeldBatch, error: BaseException | None, *, committed: bool = False
    ) -> None:
        """An error decides what becomes of the batch. Without one, a batch that is not committed was
        stopped before any of its rows was kept: it is released.
        """
        if batch.move(Move.END) is not None:
            self._tell(batch, error, committed=committed)

    def give_back(self, given: GivenBack, hung: StageHung) -> None:
        """Tells the ledger of a batch that the heartbeat has ended, and why."""
        committed = given.was is State.COMMITTED
        error = hung if given.reason is Reason.HUNG and not committed else None
        outcome = "lost" if given.reason is Reason.LOST else "released"
        self._tell(given.batch, error, committed=committed, outcome=outcome)

    def _tell(
        self,
        batch: HeldBatch,
        error: BaseException | None,
        *,
        committed: bool,
        outcome: str = "released",
    ) -> None:
        """Tells the ledger of a batch that is over, and drops it from the window. For who ended it."""
        lease, told = batch.lease, None
        try:
            if error is not None:
                told = self._judge(batch, error)
            elif not committed:
                told = self._release(batch, outcome=outcome)
        except BaseException as crash:  # the lease runs out, and the batch goes to others
            self.child.recorder.crash(
                "end_failed", crash, batch_id=lease.batch_id, attempt=lease.attempt
            )
        finally:
            batch.work = None
            self.child.window.remove(batch)
            self.child.recorder.batch_ended(told)

    def pause_job(self, lease: Lease, error: Exception) -> None:
        """Pauses the job: no child claims more of it until a person has repaired what `error` says."""
        refused = "output_refused" if isinstance(error, OutputRefused) else "engine_refused"
        self.child.recorder.problem(refused, job_id=lease.job_id, error=str(error))
        # The job may be over, or the ledger away for good.
        with suppressed(NightshiftError, self.child.recorder, "pause_failed", job_id=lease.job_id):
            self.child.ledger.transact(jobs.pause, lease.job_id, error)

    def remark(self, job: KnownJob, message: str | None) -> None:
        """Tells the ledger what the engine has to say of a job, once in a child."""
        if message is None or job.remarked:
            return
        job.remarked = True
        # The user does not need the remark. The batch is committed next, so a failed write of the remark must
        # not stop that.
        with suppressed(NightshiftError, self.child.recorder, "remark_failed", job_id=job.id):
            self.child.ledger.transact(jobs.remark, job.id, kept_message(message))

    def _judge(self, batch: HeldBatch, error: BaseException) -> str | None:
        lease = batch.lease
        match error:
            case LeaseLost():
                # A job that is over refuses the commit of a lease that still holds.
                self._release(batch)
                return self._lost(lease)
            case EngineDead():
                self._report_last(lease)
                self.child.engine_died(str(error))
                return None
            case EngineEnded():
                # The batch counts as lost. Otherwise it would end one engine after another.
                with suppressed(
                    Retryable, self.child.recorder, "lose_failed", batch_id=lease.batch_id
                ):
                    self._transact_and_report(lease, leasing.lose, lease, error)
                    return "lost"
                return None
            case OutputRefused():
                # Pause the job first, then release the batch: a sibling would claim a released batch of a
                # running job.
                self.pause_job(lease, error)
                return self._release(batch, error)
            case JobRefused() | NeedsOtherEngine():
                # End or change the job first, then release the batch: a sibling would claim a released batch
                # of a running job.
                self.child.recorder.problem("job_refused", job_id=lease.job_id, error=str(error))
                key = self.jobs.get(lease.job_id).spec.engine_key
                with suppressed(
                    Retryable, self.child.recorder, "fail_failed", batch_id=lease.batch_id
                ):
                    self.child.ledger.transact(refuse_job, lease.job_id, key, error)
                return self._release(batch)
            case StorageUnavailable() | LedgerUnavailable() | EngineUnavailable() | StageHung():
                # An outage is nobody's fault: the batch is not charged for it.
                return self._release(batch, error)
            case NightshiftError():
                return self._fail(lease, error)
            case _:
                self.child.recorder.crash(
                    "batch_crashed", error, batch_id=lease.batch_id, attempt=lease.attempt
                )
                return self._fail(lease, error)

    def _lost(self, lease: Lease) -> str:
        self.child.recorder.lease_lost(lease.batch_id, lease.attempt)
        return "lost"

    def _release(
        self, batch: HeldBatch, outage: Exception | None = None, *, outcome: str = "released"
    ) -> str | None:
        """Waits for the ledger: a lease that runs out is charged as a loss. Once the ledger is
        given up, the supervisor's report of this child's end releases the lease.
        """
        lease, unsent = batch.lease, batch.withdraw_unsent()
        if outage is not None:
            self.child.recorder.problem("outage", batch_id=lease.batch_id, error=str(outage))
            tell_wait(self.child.recorder, lease.job_id, outage)
        if isinstance(outage, LedgerUnavailable) and self.child.ledger.given_up.is_set():
            return None
        with suppressed(Retryable, self.child.recorder, "release_failed", batch_id=lease.batch_id):
            if outage is None:
                self._transact_and_report(lease, leasing.release, [lease], unsent=unsent)
            else:
                hung = isinstance(outage, StageHung)
                self._transact_and_report(
                    lease, _release_after, lease, outage, hung=hung, unsent=unsent
                )
            return outcome
        return None

    def _fail(self, lease: Lease, error: BaseException) -> str | None:
        self.child.recorder.problem(
            "batch_failed", batch_id=lease.batch_id, attempt=lease.attempt, error=str(error)
        )
        with suppressed(Retryable, self.child.recorder, "fail_failed", batch_id=lease.batch_id):
            try:
                self._transact_and_report(
                    lease,
                    failures.fail,
                    lease,
                    error,
                    permanent=isinstance(error, Permanent),
                    max_attempts=self._max_attempts(lease),
                    backoff_seconds=random.uniform(0.5, 1.5),
                )
            except LeaseLost:
                return self._lost(lease)
            return "failed"
        return None

    def _transact_and_report(
        self,
        lease: Lease,
        statement: Callable[Concatenate[Connection, P], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Ends a lease, and reports in the same transaction what the child has spent."""

        def both(connection: Connection) -> None:
            statement(connection, *args, **kwargs)
            spent = self.child.window.spent(lease.job_id, {lease.batch_id})
            spending.report(connection, lease.owner, spent)

        self.child.ledger.transact(both)

    def _report_last(self, lease: Lease) -> None:
        """Reports what the child has spent: the child ends before its next beat."""
        with (
            suppressed(Retryable, self.child.recorder, "report_failed", job_id=lease.job_id),
            self.child.ledger.transaction() as connection,
        ):
            spending.report(connection, lease.owner, self.child.window.spent())

    def _max_attempts(self, lease: Lease) -> int:
        try:
            return self.jobs.get(lease.job_id).spec.retry.max_attempts
        except Exception:  # a spec that this code cannot read is a reason to fail, too
            return DEFAULT_MAX_ATTEMPTS


def refuse_job(
    connection: Connection, job_id: int, engine_key: str, error: JobRefused | NeedsOtherEngine
) -> None:
    """What becomes of a job of which its engine runs no row: another engine, or the end as failed."""
    reason: Exception = error
    if isinstance(error, NeedsOtherEngine):
        try:
            job_changes.change_engine(connection, job_id, engine_key, error.engine_args, error)
        except BadInput as refused:
            reason = refused
        else:
            return
    jobs.fail(connection, job_id, reason)


def _release_after(
    connection: Connection, lease: Lease, error: Exception, *, hung: bool, unsent: RowRanges
) -> None:
    """An outage ends for all batches at once; a batch that hangs may hang each time."""
    before = leasing.released_before(connection, lease, error) if hung else 0
    pause = pause_seconds(before)
    leasing.release(connection, [lease], error=error, pause_seconds=pause, unsent=unsent)
