"""Publishes finished batches: writes their parts, commits them, moves them to their place."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import LeaseLost, Retryable, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_rows
from nightshift.common.formats.part_names import final, part_name, staged
from nightshift.common.group_commit import GroupCommit
from nightshift.common.ledger.batches import commits, splits
from nightshift.common.ledger.batches.records import Lease, Part
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.spec import JobSpec
from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import HeldBatch, Move
from nightshift.worker.outages import suppressed, tell_wait
from nightshift.worker.rows.results import PartTable
from nightshift.worker.telemetry.recorder import BatchCommitted

Commit = tuple[Lease, Part]

GROUP_BATCHES = 32
"""Batches in one commit at most, so that its transaction stays short."""

ERRORS_A_COMMIT = 5_000
"""Row errors in one commit, about. The batches are locked until their errors are written, and the
heartbeat that renews their leases waits for them no longer than LOCK_SECONDS. A batch that alone
has more errors is committed alone, and its errors are written before it is locked."""

WRITE_RETRY_SECONDS = 60.0
"""How long a part is tried again on a failing store before its batch is given back."""


@dataclass(slots=True)
class Publication:
    """A batch whose rows are finished, and what becomes of it.

    `lease` is that of the batch, narrowed where only some rows of a retry are finished. `bare` says
    that the job's columns are not known yet. With `kept_rows` only those rows are kept and the rest
    is split off. `encoded` are the bytes of the part, which are made once, however often the store
    refuses them. In the end the batch is `committed`, or `error` says why not: LeaseLost when the
    batch belongs to somebody else, StorageUnavailable or LedgerUnavailable when it was given up.
    """

    batch: HeldBatch
    lease: Lease
    spec: JobSpec
    table: PartTable
    provenance: dict[str, str]
    kept_rows: RowRanges | None = None
    bare: bool = False
    encoded: pa.Buffer | None = None
    part: Part | None = None
    committed: bool = False
    error: Exception | None = None

    def commit(self) -> Commit:
        """What the ledger commits: the lease, and the part that was written."""
        assert self.part is not None
        return self.lease, self.part


class Publisher:
    """Writes and commits the batches of one child. For many threads at once."""

    def __init__(self, child: ChildContext) -> None:
        self._child = child
        self._commits: dict[int, GroupCommit[list[Commit], list[bool | Exception]]] = {}
        self._for_commit = child.ledger.retrying(Retryable)
        self._for_store = child.ledger.retrying(StorageUnavailable, WRITE_RETRY_SECONDS)

    def publish(self, group: Sequence[Publication]) -> None:
        """Writes, commits and moves the part of each batch; all are of one job."""
        with self._child.recorder.span(Stage.WRITE) as span:
            written = self._written(group)
            span.count = len(written)
        self._commit_and_move(written)
        for each in group:
            if each.part is None and isinstance(each.error, StorageUnavailable):
                self._publish_late(each)

    def _publish_late(self, each: Publication) -> None:
        """Tries a part that the store refused again, after the others of its group are committed."""

        def write() -> None:
            each.error = None
            self._written([each])
            if each.error is not None:
                tell_wait(self._child.recorder, each.lease.job_id, each.error)
                raise each.error

        try:
            with self._child.recorder.span(Stage.WRITE):
                self._for_store(write)
        except Exception as error:
            each.error = error
        else:
            self._commit_and_move([each])

    def _written(self, group: Sequence[Publication]) -> list[Publication]:
        """The batches whose part is durable now; the others have an error."""
        written = []
        try:
            with group[0].batch.progress.stage() as moved, storage.gathered_syncs():
                for each in group:
                    try:
                        each.part = _stored(each)
                        written.append(each)
                    except Exception as error:
                        each.error = error
                    moved()
        except StorageUnavailable as error:
            for each in written:
                each.part, each.error = None, error
            return []
        return written

    def _commit_and_move(self, group: Sequence[Publication]) -> None:
        if not group:
            return
        for _ in group:
            reached(Moment.WRITTEN)
        with self._child.recorder.span(Stage.COMMIT) as span:
            self._charge_and_commit(group)
            done = [each for each in group if each.committed]
            span.count = len(done)
        for each in done:
            each.batch.move(Move.COMMIT)
            self._child.recorder.went_on(outages.Kind.STORAGE, each.lease.job_id)
            self._tell_commit(each)
        for each in group:
            if isinstance(each.error, LeaseLost):
                self._discard(each)
        if not done:
            return
        for _ in done:
            reached(Moment.COMMITTED)
        with self._child.recorder.span(Stage.SETTLE, len(done)):
            self._finish(done)

    def _tell_commit(self, each: Publication) -> None:
        lease, part = each.commit()
        rows = lease.todo if each.kept_rows is None else each.kept_rows
        ran = None if lease.redo is None else set(rows)
        errors = [error for error in part.errors if ran is None or error.row_index in ran]
        self._child.recorder.batch_committed(
            BatchCommitted(
                lease.batch_id,
                lease.attempt,
                part_rows=len(each.table.table),
                part_errors=len(part.errors),
                rows=len(rows),
                rows_failed=len(errors),
                prompt_tokens=part.tokens_spent.prompt,
                output_tokens=part.tokens_spent.output,
                cached_tokens=each.table.cached_tokens,
                rows_shared=each.table.rows_shared,
                reasoning_tokens=each.table.reasoning_tokens,
                seconds=time.monotonic() - each.batch.claimed_at,
                whole=each.kept_rows is None,
            )
        )

    def _charge_and_commit(self, group: Sequence[Publication]) -> None:
        """Commits each batch behind its own fence, in one transaction with what other threads
        commit at this moment. A split, which is rare, has its own transaction. The attempt of
        the first of the group accounts for the engine time of the job since its last commit.
        """
        first = group[0]
        lease, part = first.commit()
        spent = self._child.window.spending.take(lease.job_id)
        first.part = dataclasses.replace(part, engine_microseconds=spent)
        whole = [each for each in group if each.kept_rows is None]
        partly = [(self._split, [each]) for each in group if each.kept_rows is not None]
        for commit, batches in ((self._commit_whole, whole), *partly):
            try:
                self._for_commit(commit, batches)
            except Exception as error:
                for each in batches:
                    if not each.committed:
                        each.error = each.error or error
        if not first.committed:
            self._child.window.spending.give_back(lease.job_id, spent)

    def _commit_whole(self, group: Sequence[Publication]) -> None:
        undecided = [each for each in group if each.error is None and not each.committed]
        if not undecided:
            return
        commits_of_job = self.commits_of(undecided[0].lease.job_id)
        results = commits_of_job.submit([each.commit() for each in undecided])
        for each, result in zip(undecided, results, strict=True):
            if isinstance(result, Exception):
                each.error = result
                continue
            try:
                if not result:
                    self._read_back(each.lease)
                each.committed = True
            except LeaseLost as error:
                each.error = error

    def commits_of(self, job_id: int) -> GroupCommit[list[Commit], list[bool | Exception]]:
        """The group commit of a job. Each job has its own: who holds a batch of one job then delays
        no commit of another. What one leader takes is bounded by what a child holds (MOST_BATCHES).
        """
        # Threads that come for one job at the same time share what the first of them made.
        return self._commits.get(job_id) or self._commits.setdefault(
            job_id, GroupCommit(self._commit_all, GROUP_BATCHES)
        )

    def _commit_all(self, requests: Sequence[list[Commit]]) -> list[list[bool | Exception]]:
        """Commits the batches of several threads, in as many transactions as they need. After an
        outage in a later transaction, the batches of the earlier ones are read back.
        """
        finished = [each for request in requests for each in request]
        results = iter(
            [result for group in _groups(finished) for result in self._commit_group(group)]
        )
        return [list(islice(results, len(request))) for request in requests]

    def _commit_group(self, group: Sequence[Commit]) -> Sequence[bool | Exception]:
        try:
            with self._child.ledger.transaction() as connection:
                held = _commit(connection, group)
                self._report(connection, [lease for lease, _ in group])
                if held:  # else no batch depends on the COMMIT
                    reached(Moment.COMMITTING)
        except Retryable:
            raise
        except LeaseLost:
            return [False]
        except Exception as error:
            if len(group) == 1:
                return [error]
            # An error of one batch must not fail the others.
            return [self._commit_group([each])[0] for each in group]
        return [(lease.batch_id, lease.attempt) in held for lease, _ in group]

    def _split(self, group: Sequence[Publication]) -> None:
        [each] = group
        assert each.kept_rows is not None
        lease, part = each.commit()
        try:
            with self._child.ledger.transaction() as connection:
                splits.split(connection, lease, each.kept_rows, part)
                self._report(connection, [lease])
                reached(Moment.COMMITTING)
        except LeaseLost:
            self._read_back(lease)
        each.committed = True

    def _report(self, connection: Connection, leases: Sequence[Lease]) -> None:
        """Reports what the child has spent on the job of leases that end now."""
        spent = self._child.window.spent(leases[0].job_id, {lease.batch_id for lease in leases})
        spending.report(connection, leases[0].owner, spent)

    def _read_back(self, lease: Lease) -> None:
        """Where a fence does not match, our own earlier COMMIT may be why; else raises LeaseLost."""
        with self._child.ledger.transaction() as connection:
            if not commits.is_committed(connection, lease):
                raise lease.lost

    def _discard(self, each: Publication) -> None:
        """Removes the part of an attempt whose lease was lost: nobody else writes under its name,
        and nobody sweeps any more once the job is closed.
        """
        _, part = each.commit()
        stage = each.batch.progress.stage()
        with stage, suppressed(Exception, self._child.recorder, "discard_failed", part=part.name):
            storage.delete(staged(each.spec.output.uri, part.name))

    def _finish(self, group: Sequence[Publication]) -> None:
        """What follows a commit. Should this child die before, the reaper's finish does the same."""
        stage = group[0].batch.progress.stage()
        failure = suppressed(Exception, self._child.recorder, "settle_failed")
        with failure, stage as moved, storage.gathered_syncs():
            for each in group:
                self._move(each)
                moved()
        if any(each.table.errors for each in group):
            self._judge(group[0].lease.job_id)

    def _move(self, each: Publication) -> None:
        lease, part = each.commit()
        uri = each.spec.output.uri
        with suppressed(Exception, self._child.recorder, "settle_failed", batch_id=lease.batch_id):
            storage.move(staged(uri, part.name), final(uri, part.name), part.bytes)
            reached(Moment.MOVED)
            if lease.kept_part is not None:
                storage.delete(final(uri, lease.kept_part))

    def _judge(self, job_id: int) -> None:
        with suppressed(Exception, self._child.recorder, "judge_failed", job_id=job_id):
            with self._child.ledger.transaction() as connection:
                paused = jobs.judge_failures(connection, job_id)
            if paused:
                self._child.recorder.problem("job_paused", job_id=job_id, why="of its failed rows")


