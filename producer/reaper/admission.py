"""Admission: how many batches of which job become queued now (DESIGN section 6, dispatch), and the
hints that tell children of them; hints may be lost.
"""

import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

import structlog

from nightshift.common.allocation.deadlines import Work, with_deadlines
from nightshift.common.allocation.demand import JobDemand
from nightshift.common.broker import Announcer
from nightshift.common.errors import BadInput, Retryable
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.batches.dispatch import Capacity, OpenJob
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import deadlines
from nightshift.common.settings import Settings

log = structlog.get_logger(__name__)

WINDOWS_AHEAD = 2
"""Rows kept queued for a queue, in multiples of what its living children hold in flight."""

LEAST_QUEUED = 16
"""Least number of batches kept queued for a queue, also before its first child lives."""

MOST_ADMITTED = 1_000
"""Most batches that one transaction admits, so that it stays short: 30 to 40 ms. Smaller ones cost
more for each batch: what is open is read in each.
"""

MOST_HINTS = 500
HINT_SECONDS = 0.4
"""Most hints that one round of a reaper sends, and the time that it spends on them and on looks at
queues, so that the round stays short: a hint costs half a millisecond, several where cores are short,
and all are missing when Redis was emptied. A look or a hint that has begun is waited for.
"""

BROKER_PAUSE_SECONDS = 30.0
"""Longest pause after a broker did not answer: each try of a silent broker costs 5 s."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the broker: how many batches wait for a claim there, how many of them were admitted
    in this transaction, and how many living children serve the queue.
    """

    pool: str
    engine_key: str
    queued: int
    admitted: int
    children: int

    @property
    def runs_low(self) -> bool:
        """True when more than half of the queue was claimed since the last round: the next round
        is urgent.
        """
        return self.admitted * 2 > self.queued

    @property
    def hints(self) -> int:
        """How many hints should wait: one for each child that could take work, whatever the number
        of batches, since a woken child claims until nothing is left.
        """
        return min(self.queued, max(1, self.children))


def admit(connection: Connection, alive_seconds: float) -> list[Queue]:
    """One short transaction: returns the queues to announce, none when another reaper has the duty."""
    if not dispatch.try_duty(connection, dispatch.DISPATCH_LOCK):
        return []
    jobs = dispatch.open_jobs(connection)
    capacities = dispatch.capacities(connection, alive_seconds)
    children = {(each.pool, each.engine_key): each.children for each in capacities}
    late = [job.id for job in jobs if job.has_deadline]
    works = deadlines.works(connection, job_ids=late) if late else {}
    decided = decide(jobs, capacities, works=works)
    admitted: dict[int, int] = {}
    if decided:
        admitted = dispatch.admit_many(connection, decided, dispatch.next_rank(connection))
    return [
        Queue(
            *queue,
            queued=sum(job.queued + admitted.get(job.id, 0) for job in members),
            admitted=sum(admitted.get(job.id, 0) for job in members),
            children=children.get(queue, 0),
        )
        for queue, members in _by_queue(jobs).items()
    ]


def decide(
    jobs: Iterable[OpenJob],
    capacities: Iterable[Capacity],
    most: int = MOST_ADMITTED,
    works: Mapping[int, Work] | None = None,
) -> dict[int, int]:
    """How many batches to admit of each job, by job id. Pure.

    Every queue gets one batch in turn, until it is full or `most` are admitted; the emptiest queue
    begins. In a queue priority counts first, then what jobs with a deadline need, of which `works`
    has the facts, then the fair share between jobs, within each job's max_parallel; between tenants
    the fair share comes before deadlines.
    """
    capacity_of = {(each.pool, each.engine_key): each for each in capacities}
    emptiest_first = sorted(
        _by_queue(jobs).items(), key=lambda queue: sum(job.queued for job in queue[1])
    )
    queues = [
        _next_batches(members, capacity_of.get(queue), works or {})
        for queue, members in emptiest_first
    ]
    turns = chain.from_iterable(zip_longest(*queues))
    return Counter(islice((job_id for job_id in turns if job_id is not None), most))


def _by_queue(jobs: Iterable[OpenJob]) -> dict[tuple[str, str], list[OpenJob]]:
    members: dict[tuple[str, str], list[OpenJob]] = defaultdict(list)
    for job in jobs:
        members[job.pool, job.engine_key].append(job)
    return members


def _next_batches(
    members: Sequence[OpenJob], capacity: Capacity | None, works: Mapping[int, Work]
) -> Iterator[int]:
    """The job of each batch to admit to a queue, from the highest priority down; a job of a lower
    priority never counts as being ahead of one of a higher.
    """
    rows_ahead = WINDOWS_AHEAD * capacity.window_rows if capacity else 0
    turns = _Turns(members, capacity, works)
    rows_queued = batches_queued = 0
    for priority in sorted({job.priority for job in members}, reverse=True):
        level = [job for job in members if job.priority == priority]
        rows_queued += sum(job.rows_queued for job in level)
        batches_queued += sum(job.queued for job in level)
        for job in _by_tenant(level, turns):
            if rows_queued >= rows_ahead and batches_queued >= LEAST_QUEUED:
                break
            yield job.id
            rows_queued += job.batch_rows
            batches_queued += 1


