"""Admission: how many batches of which job become queued now (DESIGN section 6, dispatch)."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nightshift.common.ledger import dispatch
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.dispatch import Capacity, OpenJob

WINDOWS_AHEAD = 2
"""Rows kept queued for a queue, in multiples of what its living children hold in flight."""

LEAST_QUEUED = 16
"""Batches kept queued for a queue at least, also before its first child lives."""

MOST_ADMITTED = 400
"""Batches admitted in one round, so that its transaction stays short."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the broker: how many batches wait for a claim there, and how many of them were
    admitted just now.
    """

    pool: str
    engine_key: str
    queued: int
    admitted: int

    @property
    def runs_low(self) -> bool:
        """True when more than half of it was gone since the last round: the next is urgent."""
        return self.admitted * 2 > self.queued


def admit(connection: Connection, alive_seconds: float) -> list[Queue] | None:
    """One round; None when another reaper has the duty. Returns the queues to announce."""
    if not dispatch.try_duty(connection, dispatch.DISPATCH_LOCK):
        return None
    jobs = dispatch.open_jobs(connection)
    shares = plan(jobs, dispatch.capacities(connection, alive_seconds))
    admitted: dict[int, int] = {}
    if shares:
        rank = dispatch.next_rank(connection)
        # In id order, like every other lock on several jobs.
        for job_id, batches in sorted(shares.items()):
            admitted[job_id] = dispatch.admit(connection, job_id, batches, rank)
    by_queue: dict[tuple[str, str], list[OpenJob]] = defaultdict(list)
    for job in jobs:
        by_queue[job.pool, job.engine_key].append(job)
    return [
        Queue(
            *queue,
            queued=sum(job.queued + admitted.get(job.id, 0) for job in members),
            admitted=sum(admitted.get(job.id, 0) for job in members),
        )
        for queue, members in by_queue.items()
    ]


def plan(
    jobs: Iterable[OpenJob], capacities: Iterable[Capacity], most: int = MOST_ADMITTED
) -> dict[int, int]:
    """Job id to batches to admit: by priority, then fair share, within max_parallel. Pure."""
    windows = {(each.pool, each.engine_key): each.window_rows for each in capacities}
    by_queue: dict[tuple[str, str], list[OpenJob]] = defaultdict(list)
    for job in jobs:
        by_queue[job.pool, job.engine_key].append(job)
    shares: dict[int, int] = {}
    for queue, members in by_queue.items():
        _fill_queue(members, WINDOWS_AHEAD * windows.get(queue, 0), most, shares)
    return shares


def _fill_queue(
    members: Sequence[OpenJob], rows_ahead: int, most: int, shares: dict[int, int]
) -> None:
    """From the highest priority down; only what is at least as urgent counts as ahead of it."""
    rows_queued = batches_queued = 0
    left = most - sum(shares.values())
    for priority in sorted({job.priority for job in members}, reverse=True):
        level = [job for job in members if job.priority == priority]
        rows_queued += sum(job.rows_queued for job in level)
        batches_queued += sum(job.queued for job in level)
        # The job with the fewest rows in flight is next, and goes back with one batch more.
        heap = [(job.rows_queued + job.rows_leased, job.id, job) for job in level]
        heapq.heapify(heap)
        while heap and left > 0:
            if rows_queued >= rows_ahead and batches_queued >= LEAST_QUEUED:
                break
            in_flight, _, job = heapq.heappop(heap)
            if shares.get(job.id, 0) >= _allowed(job):
                continue
            shares[job.id] = shares.get(job.id, 0) + 1
            left -= 1
            rows_queued += job.batch_rows
            batches_queued += 1
            heapq.heappush(heap, (in_flight + job.batch_rows, job.id, job))


def _allowed(job: OpenJob) -> int:
    if job.max_parallel is None:
        return job.pending
    return min(job.pending, max(0, job.max_parallel - job.queued - job.leased))
