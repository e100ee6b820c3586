"""How long each transaction of a round takes, as the product's code does it, seen by the client."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.ledger.million import LEASED, QUEUED, RENEWER
from benchmarks.report import Line
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, commits, dispatch, leasing
from nightshift.common.ledger.batches.records import Claimant, Lease, Part
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.producer.reaper import admission

LEASE_SECONDS = 3600.0
REAPED = 50
GROUP = 32
FOLDED = 1000

Act = Callable[[Connection], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of transaction; `before` prepares each call and is not timed.

    `wanted` is what its 99th percentile must stay below, in milliseconds.
    """

    name: str
    act: Act
    before: Act | None = None
    wanted: float | None = None


@dataclass(frozen=True, slots=True)
class Actors:
    """The processes that act on the only job of the ledger, and the rows of its tables."""

    job_id: int
    pool: str
    engine_key: str
    batches: int
    held: list[Lease] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger) -> "Actors":
        """The actors on the job that was submitted."""
        with ledger.transaction() as connection:
            (row,) = job_pace.listed(connection)
            job = jobs.find(connection, str(row["job"]))
        return cls(job.id, job.spec.pool, job.spec.engine_key, row["batches_total"])

    def operations(self) -> list[Operation]:
        """Every transaction that runs all the time, with what DESIGN section 11 wants of it."""
        expire = partial(self._expire, far=self._far())
        return [
            Operation("an empty transaction", lambda connection: connection.exec_driver_sql(";")),
            Operation("job_progress", lambda one: jobs.progress(one, self.job_id), None, 50),
            Operation(
                "job_progress of all jobs",
                lambda one: one.exec_driver_sql("SELECT * FROM job_progress").all(),
                None,
                50,
            ),
            Operation("claim 1 batch", partial(self.claim, most=1), self.refill, 10),
            Operation("claim 16 batches", partial(self.claim, most=16), self.refill, 10),
            Operation(f"commit {GROUP} batches", self._commit, self._claim_group),
            Operation(f"renew {LEASED} leases", self._renew, None, 10),
            Operation(f"reap {REAPED} leases", leasing.reap, expire, 10),
            Operation(
                f"dispatch, {admission.MOST_ADMITTED} admitted", self._dispatch, self._unqueue, 40
            ),
            Operation("dispatch, nothing to admit", self._dispatch, None, 20),
            Operation("finishable", lambda one: job_end.take_finishable(one, "r")),
            Operation(f"fold {FOLDED} counter rows", dispatch.fold_counters, self._count),
        ]

    def claim(self, connection: Connection, most: int, owner: str = "w-1") -> list[Lease]:
        """Claims as a busy child does."""
        who = Claimant(owner, self.pool, self.engine_key, "function", "1")
        return claims.claim(
            connection,
            who,
            room_rows=most,
            max_batches=most + 1,
            idle=False,
            woken="message",
            lease_seconds=LEASE_SECONDS,
        )

    def refill(self, connection: Connection) -> None:
        """Queues as many batches as at the start."""
        found = connection.exec_driver_sql("SELECT count(*) FROM batches WHERE state = 'queued'")
        missing = QUEUED - int(found.scalar_one())
        if missing > 0:
            rank = dispatch.next_rank(connection)
            dispatch.admit(connection, self.job_id, missing, rank)

    def _claim_group(self, connection: Connection) -> None:
        self.refill(connection)
        self.held[:] = self.claim(connection, GROUP)

    def _commit(self, connection: Connection) -> object:
        return commits.commit(
            connection,
            [
                (lease, Part(f"part-{lease.seq:08}-a{lease.attempt}.parquet", 1, "s", 1, 1, []))
                for lease in self.held
            ],
        )

    def _renew(self, connection: Connection) -> object:
        first = self.batches * 3 // 10
        held = [(first + 1 + number, 1) for number in range(LEASED)]
        return leasing.renew(connection, RENEWER, held, LEASE_SECONDS)

    def _dispatch(self, connection: Connection) -> object:
        return admission.admit(connection, LEASE_SECONDS)

    def _unqueue(self, connection: Connection) -> None:
        connection.exec_driver_sql(
            "UPDATE batches SET state = 'pending', rank = NULL WHERE state = 'queued'"
        )

    def _far(self) -> Iterator[int]:
        """Pending batches that are not admitted soon, each once: a second loss is treated otherwise."""
        return iter(range(self.batches * 6 // 10, self.batches, REAPED))

    def _expire(self, connection: Connection, far: Iterator[int]) -> None:
        first = next(far)
        connection.exec_driver_sql(
            "UPDATE batches SET state = 'leased', attempt = 1, owner = 'w-2',"
            " lease_expires_at = now() - interval '1 second'"
            " WHERE job_id = %s AND seq >= %s AND seq < %s AND state = 'pending'",
            (self.job_id, first, first + REAPED),
        )

    def _count(self, connection: Connection) -> None:
        connection.exec_driver_sql(
            "INSERT INTO job_counters SELECT %s, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0"
            " FROM generate_series(1, %s)",
            (self.job_id, FOLDED),
        )


def measure(ledger: Ledger, operation: Operation, calls: int) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for _ in range(calls):
        if operation.before is not None:
            with ledger.transaction() as connection:
                operation.before(connection)
        taken.append(_timed(ledger, operation.act))
    return taken


def _timed(ledger: Ledger, act: Act) -> float:
    began = time.perf_counter()
    with ledger.transaction() as connection:
        act(connection)
    return (time.perf_counter() - began) * 1000


def line(section: str, name: str, taken: Sequence[float], wanted: float | None) -> Line:
    """What a kind of transaction took; judged by its 99th percentile."""
    half, most = np.percentile(taken, [50, 99])
    verdict = ""
    if wanted is not None:
        verdict = "met" if most < wanted else f"missed by {most / wanted - 1:.0%}"
    return Line(
        section,
        name,
        f"p50 {half:.2f} ms, p99 {most:.2f} ms",
        "",
        len(taken),
        f"{min(taken):.2f} to {max(taken):.2f} ms",
        "" if wanted is None else f"p99 < {wanted:g} ms",
        verdict,
    )