def _by_tenant(level: Sequence[OpenJob], turns: "_Turns") -> Iterator[OpenJob]:
    """Jobs of one priority, each as often as it has batches to admit. The tenant with the fewest rows
    in flight for its weight is next.
    """
    jobs_of: dict[str, list[OpenJob]] = defaultdict(list)
    for job in level:
        jobs_of[job.tenant].append(job)
    heap = [(own[0].tenant_rows / own[0].tenant_weight, tenant) for tenant, own in jobs_of.items()]
    heapq.heapify(heap)
    next_of = {tenant: _by_turn(own, turns) for tenant, own in jobs_of.items()}
    while heap:
        in_flight, tenant = heapq.heappop(heap)
        if (following := next(next_of[tenant], None)) is not None:
            yield following
            in_flight += following.batch_rows / following.tenant_weight
            heapq.heappush(heap, (in_flight, tenant))


def _by_turn(jobs: Sequence[OpenJob], turns: "_Turns") -> Iterator[OpenJob]:
    """Jobs of one tenant and priority, each as often as it has batches to admit."""
    # The job whose turn is next goes back with one batch more.
    heap = [
        (turns.of(job, in_flight), in_flight, _most_of(job), job)
        for job in jobs
        if _most_of(job)
        for in_flight in (job.rows_queued + job.rows_leased,)
    ]
    heapq.heapify(heap)
    while heap:
        _, in_flight, left, job = heapq.heappop(heap)
        yield job
        if left > 1:
            in_flight += job.batch_rows
            heapq.heappush(heap, (turns.of(job, in_flight), in_flight, left - 1, job))


class _Turns:
    """Whose turn is next among jobs of one queue and priority: that of the job with the fewest rows in
    flight for its weight, after jobs with fewer than their deadline needs, the earliest deadline first.
    """

    def __init__(
        self, members: Sequence[OpenJob], capacity: Capacity | None, works: Mapping[int, Work]
    ) -> None:
        # Rows in flight of a child that always has the next ones queued.
        a_child = (WINDOWS_AHEAD + 1) * capacity.window_rows / capacity.children if capacity else 0
        slots = float(capacity.children) if capacity else math.inf
        demand = [JobDemand(job.id, job.engine_key, math.inf) for job in members if job.id in works]
        self._needed = {
            job.job_id: (job.deadline_slots * a_child, job.urgency(slots))
            for job in with_deadlines(demand, works)
        }

    def of(self, job: OpenJob, in_flight: int) -> tuple[bool, tuple[float, ...], float, int]:
        """The least of these is next."""
        needed, urgency = self._needed.get(job.id, (0.0, ()))
        if in_flight < needed:
            return False, urgency, in_flight, job.id
        return True, (), in_flight / job.weight, job.id


def _most_of(job: OpenJob) -> int:
    """Most batches of the job that may be admitted now."""
    if job.max_parallel is None:
        return job.pending
    return min(job.pending, max(0, job.max_parallel - job.queued - job.leased))


class Hints:
    """Sends hints to the broker of the settings; after a failure none are sent for a while, longer
    after each further failure.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._announcer = Announcer(settings.broker_url) if settings.broker_url else None
        self._first_pause_seconds = settings.poll_seconds
        self._pause_seconds = 0.0
        self._paused_until = 0.0
        self._rounds = 0
        self._left, self._seconds = 0, 0.0

    def begin_round(self) -> None:
        """From now on there are hints and time for one more round."""
        self._rounds += 1
        self._left, self._seconds = MOST_HINTS, HINT_SECONDS

    def announce(self, queues: Sequence[Queue]) -> None:
        """Brings the messages of queues up to their hints, as far as the round has time and hints.

        Each round begins with another queue: where time is short, none waits for ever.
        """
        open_queues = [queue for queue in queues if queue.queued]
        first = self._rounds % max(1, len(open_queues))
        began = self._clock()
        until = began + self._seconds
        for queue in open_queues[first:] + open_queues[:first]:
            if self._left <= 0 or self._clock() >= until:
                break
            self._left -= self._send(queue, until)
        self._seconds = max(0.0, self._seconds - (self._clock() - began))

    def _send(self, queue: Queue, until: float) -> int:
        if self._announcer is None or self._clock() < self._paused_until:
            return 0
        try:
            sent = self._announcer.top_up(
                queue.pool, queue.engine_key, queue.hints, self._left, until
            )
            self._pause_seconds = 0.0
        except (Retryable, BadInput) as error:
            self._pause_seconds = min(
                BROKER_PAUSE_SECONDS, 2 * self._pause_seconds or self._first_pause_seconds
            )
            self._paused_until = self._clock() + self._pause_seconds
            log.warning("announce_failed", error=str(error))
            return 0
        return sent

    def close(self) -> None:
        """Closes the connection to the broker."""
        if self._announcer is not None:
            self._announcer.close()
