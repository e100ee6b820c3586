"""Commits batches behind their fences: those of several threads in one transaction, a split in its own."""

import dataclasses
from collections.abc import Iterator, Sequence, Set
from itertools import islice

from nightshift.common.errors import LeaseLost, Retryable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.group_commit import GroupCommit
from nightshift.common.ledger.batches import commits, splits
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import spending
from nightshift.worker.child_context import ChildContext
from nightshift.worker.publish.publication import Commit, Publication

GROUP_BATCHES = 32
"""Batches in one commit at most, so that its transaction stays short."""

ERRORS_A_COMMIT = 5_000
"""Row errors in one commit, about. The batches are locked until their errors are written, and the
heartbeat that renews their leases waits for them no longer than LOCK_SECONDS. A batch that alone
has more errors is committed alone, and its errors are written before it is locked."""


class BatchCommits:
    """The commits of one child. For many threads at once."""

    def __init__(self, child: ChildContext) -> None:
        self._child = child
        self._commits: dict[int, GroupCommit[list[Commit], list[bool | Exception]]] = {}
        self._for_commit = child.ledger.retrying(Retryable)

    def commit(self, group: Sequence[Publication]) -> None:
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
                self._count(each)
            except LeaseLost as error:
                each.error = error

    def commits_of(self, job_id: int) -> GroupCommit[list[Commit], list[bool | Exception]]:
        """The group commit of a job. Each job has its own: a thread that holds a batch of one job then
        delays no commit of another job. A leader takes at most the batches that a child holds (MOST_BATCHES).
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
            [result for group in groups(finished) for result in self._commit_group(group)]
        )
        return [list(islice(results, len(request))) for request in requests]

    def _commit_group(self, group: Sequence[Commit]) -> Sequence[bool | Exception]:
        try:
            with self._child.ledger.transaction() as connection:
                held = _commit(connection, group)
                self._report(connection, group, held)
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
                splits.split(connection, lease, each.kept_rows, part, each.unsent)
                self._report(connection, [(lease, part)], {(lease.batch_id, lease.attempt)})
                reached(Moment.COMMITTING)
        except LeaseLost:
            self._read_back(lease)
        self._count(each)

    def _report(
        self, connection: Connection, group: Sequence[Commit], held: Set[tuple[int, int]]
    ) -> None:
        """Reports what the child has spent on the job of leases that end now, with the answers of those that
        are `held`: this transaction commits them.
        """
        lease, _ = group[0]
        [spent] = self._child.window.spent(lease.job_id, {lease.batch_id for lease, _ in group})
        own = [part.answered for lease, part in group if (lease.batch_id, lease.attempt) in held]
        spent = dataclasses.replace(spent, answered=sum(own, spent.answered))
        spending.report(connection, lease.owner, [spent])

    def _count(self, each: Publication) -> None:
        """A batch is committed: once that is known, every later report has its answers."""
        lease, part = each.commit()
        self._child.window.spending.answered(lease.job_id, part.answered)
        each.committed = True

    def _read_back(self, lease: Lease) -> None:
        """Where a fence does not match, our own earlier COMMIT may be why; else raises LeaseLost."""
        with self._child.ledger.transaction() as connection:
            if not commits.is_committed(connection, lease):
                raise lease.lost


def _commit(connection: Connection, group: Sequence[Commit]) -> frozenset[tuple[int, int]]:
    """The (batch id, attempt) pairs of those whose fence matched. Raises LeaseLost for a batch that
    is alone because of its row errors.
    """
    lease, part = group[0]
    if len(part.errors) <= ERRORS_A_COMMIT:
        return commits.commit(connection, group)
    commits.commit_large(connection, lease, part)
    return frozenset({(lease.batch_id, lease.attempt)})


def groups(finished: Sequence[Commit]) -> Iterator[list[Commit]]:
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
