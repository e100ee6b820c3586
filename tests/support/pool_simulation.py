"""A pool with a fake clock: random jobs come and go, and its slots follow the plan of each second.

A batch fills a slot for BATCH_SECONDS. A slot that changes its engine gives its batch back with
nothing done, and loads for as long as that engine takes. Machines read a plan one second after the
state that it was made from.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from nightshift.common.allocation.demand import Engine, JobDemand, Slot
from nightshift.common.allocation.plan import LONGEST_TURN, allocate

BATCH_SECONDS = 20
LONGEST_LOAD_SECONDS = 600

SIZES = (1, 5, 50, 500, 5000)
"""Batches of a job."""


@dataclass(eq=False)
class SimulatedJob:
    """A job under way: what is left, how many slots run it."""

    id: int
    key: str
    left: int
    priority: int
    max_parallel: int | None
    tenant: str
    weight: float
    running: int = 0

    @property
    def claimable(self) -> int:
        """Batches that a slot could claim now."""
        if self.max_parallel is None:
            return self.left
        return min(self.left, self.max_parallel - self.running)

    def demand(self) -> JobDemand:
        """What the ledger would say of the job."""
        slots = self.claimable + self.running
        return JobDemand(self.id, self.key, slots, slots, self.priority, self.tenant, self.weight)


@dataclass(eq=False)
class SimulatedSlot:
    """A slot: its engine, when that was or will be ready, and the batch under way."""

    id: str
    key: str | None = None
    ready_at: int = 0
    job: SimulatedJob | None = None
    ends_at: int = 0
    idle_seconds: int = 0


@dataclass
class Figures:
    """What a simulation found; times in seconds, and in seconds of slots where they are sums."""

    slots: int
    keys: int
    jobs: int = 0
    working: int = 0
    loading: int = 0
    idle_beside_work: int = 0
    worst_idle: int = 0
    worst_wait: int = 0
    wait_bound: int = 0
    swaps: int = 0
    cut_residences: int = 0


@dataclass
class PoolSimulation:
    """A random pool: `slots` slots, `keys` engines with loads of 20 s to 10 min.

    Jobs arrive so that about `load` of the pool's slots would be busy without any loading.
    """

    seed: int
    slots: int
    keys: int
    load: float = 1.2
    figures: Figures = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        names = [f"k{number}" for number in range(self.keys)]
        self._load = {key: self._random.randint(20, LONGEST_LOAD_SECONDS) for key in names}
        self._slots = [SimulatedSlot(f"s/{number:03}") for number in range(self.slots)]
        self._jobs: dict[int, SimulatedJob] = {}
        self._waiting_since: dict[str, int] = {}
        self._waits: Counter[str] = Counter()
        self.figures = Figures(self.slots, self.keys)
        longest = max(Engine(load).residence_seconds + load for load in self._load.values())
        turns = -(-self.keys // self.slots)
        self.figures.wait_bound = int(LONGEST_TURN * turns * longest) if turns > 1 else 2

    def run(self, seconds: int) -> Figures:
        """Simulates so many seconds."""
        for now in range(seconds):
            self._arrive()
            demand = [job.demand() for job in self._jobs.values()]
            plan = allocate(self._seen(now), demand, self._engines(now))
            self._work(now)
            self._measure(now, demand)
            self._follow(now, plan, demand)
        return self.figures

    def _arrive(self) -> None:
        mean_batches = sum(SIZES) / len(SIZES)
        a_second = self.load * self.slots / BATCH_SECONDS / mean_batches
        # Small pools get smaller jobs, so that jobs come and go there too.
        scale = min(1.0, self.slots / 40)
        if self._random.random() < a_second / scale:
            self.figures.jobs += 1
            size = self._random.choice(SIZES)
            job = SimulatedJob(
                self.figures.jobs,
                self._random.choice(list(self._load)),
                max(1, int(size * scale)),
                self._random.choice((0, 0, 0, 1)),
                self._random.choice((None, None, 1, 4)),
                self._random.choice("ab"),
                self._random.choice((1.0, 1.0, 2.0)),
            )
            self._jobs[job.id] = job

    def _seen(self, now: int) -> list[Slot]:
        return [
            Slot(
                slot.id,
                slot.key,
                slot.key is not None and slot.ready_at <= now and slot.job is None,
                max(0, now - slot.ready_at) if slot.key is not None else 0,
            )
            for slot in self._slots
        ]

    def _engines(self, now: int) -> dict[str, Engine]:
        waiting = self._waiting_since
        return {key: Engine(load, now - waiting.get(key, now)) for key, load in self._load.items()}

    def _work(self, now: int) -> None:
        """Batches end, and slots that are ready claim the next."""
        for slot in self._slots:
            if slot.job is not None and slot.ends_at <= now:
                slot.job.running -= 1
                slot.job = None
            if slot.job is None and slot.key is not None and slot.ready_at <= now:
                self._claim(slot, now)
        for job in [job for job in self._jobs.values() if not job.left and not job.running]:
            del self._jobs[job.id]

    def _claim(self, slot: SimulatedSlot, now: int) -> None:
        able = [job for job in self._jobs.values() if job.key == slot.key and job.claimable > 0]
        if able:
            job = min(able, key=lambda job: (-job.priority, job.running, job.id))
            job.left -= 1
            job.running += 1
            slot.job, slot.ends_at = job, now + BATCH_SECONDS

    def _measure(self, now: int, demand: list[JobDemand]) -> None:
        figures = self.figures
        claimable: Counter[str] = Counter()
        for job in self._jobs.values():
            claimable[job.key] += job.claimable
        held = Counter(slot.key for slot in self._slots)
        idle = Counter(
            slot.key for slot in self._slots if slot.job is None and slot.ready_at <= now
        )
        loading = Counter(slot.key for slot in self._slots if slot.ready_at > now)
        short = any(work > loading[key] + idle[key] for key, work in claimable.items())
        for slot in self._slots:
            figures.working += slot.job is not None
            figures.loading += slot.key is not None and slot.ready_at > now
            is_idle = slot.job is None and slot.ready_at <= now
            slot.idle_seconds = slot.idle_seconds + 1 if is_idle and short else 0
            figures.idle_beside_work += is_idle and short
            figures.worst_idle = max(figures.worst_idle, slot.idle_seconds)
        top = max((job.priority for job in demand), default=0)
        urgent = {job.engine_key for job in demand if job.priority == top}
        for key in self._load:
            if held[key] or not claimable[key]:
                self._waits[key] = 0
            elif key in urgent:
                self._waits[key] += 1
                figures.worst_wait = max(figures.worst_wait, self._waits[key])

    def _follow(self, now: int, plan: dict[str, str | None], demand: list[JobDemand]) -> None:
        """Slots change their engines as the plan says."""
        given = {key for key in plan.values() if key is not None}
        waiting = {job.engine_key for job in demand} - given
        self._waiting_since = {key: self._waiting_since.get(key, now) for key in waiting}
        had = Counter(slot.key for slot in self._slots)
        cut: Counter[str] = Counter()
        for slot in self._slots:
            key = plan[slot.id]
            if key is None or key == slot.key:
                continue
            if slot.key is not None:
                self.figures.swaps += 1
                cut[key] += self._cuts_residence(slot, key, now, demand, had[slot.key])
            if slot.job is not None:
                slot.job.running -= 1
                slot.job.left += 1
                slot.job = None
            slot.key, slot.ready_at = key, now + 1 + self._load[key]
        # The first slot of an engine may come out of a residence, and no other.
        self.figures.cut_residences += sum(
            max(0, times - (key not in had)) for key, times in cut.items()
        )

    def _cuts_residence(
        self, slot: SimulatedSlot, key: str, now: int, demand: list[JobDemand], had: int
    ) -> bool:
        """True when a slot at work goes to work of no more urgency before its load has paid off.

        Its engine `had` no more slots than it had work of that urgency. A batch that was claimed
        after the plan was made does not count.
        """
        if slot.job is None or slot.key is None or slot.ends_at == now + BATCH_SECONDS:
            return False
        urgency = max(job.priority for job in demand if job.engine_key == key)
        work = sum(
            job.slots for job in demand if job.engine_key == slot.key and job.priority >= urgency
        )
        residence = Engine(self._load[slot.key]).residence_seconds
        return had <= work and now - slot.ready_at < residence


def table(found: list[Figures], seconds: int) -> str:
    """The figures as lines of a table."""
    lines = [
        "slots keys  jobs | working loading | idle beside work  worst | worst wait  bound | "
        "swaps/slot/h  cut"
    ]
    for each in found:
        total = each.slots * seconds
        lines.append(
            f"{each.slots:5} {each.keys:4} {each.jobs:5} | {each.working / total:7.1%} "
            f"{each.loading / total:7.1%} | {each.idle_beside_work / total:16.3%} "
            f"{each.worst_idle:4} s | {each.worst_wait:8} s {each.wait_bound:4} s | "
            f"{each.swaps / each.slots / seconds * 3600:12.2f} {each.cut_residences:4}"
        )
    return "\n".join(lines)
