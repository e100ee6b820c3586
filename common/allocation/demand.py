"""What a plan is made of: the slots of a pool, the work of its jobs, what is known of engines."""

import math
from dataclasses import dataclass

RESIDENCE_LOADS = 6.0
"""A slot keeps its engine for so many load times beside equal work of other engines: while engines
take turns, a slot loads for a seventh of its time at most."""

LEAST_RESIDENCE_SECONDS = 20.0
"""Least residence, for engines that load at once."""

MOST_PRIORITY = 1000
"""Highest priority of a job; the lowest is its negative."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a machine: the engine that it has, loads or makes room for, and what it refuses.

    `held_seconds` counts from the moment when the engine was ready, 0 while it loads. A slot whose
    engine is ready and holds no batch is `idle`, after a while that its operator sets. A slot that
    may have one engine alone names that in `only`.
    """

    id: str
    engine_key: str | None = None
    idle: bool = False
    held_seconds: float = 0.0
    refused: frozenset[str] = frozenset()
    only: str | None = None

    def takes(self, engine_key: str) -> bool:
        """True when the slot may have this engine. A slot does not refuse the engine that it has: the
        failed load was another slot's of the machine.
        """
        refuses = engine_key in self.refused and engine_key != self.engine_key
        return not refuses and self.only in (None, engine_key)


@dataclass(frozen=True, slots=True)
class JobDemand:
    """The work of a job in slots, leased batches included.

    It fills `slots` of them, in windows of rows and parts of a window. It could use `most_slots`, a
    batch each, where slots would stand empty otherwise; no autoscaler starts a slot for that. Both
    keep to its `max_parallel`. Its tenant shares by `tenant_weight` with other tenants, the job by
    `weight` with jobs of its tenant.
    `deadline_slots` are those that its deadline wants, which comes in `due_seconds`, with a reserve;
    without the reserve they are `exact_slots`. `beyond_reach` says that it would be late even with all that it can use.
    """

    job_id: int
    engine_key: str
    slots: float
    most_slots: int = 0
    priority: int = 0
    tenant: str = ""
    tenant_weight: float = 1.0
    weight: float = 1.0
    deadline_slots: float = 0.0
    exact_slots: float = 0.0
    due_seconds: float = math.inf
    beyond_reach: bool = False

    @property
    def least_slots(self) -> float:
        """What its deadline needs, of the slots that it could use."""
        return min(self.deadline_slots, max(self.slots, float(self.most_slots)))

    def urgency(self, capacity: float) -> tuple[bool, float, int]:
        """The order of deadlines: the earliest first. Those that cannot be met, or not with so many
        slots, come behind, so that they make no other job late.
        """
        is_late = self.beyond_reach or self.exact_slots > capacity
        return is_late, self.due_seconds, self.job_id


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of an engine in a pool: its load time, how long its work has had no slot."""

    load_seconds: float = 0.0
    waiting_seconds: float = 0.0

    @property
    def residence_seconds(self) -> float:
        """How long a slot keeps the engine beside equal work of others."""
        return max(LEAST_RESIDENCE_SECONDS, RESIDENCE_LOADS * self.load_seconds)
