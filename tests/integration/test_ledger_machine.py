"""The ledger as a state machine: two connections, transactions left open between the steps.

One process plays every actor, so a step may meet the locks of a transaction that an earlier step
left open. Such a step gives up after some milliseconds, as a real one would after seconds, and is
rolled back. What each step may do is foretold from what its own connection sees; what all of them
did is judged after each step from outside, by a third connection, against a model in Python that
learns of a transaction only when it commits.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import namedtuple_row

from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.errors import BadInput, LeaseLost, Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import (
    claims,
    commits,
    dispatch,
    failures,
    leasing,
    records,
    retries,
    splits,
)
from nightshift.common.ledger.batches.records import Claimant, Lease, Part, Tokens
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.connection import Connection, RowRangesLoader
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import (
    job_end,
    job_submit,
    jobs,
    spending,
)
from nightshift.common.ledger.jobs.spending import Spent
from nightshift.common.row_errors import RowError
from nightshift.common.spec import parse_spec
from nightshift.common.states import JOB_MOVES, JobState, RowErrorKind
from tests.support.fleet import commit_one
from tests.support.world import close, finishable

LOCK_TIMEOUT_MS = 10
"""Nobody else runs here, so a lock that is not free at once stays taken."""

MAX_ATTEMPTS = 2
WORKERS = ("worker-1", "worker-2")
KINDS = (None, None, RowErrorKind.TRUNCATED, RowErrorKind.REFUSED, RowErrorKind.BATCH_DEAD)
TABLES = [
    "job_counters",
    "job_spending",
    "row_errors",
    "attempts",
    "batches",
    "input_files",
    "workers",
    "holds",
    "jobs",
]

BATCHES = """
    SELECT b.id, b.job_id, b.parent_id, b.state, b.attempt, b.owner, b.rank, b.rows, b.row_count,
           b.redo, b.redo_count, b.losses, b.part_name, b.rows_failed, b.prompt_tokens,
           b.lease_expires_at IS NOT NULL AS expires,
           coalesce(b.lease_expires_at < now(), false) AS expired,
           j.state AS job_state, j.priority
    FROM batches b JOIN jobs j ON j.id = b.job_id ORDER BY b.id
"""
COUNTED = (
    "rows_total",
    "rows_done",
    "rows_failed",
    "batches_pending",
    "batches_queued",
    "batches_leased",
    "batches_done",
    "batches_dead",
    "prompt_tokens",
    "rows_queued",
    "rows_leased",
)
COUNTERS = f"""
    SELECT job_id, {", ".join(f"sum({name})::bigint AS {name}" for name in COUNTED)}
    FROM job_counters GROUP BY job_id
"""

SPENT = """
    SELECT worker_id, job_id, engine_microseconds, rows_run, prompt_tokens, output_tokens, rows_open
    FROM job_spending