def _commit(connection: Connection, group: Sequence[Commit]) -> frozenset[tuple[int, int]]:
    """The (batch id, attempt) pairs of those whose fence matched. Raises LeaseLost for a batch that
    is alone because of its row errors.
    """
    lease, part = group[0]
    if len(part.errors) <= ERRORS_A_COMMIT:
        return commits.commit(connection, group)
    commits.commit_large(connection, lease, part)
    return frozenset({(lease.batch_id, lease.attempt)})


def _stored(each: Publication) -> Part:
    lease, output, table = each.lease, each.spec.output, each.table
    if each.encoded is None:
        each.encoded = part_rows.encode_part(table.table, output.format, each.provenance)
    split_id = None if lease.is_root else lease.batch_id
    name = part_name(lease.seq, split_id, lease.attempt, output.format, bare=each.bare)
    facts = part_rows.write_encoded(staged(output.uri, name), each.encoded)
    tokens = table.prompt_tokens, table.output_tokens
    return Part(name, facts.bytes, facts.checksum, *tokens, table.errors, table.spent)


def _groups(finished: Sequence[Commit]) -> Iterator[list[Commit]]:
    """What one transaction commits: at most GROUP_BATCHES, with at most ERRORS_A_COMMIT row errors
    unless it is a single batch.
    """
    group: list[Commit] = []
    errors = 0
    for lease, part in finished:
        full = len(group) == GROUP_BATCHES or errors + len(part.errors) > ERRORS_A_COMMIT
        if group and full:
            yield group
            group, errors = [], 0
        group.append((lease, part))
        errors += len(part.errors)
    yield group
