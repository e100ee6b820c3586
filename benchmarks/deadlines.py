"""Deadlines in random nights: the plan as built beside two plain policies, without any process.

In a night jobs come and go on a pool whose machines are spot machines: each slot is lost now and then
and comes back empty. The real plan says each STEP_SECONDS which engine a slot has; slots load for as
long as the engine takes, and what a lost slot had under way is lost. Rates are measured as a ledger
would: by the latest rows of the job, whose length varies along the dataset.

Beside the plan as built: shares alone, as if no job had a deadline, and deadline jobs as urgent, with
a higher priority than all others. The same nights for each.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated

import typer

from benchmarks import report
from benchmarks.report import Line
from nightshift.common.allocation import deadlines
from nightshift.common.allocation.deadlines import LEAST_ROWS, Work
from nightshift.common.allocation.demand import Engine, JobDemand, Slot
from nightshift.common.allocation.plan import allocate
from nightshift.common.allocation.shares import max_min

STEP_SECONDS = 20
NIGHT_SECONDS = 8 * 3600
LONGEST_SECONDS = 3 * NIGHT_SECONDS
"""A night ends when every job is over, and counts as broken after so long."""

ARRIVAL_SECONDS = 5 * 3600
"""Jobs arrive within so long; half of them at the beginning."""

LOADS_SECONDS = (20, 60, 120, 300, 600)
LOSS_SECONDS = 3 * 3600
"""A slot is lost once in this time, in the mean; another comes after AWAY_SECONDS."""

AWAY_SECONDS = (300, 1800)
WINDOW_SECONDS = 60
"""A window of rows fills a slot for so long, and has four batches."""

MEASURED_STEPS = 30
"""A rate is measured over so many steps of a slot at work."""

POLICIES = ("as built", "shares alone", "deadline jobs as urgent")


@dataclass(eq=False)
class NightJob:
    """A job of a night: rows, the rate of a slot, how the length of rows varies, and what is done."""

    id: int
    key: str
    arrives: int
    rows: float
    rate: float
    wave: float
    finish_by: int | None
    left: float = 0.0
    slots: float = 0.0
    began: int | None = None
    ended: int | None = None
    forecast: float | None = None
    measured: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MEASURED_STEPS)
    )

    def rate_now(self) -> float:
        """Rows a second of a slot: rows are longer and shorter by a fifth along the dataset."""
        return self.rate * (1 + 0.2 * math.sin(self.wave + 5 * self.left / self.rows))

    def batches(self) -> int:
        """Batches that are left."""
        return math.ceil(self.left / (self.rate * WINDOW_SECONDS / 4))

    def work(self, now: int, load_seconds: float) -> Work:
        """What a ledger would know of the job."""
        rows, seconds = (
            (sum(each) for each in zip(*self.measured, strict=True)) if self.measured else (0, 0)
        )
        known = self.rows - self.left >= LEAST_ROWS * self.rows and seconds > 0
        due = math.inf if self.finish_by is None else self.finish_by - now
        rate = rows / seconds if known else None
        return Work(math.ceil(self.left), due, self.slots, self.batches(), load_seconds, rate)

    def demand(self) -> JobDemand:
        """What a ledger would say that it could use."""
        windows = self.left / (self.rate * WINDOW_SECONDS)
        return JobDemand(self.id, self.key, windows, self.batches())

    def run(self, slots: float, now: int) -> None:
        """So many slots work for it, for a step."""
        self.slots = slots
        if slots <= 0:
            return
        self.began = now if self.began is None else self.began
        rows = min(self.left, slots * STEP_SECONDS * self.rate_now())
        self.measured.append((rows, rows / self.rate_now()))
        self.left -= rows
        if self.left <= 1e-6:
            self.ended = now + STEP_SECONDS


@dataclass(eq=False)
class NightSlot:
    """A slot: its engine, when that is ready, and until when the slot is away."""

    id: str
    key: str | None = None
    ready_at: int = 0
    away_until: int = 0
    idle: bool = True


@dataclass
class Result:
    """What came of one policy in some nights; hours."""

    working: float = 0.0
    loading: float = 0.0
    lateness: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    @property
    def late(self) -> list[float]:
        """How late the jobs were that were late."""
        return [each for each in self.lateness if each > 0]


class Night:
    """One night under one policy; a seed gives the same jobs and the same losses to each policy."""

    def __init__(self, seed: int, policy: str) -> None:
        self._policy = policy
        draw = random.Random(seed)
        self._losses = random.Random(seed + 1_000_000)
        self._slots = [NightSlot(f"s/{number:02}") for number in range(draw.randint(3, 12))]
        self._load = {
            f"k{number}": draw.choice(LOADS_SECONDS) for number in range(draw.randint(2, 6))
        }
        self.jobs = self._drawn(draw)
        self._waiting: dict[str, int] = {}

    def _drawn(self, draw: random.Random) -> list[NightJob]:
        """Jobs that fill about the night; half of them have a deadline, tight or easy."""
        count = draw.randint(4, 12)
        weights = [draw.paretovariate(1.2) for _ in range(count)]
        capacity = len(self._slots) * NIGHT_SECONDS * draw.uniform(0.5, 0.95)
        found = []
        for number, weight in enumerate(weights):
            seconds = capacity * weight / sum(weights)
            rate = draw.uniform(1, 50)
            arrives = draw.choice((0, draw.randrange(ARRIVAL_SECONDS)))
            # The whole pool would take so long; a deadline leaves some times that.
            alone = seconds / len(self._slots) + 900
            due = arrives + int(alone * draw.uniform(1.3, 6)) if draw.random() < 0.5 else None
            job = NightJob(
                number,
                draw.choice(list(self._load)),
                arrives,
                seconds * rate,
                rate,
                draw.uniform(0, 6),
                due,
            )
            job.left = job.rows
            found.append(job)
        return found

    def run(self, result: Result) -> None:
        """Simulates the night and adds what came of it."""
        for now in range(0, LONGEST_SECONDS, STEP_SECONDS):
            open_jobs = [job for job in self.jobs if job.arrives <= now and job.ended is None]
            if not open_jobs and all(job.ended is not None for job in self.jobs):
                break
            self._lose(now)
            demand = self._demand(open_jobs, now)
            self._follow(allocate(self._seen(now), demand, self._engines(now)), demand, now)
            self._work(open_jobs, demand, now, result)
        for job in self.jobs:
            ended = LONGEST_SECONDS if job.ended is None else job.ended
            if job.finish_by is None:
                result.others.append((ended - job.arrives) / 3600)
                continue
            result.lateness.append(max(0, ended - job.finish_by) / 3600)
            if job.forecast is not None and job.began is not None:
                result.errors.append(abs(job.forecast - ended) / (ended - job.began))

    def _demand(self, open_jobs: Sequence[NightJob], now: int) -> list[JobDemand]:
        demand = [job.demand() for job in open_jobs]
        due = {job.id: job for job in open_jobs if job.finish_by is not None}
        if self._policy == "as built":
            works = {id: job.work(now, self._load[job.key]) for id, job in due.items()}
            return deadlines.with_deadlines(demand, works)
        if self._policy == "deadline jobs as urgent":
            return [replace(each, priority=int(each.job_id in due)) for each in demand]
        return demand

    def _lose(self, now: int) -> None:
        for slot in self._slots:
            lost = self._losses.random() < STEP_SECONDS / LOSS_SECONDS
            away = self._losses.randint(*AWAY_SECONDS)
            if lost and slot.away_until <= now:
                slot.key, slot.away_until, slot.idle = None, now + away, True

    def _seen(self, now: int) -> list[Slot]:
        return [
            Slot(
                slot.id,
                slot.key,
                slot.key is not None and slot.ready_at <= now and slot.idle,
                max(0, now - slot.ready_at) if slot.key is not None else 0,
            )
            for slot in self._slots
            if slot.away_until <= now
        ]

    def _engines(self, now: int) -> dict[str, Engine]:
        return {
            key: Engine(load, now - self._waiting.get(key, now)) for key, load in self._load.items()
        }

    def _follow(self, plan: dict[str, str | None], demand: Sequence[JobDemand], now: int) -> None:
        waiting = {job.engine_key for job in demand} - set(plan.values())
        self._waiting = {key: self._waiting.get(key, now) for key in waiting}
        for slot in self._slots:
            key = plan.get(slot.id)
            if key is not None and key != slot.key:
                slot.key, slot.ready_at, slot.idle = key, now + self._load[key], False

    def _work(
        self, open_jobs: Sequence[NightJob], demand: Sequence[JobDemand], now: int, result: Result
    ) -> None:
        """Slots that are ready run what is admitted: by priority, then deadlines, then evenly."""
        ready: Counter[str] = Counter()
        for slot in self._slots:
            if slot.key is not None and slot.away_until <= now:
                ready[slot.key] += slot.ready_at <= now
                result.loading += (slot.ready_at > now) * STEP_SECONDS / 3600
        given = _admitted(ready, demand)
        for job in open_jobs:
            job.run(given.get(job.id, 0.0), now)
            result.working += job.slots * STEP_SECONDS / 3600
            if job.forecast is None and job.left <= job.rows / 2 and job.slots > 0:
                job.forecast = _forecast(job, now)
        busy: Counter[str] = Counter()
        for job in open_jobs:
            busy[job.key] += math.ceil(job.slots) if job.ended is None else 0
        for slot in self._slots:
            if slot.key is not None and slot.ready_at <= now:
                busy[slot.key] -= 1
                slot.idle = busy[slot.key] < 0


def _admitted(ready: Counter[str], demand: Sequence[JobDemand]) -> dict[int, float]:
    """The slots of each job, of those that have its engine."""
    given: dict[int, float] = {}
    for key, slots in ready.items():
        left = float(slots)
        for priority in (1, 0):
            level = [job for job in demand if job.engine_key == key and job.priority == priority]
            floors, free = {}, left
            for job in sorted(level, key=lambda job: job.urgency(left)):
                floors[job.job_id] = min(free, job.least_slots, float(job.most_slots))
                free -= floors[job.job_id]
            claims = {job.job_id: (job.weight, float(job.most_slots)) for job in level}
            shares = max_min(left, claims, floors)
            given |= shares
            left -= sum(shares.values())
    return given


def _forecast(job: NightJob, now: int) -> float | None:
    """When the job ends, as `status` would say half way."""
    rate = job.work(now, 0.0).rate
    return None if rate is None else now + job.left / (rate * job.slots)


def main(
    nights: Annotated[int, typer.Option(help="How many nights.")] = 100,
    seed: Annotated[int, typer.Option(help="Another seed draws other nights.")] = 10_000,
) -> None:
    """Simulates nights under three policies."""
    results = {policy: Result() for policy in POLICIES}
    for number in range(nights):
        for policy, result in results.items():
            Night(seed + number, policy).run(result)
    report.keep("deadlines", [line(policy, result, nights) for policy, result in results.items()])


def line(policy: str, result: Result, nights: int) -> Line:
    """One policy in the table."""
    late, jobs = result.late, len(result.lateness)
    error = median(result.errors) if result.errors else math.nan
    return Line(
        f"deadlines, {nights} simulated nights with spot losses",
        policy,
        f"{result.working + result.loading:,.0f} GPU-hours, {result.loading:,.0f} of them loads; "
        f"others done after {sum(result.others) / max(1, len(result.others)):.2f} h",
        f"{len(late)} of {jobs} jobs late ({len(late) / max(1, jobs):.1%}); forecast half way off by "
        f"{error:.1%} in the median",
        nights,
        f"late {sum(late):.1f} h in all, {max(late, default=0):.1f} h at worst",
    )


if __name__ == "__main__":
    typer.run(main)