"""

connections = st.sampled_from(("a", "b"))
ends = st.sampled_from(("left open", "left open", "committed", "committed", "rolled back"))


@dataclass
class Open:
    """A transaction in progress, and what the model learns when it commits."""

    manager: AbstractContextManager[Connection]
    connection: Connection
    journal: list[Callable[[], None]] = field(default_factory=list)
    committed: set[tuple[int, int]] = field(default_factory=set)
    steps: int = 0


class LedgerMachine(RuleBasedStateMachine):
    """Workers, reapers and users at work on two small jobs."""

    def __init__(self, ledgers: dict[str, Ledger], observer: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.ledgers = ledgers
        self.observer = observer
        self.open: dict[str, Open] = {}
        self.leases: list[Lease] = []
        self.jobs: list[int] = []
        self.rows: dict[int, set[int]] = {}
        self.answers: dict[tuple[int, int], tuple[str, bool]] = {}
        self.committed: Counter[tuple[int, int]] = Counter()
        self.drained: set[tuple[int, int]] = set()
        self.swept: set[tuple[int, int]] = set()
        self.last_attempt: dict[int, int] = {}
        self.part_numbers = count(1)
        self.spent: dict[tuple[str, int], list[Spent]] = {}
        self.charged: dict[tuple[str, int], Spent] = {}

    # How a step meets the database.

    @contextmanager
    def step(self, name: str, end: str, *, waits: bool = True) -> Iterator[Open]:
        """Runs in the open transaction of a connection, or begins one; `end` says what becomes
        of it. A step that meets a lock is rolled back, and may do so only where it may wait."""
        here = self.open.get(name) or self.begin(name)
        here.steps += 1
        try:
            yield here
        except Exception as error:
            del self.open[name]
            try:
                here.manager.__exit__(type(error), error, error.__traceback__)
            except Retryable as blocked:
                if not waits:
                    raise AssertionError("this must never wait for anybody") from blocked
                return
            raise
        if end != "left open":
            self.finish(name, committed=end == "committed")

    def begin(self, name: str) -> Open:
        manager = self.ledgers[name].transaction()
        connection = manager.__enter__()
        connection.exec_driver_sql(
            f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; "
            "SET LOCAL idle_in_transaction_session_timeout = '1min'"
        )
        self.open[name] = Open(manager, connection)
        return self.open[name]

    def finish(self, name: str, *, committed: bool) -> None:
        here = self.open.pop(name)
        if committed:
            here.manager.__exit__(None, None, None)
            for learn in here.journal:
                learn()
        else:
            here.connection.rollback()
            here.manager.__exit__(None, None, None)

    def others(self, here: Open) -> list[Open]:
        return [other for other in self.open.values() if other is not here]

    def seen(self, here: Open) -> dict[int, Any]:
        """Every batch as this transaction sees it."""
        return {row.id: row for row in here.connection.exec_driver_sql(BATCHES)}

    # What the fence must say.

    @staticmethod
    def holds(batch: Any, lease: Lease, states: tuple[str, ...]) -> bool:
        return (
            batch is not None
            and batch.attempt == lease.attempt
            and batch.owner == lease.owner
            and batch.state in states
        )

    @staticmethod
    def takes_commits(here: Open, job_id: int) -> bool:
        """A job that is over takes commits until a reaper finishes it."""
        statement = """
            SELECT state IN ('running', 'paused') OR (closed_at IS NULL AND finished_at > coalesce((
                SELECT max(until) FROM holds WHERE kind = 'finish' AND subject = %s), '-infinity'))
            FROM jobs WHERE id = %s
        """
        found = here.connection.exec_driver_sql(statement, (str(job_id), job_id))
        return bool(found.scalar_one())

    def refused(
        self, here: Open, lease: Lease, act: Callable[[], object], before: dict[int, Any]
    ) -> None:
        """A stale lease raises LeaseLost, changes nothing and reads back as what it did."""
        with pytest.raises(LeaseLost):
            act()
        assert self.seen(here) == before
        if commits.is_committed(here.connection, lease):
            key = (lease.batch_id, lease.attempt)
            assert key in self.drained | set(self.committed) | here.committed

    def part(
        self, lease: Lease, rows: RowRanges, errors: list[int], kept: Sequence[RowError] = ()
    ) -> Part:
        return Part(
            f"part-{lease.batch_id}-a{lease.attempt}-{next(self.part_numbers)}",
            10,
            "sum",
            len(rows),
            2,
            [
                RowError(
                    row,
                    None,
                    RowErrorKind.TRUNCATED if row % 2 else RowErrorKind.REFUSED,
                    "cut",
                )
                for row in errors
            ]
            + list(kept),
            Tokens(len(lease.todo), 1),
            engine_microseconds=10 + len(lease.todo),
        )

    def answered(self, job_id: int, rows: RowRanges, part: Part) -> Callable[[], None]:
        failed = {error.row_index for error in part.errors}

        def learn() -> None:
            for row in rows:
                self.answers[job_id, row] = (part.name, row in failed)

        return learn

    def pick(self, before: dict[int, Any], number: int, stale: bool) -> Lease:
        """A lease that was handed out: one that still holds if there is any, or whichever."""
        holding = [
            lease
            for lease in self.leases
            if self.holds(before.get(lease.batch_id), lease, ("leased",))
        ]
        among = self.leases if stale or not holding else holding
        return among[number % len(among)]

    def forgotten(self, rows: list[tuple[int, int]]) -> Callable[[], None]:
        def learn() -> None:
            for row in rows:
                self.answers.pop(row, None)

        return learn

    # The steps.

    @initialize(
        first=st.lists(st.integers(1, 5), min_size=1, max_size=4),
        second=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        urgent=st.booleans(),
        suspect=st.booleans(),
    )
    def submit(self, first: list[int], second: list[int], urgent: bool, suspect: bool) -> None:
        for number, sizes in enumerate((first, second)):
            spec = parse_spec(
                {
                    "name": "tested",
                    "input": {"uri": "rows.parquet"},
                    "task": {"kind": "function"},
                    "engine": {"backend": "function", "callable": "rules:shout"},
                    "output": {"uri": f"out-{number}"},
                    "priority": number if urgent else 0,
                },
                "here",
            )
            file = SourceFile("rows.parquet", "parquet", 1, "1", sum(sizes), 0)
            edges = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
            descriptors = [
                Descriptor(file, RowRanges.of((start, stop))) for start, stop in pairwise(edges)
            ]
            new = job_submit.NewJob(spec, f"{number}", "s", f"out-{number}", b"", None)
            with self.ledgers["a"].transaction() as connection:
                job_id = job_submit.insert(connection, new, [file])
                job_submit.insert_batches(connection, job_id, [file], descriptors)
            self.jobs.append(job_id)
            self.rows[job_id] = set(range(sum(sizes)))
        # The first claim of a job writes its start, which takes the job's row.
        self.observer.execute("UPDATE jobs SET started_at = now()")
        if suspect:
            self.observer.execute("UPDATE batches SET losses = 2 WHERE job_id = %s", (job_id,))
        self.claimants = {
            owner: Claimant(owner, "default", spec.engine_key, "function", "1") for owner in WORKERS
        }
        for job in range(len(self.jobs)):
            self.admit("a", "committed", job, 2)
        self.claim("a", "committed", WORKERS[0], 30, 5, 2, True)
        self.claim("b", "committed", WORKERS[1], -1, 5, 2, True)

    def admit(self, name: str, end: str, job: int, limit: int) -> None:
        job_id = self.jobs[job]
        with self.step(name, end, waits=False) as here:
            before = self.seen(here)
            moved = dispatch.admit(
                here.connection, job_id, limit, dispatch.next_rank(here.connection)
            )
            waiting = [b for b in before.values() if b.job_id == job_id and b.state == "pending"]
            running = self.job_state(here, job_id) is JobState.RUNNING
            assert moved <= min(limit, len(waiting)) * running
            if running and here.steps == 1 and not self.others(here):
                assert moved == min(limit, len(waiting))

    def claim(
        self, name: str, end: str, owner: str, seconds: float, room: int, most: int, idle: bool
    ) -> None:
        with self.step(name, end, waits=False) as here:
            before = self.seen(here)
            claimed = claims.claim(
                here.connection,
                self.claimants[owner],
                room_rows=room,
                max_batches=most,
                idle=idle,
                woken="poll",
                lease_seconds=seconds,
            )
            self.leases.extend(claimed)
            for lease in claimed:
                batch = before[lease.batch_id]
                assert (batch.state, batch.job_state) == ("queued", "running")
                assert (lease.attempt, lease.owner) == (batch.attempt + 1, owner)
                assert lease.descriptor.rows == batch.rows
                assert not lease.alone or (idle and len(claimed) == 1)
            if not self.others(here):
                assert [lease.batch_id for lease in claimed] == claimable(
                    before.values(), room, most, idle
                )

    def admit_and_claim(self, name: str, end: str, admitted: int, **claimed: Any) -> None:
        for job in range(len(self.jobs)):
            self.admit(name, "left open", job, admitted)
        self.claim(name, end, **claimed)

    def renew(self, name: str, end: str, picked: list[int], seconds: float) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            some = [self.pick(before, number, stale=number % 3 == 0) for number in picked]
            owner = some[0].owner
            pairs = [(lease.batch_id, lease.attempt) for lease in some]
            renewal = leasing.renew(here.connection, owner, pairs, seconds)
            held = {
                (batch.id, batch.attempt): batch.job_state
                for batch in before.values()
                if batch.state == "leased" and batch.owner == owner
            }
            assert renewal.held == set(held) & set(pairs)
            # No job has been over for a lease, unless the lease had run out when it was renewed.
            over = {key for key in renewal.held if held[key] in OVER}
            assert renewal.ended | renewal.unwanted == over
            assert (renewal.unwanted if seconds > 0 else renewal.ended) == frozenset()

    def errors_beside(
        self, here: Open, job_id: int, rows: RowRanges, redo: RowRanges
    ) -> list[RowError]:
        """The errors of rows that are not run now, as their lines in the old part have them."""
        beside = set(rows) - set(redo)
        found = here.connection.exec_driver_sql(
            "SELECT row_index, kind FROM row_errors WHERE job_id = %s", (job_id,)
        )
        return [
            RowError(row.row_index, None, RowErrorKind(row.kind), "kept")
            for row in found
            if row.row_index in beside
        ]

    def commit(self, name: str, end: str, number: int, stale: bool, mask: int, some: int) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            lease = self.pick(before, number, stale)
            batch: Any = before.get(lease.batch_id)
            if lease.redo is not None and some and bits(some, lease.todo):
                lease = lease.narrowed(RowRanges.from_indices(bits(some, lease.todo)))
            kept = self.errors_beside(here, lease.job_id, lease.descriptor.rows, lease.todo)
            part = self.part(lease, lease.descriptor.rows, bits(mask, lease.todo), kept)
            in_time = ("leased", "pending", "queued")
            if batch is not None and batch.job_state in OVER:
                in_time = ("leased",) if self.takes_commits(here, lease.job_id) else ()
            if not self.holds(batch, lease, in_time):
                self.refused(here, lease, lambda: commit_one(here.connection, lease, part), before)
                self.compute(here, lease, len(lease.todo), number)
                return
            commit_one(here.connection, lease, part)
            self.compute(here, lease, len(lease.todo), number)
            assert commits.is_committed(here.connection, lease)
            key = (lease.batch_id, lease.attempt)
            here.journal.append(self.answered(lease.job_id, lease.descriptor.rows, part))
            here.journal.append(self.forgotten([(lease.job_id, row) for row in lease.later]))
            here.journal.append(lambda: self.name_part(self.count_commit, key))
            here.committed.add(key)

    def compute(self, here: Open, lease: Lease, rows: int, number: int) -> None:
        """The child of a lease has run rows, and reports what it has spent since it began. Now and
        then an older report comes after a newer one.
        """
        key = (lease.owner, lease.job_id)
        totals = self.spent.setdefault(key, [Spent(lease.job_id, 0, 0, 0, 0)])
        then = totals[-1]
        totals.append(
            replace(
                then,
                engine_microseconds=then.engine_microseconds + 10,
                rows_run=then.rows_run + rows,
                prompt_tokens=then.prompt_tokens + 2 * rows,
                output_tokens=then.output_tokens + 1,
                rows_open=rows,
            )
        )
        told = totals[-2] if number % 5 == 0 else totals[-1]
        spending.report(here.connection, lease.owner, [told])

        def learn() -> None:
            before = self.charged.get(key, told)
            now = {name: max(getattr(before, name), getattr(told, name)) for name in TOTALS}
            self.charged[key] = replace(told, **now)

        here.journal.append(learn)

    def count_commit(self, key: tuple[int, int]) -> None:
        self.committed[key] += 1

    def name_part(self, learn: Callable[[tuple[int, int]], None], key: tuple[int, int]) -> None:
        """An attempt is committed, so its part must still be there."""
        assert key not in self.swept, "a part was removed, and its attempt committed afterwards"
        learn(key)

    def split(self, name: str, end: str, number: int, stale: bool, mask: int) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            lease = self.pick(before, number, stale)
            rows = RowRanges.from_indices(bits(mask, lease.descriptor.rows))
            if not 0 < len(rows) < len(lease.descriptor.rows):
                return
            part = self.part(lease, rows, list(rows)[: mask % 3])
            batch: Any = before.get(lease.batch_id)
            if (
                not self.holds(batch, lease, ("leased",))
                or batch.redo is not None
                or not self.takes_commits(here, lease.job_id)
            ):
                self.refused(
                    here, lease, lambda: splits.split(here.connection, lease, rows, part), before
                )
                return
            splits.split(here.connection, lease, rows, part)
            self.compute(here, lease, len(rows), number)
            assert commits.is_committed(here.connection, lease)
            key = (lease.batch_id, lease.attempt)
            here.journal.append(self.answered(lease.job_id, rows, part))
            here.journal.append(lambda: self.name_part(self.drained.add, key))
            here.committed.add(key)

    def release(self, name: str, end: str, picked: list[int]) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            mine = [self.pick(before, number, stale=number % 3 == 0) for number in picked]
            leasing.release(here.connection, mine)
            self.compute(here, mine[0], 1, picked[0])
            after = self.seen(here)
            held = {
                lease.batch_id
                for lease in mine
                if self.holds(before.get(lease.batch_id), lease, ("leased",))
            }
            for batch_id, batch in before.items():
                if batch_id in held:
                    assert after[batch_id].state == "pending"
                    assert after[batch_id].losses == batch.losses
                else:
                    assert after[batch_id] == batch

    def fail(self, name: str, end: str, number: int, stale: bool, permanent: bool) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            lease = self.pick(before, number, stale)

            def act() -> None:
                failures.fail(
                    here.connection,
                    lease,
                    "no",
                    permanent=permanent,
                    max_attempts=MAX_ATTEMPTS,
                    backoff_seconds=0,
                )

            if self.holds(before.get(lease.batch_id), lease, ("leased",)):
                act()
            else:
                self.refused(here, lease, act, before)

    def reap(self, name: str, end: str) -> None:
        with self.step(name, end, waits=False) as here:
            before = self.seen(here)
            reaped = leasing.reap(here.connection)
            expired = [batch for batch in before.values() if batch.expired]
            assert reaped <= len(expired)
            assert reaped == len(expired) or self.others(here)

    def child_ends(self, name: str, end: str, owner: str, died: bool) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            freed = workers.end(here.connection, owner, died="killed" if died else None)
            held = [b for b in before.values() if b.state == "leased" and b.owner == owner]
            assert freed == len(held)

    def halve(self, name: str, end: str, number: int) -> None:
        with self.step(name, end) as here:
            before = self.seen(here)
            batch = list(before.values())[number % len(before)]
            free = batch.state == "pending" and batch.row_count > 1 and batch.part_name is None
            wanted = batch.job_state not in OVER
            assert splits.halve(here.connection, batch.id) is (free and wanted)

    def control(self, name: str, end: str, job: int, act: str) -> None:
        job_id = self.jobs[job]
        with self.step(name, end) as here:
            state = self.job_state(here, job_id)
            to = {
                "pause": JobState.PAUSED,
                "resume": JobState.RUNNING,
                "fail": JobState.FAILED,
                "cancel": JobState.CANCELLED,
            }[act]
            allowed = to is state or (
                to in JOB_MOVES[state] and not (act == "resume" and state.over)
            )
            if act == "fail":
                jobs.fail(here.connection, job_id, "no engine")
            elif allowed:
                {"pause": jobs.pause, "resume": jobs.resume, "cancel": jobs.cancel}[act](
                    here.connection, job_id
                )
                assert self.job_state(here, job_id) is to
            else:
                with pytest.raises(BadInput):
                    {"pause": jobs.pause, "resume": jobs.resume, "cancel": jobs.cancel}[act](
                        here.connection, job_id
                    )

    def retry(self, name: str, end: str, job: int, failed: bool, kind: RowErrorKind | None) -> None:
        job_id = self.jobs[job]
        with self.step(name, end) as here:
            state = self.job_state(here, job_id)

            def act() -> Retried:
                return retries.retry(
                    here.connection, job_id, failed=failed, dead=not failed, kind=kind
                )

            if state is JobState.CANCELLED:
                with pytest.raises(BadInput):
                    act()
                return
            before = self.seen(here)
            listed = here.connection.exec_driver_sql(
                "SELECT row_index, kind, batch_id FROM failed_rows WHERE job = %s", (job_id,)
            ).all()

            def is_wanted(row: Any) -> bool:
                batch_state = before[row.batch_id].state
                if batch_state == "dead" and (not failed or kind is None):
                    return True
                if batch_state == "dead" and kind is not RowErrorKind.BATCH_DEAD:
                    return False
                return batch_state in ("done", "dead") and failed and kind in (None, row.kind)

            wanted = [row for row in listed if is_wanted(row)]
            done = act()
            assert done.rows == len(wanted)
            assert done.batches == len({row.batch_id for row in wanted})
            assert self.job_state(here, job_id) is done.state
            after = self.seen(here)
            for batch_id in {row.batch_id for row in wanted}:
                batch = after[batch_id]
                again = {row.row_index for row in wanted if row.batch_id == batch_id}
                assert batch.state == "pending"
                assert again == set(batch.redo or batch.rows)
            here.journal.append(self.forgotten([(job_id, row.row_index) for row in wanted]))

    def undo(self, name: str, end: str, job: int) -> None:
        job_id = self.jobs[job]
        with self.step(name, end) as here:
            over = self.job_state(here, job_id).over
            before = self.seen(here)
            waiting = [
                b
                for b in before.values()
                if b.job_id == job_id and b.state in WAITING and b.redo is not None
            ]
            undone = retries.undo(here.connection, job_id)
            assert undone == (len(waiting) if over else 0)
            if not undone:
                return
            stands = [(job_id, row, b.part_name) for b in waiting for row in b.redo]

            def learn() -> None:
                for job_id, row, part_name in stands:
                    self.answers[job_id, row] = (part_name, True)

            here.journal.append(learn)

    def bury(self, name: str, end: str, job: int) -> None:
        with self.step(name, end) as here:
            for row in failures.missing_error_parts(here.connection, self.jobs[job], 10):
                rows = row["rows"]
                redo = rows if row["redo"] is None else row["redo"]
                kept = self.errors_beside(here, row["job_id"], rows, redo)
                part = Part(
                    f"error-{next(self.part_numbers)}",
                    1,
                    "sum",
                    0,
                    0,
                    [RowError(index, None, RowErrorKind.BATCH_DEAD, "dead") for index in redo]
                    + kept,
                )
                assert failures.name_error_part(here.connection, row, part)
                here.journal.append(self.answered(row["job_id"], rows, part))

    def take_finishable(self, name: str, end: str) -> None:
        with self.step(name, end, waits=False) as here:
            before = self.seen(here)
            for job_id in finishable(here.connection):
                live = {b.state for b in before.values() if b.job_id == job_id} - {"split"}
                ended = self.job_state(here, job_id) in (JobState.CANCELLED, JobState.FAILED)
                assert "leased" not in live
                assert ended or live <= {"done", "dead"}

    def unqueue(self, name: str, end: str, limit: int) -> None:
        with self.step(name, end, waits=False) as here:
            before = self.seen(here).values()
            queued = [b for b in before if b.state == "queued" and b.job_state != "running"]
            left = [b for b in queued if b.job_state == "paused"]
            taken = dispatch.unqueue(here.connection, limit)
            assert taken <= min(limit, len(queued))
            if not self.others(here):
                # Of a job that was closed nothing is taken.
                assert taken >= min(limit, len(left))

    def sweep(self, name: str, end: str, job: int) -> None:
        """Finish takes the job, in a transaction of its own, then the owners, and what no attempt may commit any more
        is removed.
        """
        job_id = self.jobs[job]
        taken = self.observer.execute(
            """
            INSERT INTO holds (kind, subject, token, holder, until)
            SELECT 'finish', id::text, nextval('hold_tokens'), 'sweep', now() + interval '1 minute'
            FROM (SELECT id FROM jobs WHERE id = %s AND state IN ('cancelled', 'failed')
                  FOR UPDATE SKIP LOCKED) AS j
            ON CONFLICT (kind, subject) DO UPDATE SET until = excluded.until
            """,
            (job_id,),
        )
        if not taken.rowcount:
            return
        with self.step(name, end) as here:
            over = self.job_state(here, job_id).over
            owned = [
                b
                for b in self.seen(here).values()
                if b.job_id == job_id and b.state in WAITING and b.owner is not None
            ]
            owners = job_end.take_owners(here.connection, job_id, 100)
            assert owners == (len(owned) if over else 0)
            if job_end.open_work(here.connection, job_id).may_commit:
                return
            attempts = {
                (lease.batch_id, lease.attempt) for lease in self.leases if lease.job_id == job_id
            }
            removed = attempts - set(self.committed) - self.drained - here.committed
            here.journal.append(lambda: self.swept.update(removed))

    def close(self, name: str, end: str, job: int) -> None:
        job_id = self.jobs[job]
        with self.step(name, end) as here:
            before = [b for b in self.seen(here).values() if b.job_id == job_id]
            was = self.job_state(here, job_id)
            state = close(here.connection, job_id)
            live = {batch.state for batch in before} - {"split"}
            owned = any(b.state in WAITING and b.owner is not None for b in before)
            if owned or "leased" in live or (not was.over and live & {*WAITING}):
                assert state is None
            if was is JobState.CANCELLED:
                assert state in (None, was)
            elif state is JobState.COMPLETED:
                assert live == {"done"}
            elif state is JobState.FAILED:
                assert live != {"done"}
            assert state is None or self.job_state(here, job_id) is state

    def leases_run_out(self, name: str, end: str) -> None:
        self.observer.execute(
            """
            UPDATE batches SET lease_expires_at = now() - interval '1 minute' WHERE id IN (
                SELECT id FROM batches WHERE state = 'leased' FOR UPDATE SKIP LOCKED)
            """
        )

    # One rule with many arms: of several rules Hypothesis leaves most out of most runs, and a run
    # without claims would say little.

    @rule(name=connections, end=ends, act=st.deferred(lambda: any_act()))
    def somebody_acts(self, name: str, end: str, act: tuple[str, dict[str, Any]]) -> None:
        what, how = act
        getattr(self, what)(name, end, **how)

    def end_transaction(self, name: str, end: str) -> None:
        if name in self.open:
            self.finish(name, committed=end != "rolled back")

    # What must hold after each step, as everybody else sees it.

    @invariant()
    def the_ledger_tells_the_truth(self) -> None:
        if not self.jobs:
            return
        found = self.observer.execute(BATCHES).fetchall()
        live = [batch for batch in found if batch.state != "split"]
        self.rows_are_in_one_live_batch(found, live)
        self.counters_equal_rows(live)
        self.answers_stand_in_live_parts(live)
        self.attempts_fit(found)
        self.what_children_reported_is_charged_once()

    def rows_are_in_one_live_batch(self, found: list[Any], live: list[Any]) -> None:
        for job_id, whole in self.rows.items():
            mine = [row for b in live if b.job_id == job_id for row in b.rows]
            assert sorted(mine) == sorted(whole), "rows are lost, or in two live batches"
        for batch in found:
            rows = batch.rows
            assert len(rows) == batch.row_count
            if batch.state == "split":
                children = [row for b in found if b.parent_id == batch.id for row in b.rows]
                assert sorted(children) == list(rows)
            if batch.job_state == "completed":
                assert batch.state in ("done", "split")

    def counters_equal_rows(self, live: list[Any]) -> None:
        counted = {row.job_id: row for row in self.observer.execute(COUNTERS)}
        for job_id, rows in self.rows.items():
            mine = [batch for batch in live if batch.job_id == job_id]
            dead = {r for b in mine if b.state == "dead" for r in b.rows}
            answers = {row: self.answers.get((job_id, row)) for row in rows}
            states = Counter(batch.state for batch in mine)
            truth = {
                "rows_total": len(rows),
                "rows_done": sum(a is not None and not a[1] for a in answers.values()),
                "rows_failed": sum(a[1] if a else row in dead for row, a in answers.items()),
                **{
                    f"batches_{state}": states[state]
                    for state in ("pending", "queued", "leased", "done", "dead")
                },
                "prompt_tokens": sum(batch.prompt_tokens for batch in mine),
                **{
                    f"rows_{state}": sum(b.row_count for b in mine if b.state == state)
                    for state in ("queued", "leased")
                },
            }
            assert {name: getattr(counted[job_id], name) for name in COUNTED} == truth

    def answers_stand_in_live_parts(self, live: list[Any]) -> None:
        for batch in live:
            redo = set() if batch.redo is None else set(batch.redo)
            kept = [row for row in batch.rows if row not in redo]
            answers = [self.answers.get((batch.job_id, row)) for row in kept]
            if batch.part_name is None:
                assert not any(answers)
                continue
            assert {answer and answer[0] for answer in answers} <= {batch.part_name}
            assert sum(answer is not None and answer[1] for answer in answers) == batch.rows_failed
        listed = self.observer.execute("SELECT job, row_index FROM failed_rows").fetchall()
        dead = {(b.job_id, row) for b in live if b.state == "dead" for row in b.rows}
        assert sorted((row.job, row.row_index) for row in listed) == sorted(
            {row for row, (_, failed) in self.answers.items() if failed}
            | {row for row in dead if row not in self.answers}
        )
        in_parts = Counter(
            row.batch_id for row in self.observer.execute("SELECT batch_id FROM row_errors")
        )
        assert in_parts == {
            b.id: b.rows_failed + b.redo_count
            for b in live
            if b.part_name is not None and b.rows_failed + b.redo_count
        }

    def attempts_fit(self, found: list[Any]) -> None:
        attempts = self.observer.execute("SELECT batch_id, attempt, outcome FROM attempts")
        outcomes = {(row.batch_id, row.attempt): row.outcome for row in attempts}
        by_outcome = {
            wanted: {key for key, outcome in outcomes.items() if outcome == wanted}
            for wanted in (None, "done", "split")
        }
        assert by_outcome[None] == {(b.id, b.attempt) for b in found if b.state == "leased"}
        assert by_outcome["done"] == set(self.committed)
        assert by_outcome["split"] == self.drained
        assert max(self.committed.values(), default=1) == 1, "an attempt committed twice"
        for batch in found:
            assert (batch.state == "leased") == batch.expires
            assert batch.attempt >= self.last_attempt.get(batch.id, 0)
            if batch.parent_id is not None and batch.id not in self.last_attempt:
                # New halves: neither was lost alone yet, however often their parent was.
                assert batch.losses <= records.LONE_LOSSES
            self.last_attempt[batch.id] = batch.attempt

    def what_children_reported_is_charged_once(self) -> None:
        """Whatever became of the rows, and also where a report was lost: the next one has it all."""
        charged = {
            (row.worker_id, row.job_id): Spent(*row[1:]) for row in self.observer.execute(SPENT)
        }
        assert charged == self.charged

    def job_state(self, here: Open, job_id: int) -> JobState:
        found = here.connection.exec_driver_sql("SELECT state FROM jobs WHERE id = %s", (job_id,))
        return JobState(found.scalar_one())

    def teardown(self) -> None:
        for name in list(self.open):
            self.finish(name, committed=False)
        for table in TABLES:
            self.observer.execute(f"DELETE FROM {table}")


OVER = tuple(state for state in JobState if state.over)
WAITING = ("pending", "queued")
TOTALS = ("engine_microseconds", "rows_run", "prompt_tokens", "output_tokens")


def act(what: str, times: int = 1, **how: Any) -> list[st.SearchStrategy[Any]]:
    """A step of the machine with its arguments; it comes `times` as often as others."""
    return [st.tuples(st.just(what), st.fixed_dictionaries(how))] * times


job = st.integers(0, 1)
number = st.integers(0, 15)
picked = st.lists(number, min_size=1, max_size=3)
stale = st.sampled_from((False, False, True))
mask = st.integers(0, 31)
owner = st.sampled_from(WORKERS)
seconds = st.sampled_from((30.0, 30.0, -1.0))
ACTS: list[st.SearchStrategy[Any]] = [
    *act("admit", job=job, limit=st.integers(1, 6)),
    *act(
        "admit_and_claim",
        4,
        admitted=st.integers(1, 5),
        owner=owner,
        seconds=seconds,
        room=st.integers(1, 12),
        most=st.integers(1, 5),
        idle=st.booleans(),
    ),
    *act(
        "claim",
        2,
        owner=owner,
        seconds=seconds,
        room=st.integers(1, 12),
        most=st.integers(1, 5),
        idle=st.booleans(),
    ),
    *act("commit", 4, number=number, stale=stale, mask=mask, some=mask),
    *act("split", number=number, stale=stale, mask=mask),
    *act("fail", number=number, stale=stale, permanent=st.booleans()),
    *act("renew", picked=picked, seconds=seconds),
    *act("release", picked=picked),
    *act("reap", 2),
    *act("leases_run_out"),
    *act("child_ends", owner=owner, died=st.booleans()),
    *act("halve", number=number),
    *act(
        "control",
        2,
        job=job,
        act=st.sampled_from(("pause", "resume", "pause", "resume", "resume", "fail", "cancel")),
    ),
    *act("retry", 3, job=job, failed=st.booleans(), kind=st.sampled_from(KINDS)),
    *act("undo", job=job),
    *act("bury", job=job),
    *act("take_finishable"),
    *act("unqueue", limit=st.integers(1, 6)),
    *act("sweep", 2, job=job),
    *act("close", job=job),
    *act("end_transaction", 2),
]


def any_act() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.one_of(*ACTS)


def bits(mask: int, rows: RowRanges) -> list[int]:
    """The rows whose place is a set bit."""
    return [row for place, row in enumerate(rows) if mask >> place & 1]


def claimable(found: Any, room: int, most: int, idle: bool) -> list[int]:
    """Which batches one claim takes when nobody else holds any, told again in Python."""
    waiting = sorted(
        (
            b
            for b in found
            if (b.state, b.job_state) == ("queued", "running")
            and (idle or b.losses < records.LONE_LOSSES)
        ),
        key=lambda b: (-b.priority, b.rank, b.id),
    )[:most]
    taken: list[int] = []
    rows = 0
    for batch in waiting:
        alone = batch.losses >= records.LONE_LOSSES
        if taken and (rows >= room or alone):
            break
        taken.append(batch.id)
        rows += batch.redo_count or batch.row_count
        if alone:
            break
    return taken


MACHINE = settings(
    stateful_step_count=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# A failure is shrunk to a short story first, which may take minutes.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stories", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_whatever_happens_in_whatever_order_no_row_is_lost_or_done_twice(
    database_url: str, second_ledger: Callable[[], Ledger], stories: int
) -> None:
    ledgers = {"a": second_ledger(), "b": second_ledger()}
    with psycopg.connect(database_url, autocommit=True, row_factory=namedtuple_row) as observer:
        observer.adapters.register_loader("int8multirange", RowRangesLoader)
        for table in TABLES:
            # A vacuum that shortens a table locks everybody out, for longer than a step waits.
            observer.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")

        def machine() -> LedgerMachine:
            return LedgerMachine(ledgers, observer)

        told = settings(MACHINE, max_examples=stories)
        run_state_machine_as_test(machine, settings=told)  # type: ignore[arg-type]
