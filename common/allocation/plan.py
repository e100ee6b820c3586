"""The plan of a pool: which engine each slot should have, as one pure function.

Priorities are tiers. Within a tier the shares of an engine's jobs add up to the engine's share, which
the method of Sainte-Laguë rounds to whole slots; first come the slots without which a job would be
late. The plan keeps small, in this order: work without a slot, idle slots beside work, changes of
engines.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nightshift.common.allocation.demand import Engine, JobDemand, Slot
from nightshift.common.allocation.shares import ROUNDING, key_shares

LONGEST_TURN = 4.0
"""Longest turn, in residences: engines that take turns do so in proportion to their shares up to this."""


def allocate(
    slots: Sequence[Slot], demand: Sequence[JobDemand], engines: Mapping[str, Engine]
) -> dict[str, str | None]:
    """The engine of each slot by the slot's id; None where nothing needs the slot.

    A slot that nothing needs keeps the engine that it has. `engines` are those that are known.
    """
    plan = _Plan(slots, {job.engine_key for job in demand if job.slots > 0}, engines)
    # First what fills slots or keeps deadlines, tier by tier; then slots that are left help with
    # single batches.
    filled = [replace(job, slots=max(job.slots, job.least_slots)) for job in demand]
    helped = [replace(job, slots=job.most_slots, deadline_slots=0.0) for job in demand]
    for each in (filled, helped):
        for priority in sorted({job.priority for job in each}, reverse=True):
            plan.fill(priority, [job for job in each if job.priority == priority and job.slots > 0])
    return plan.engine_of


def desired_slots(demand: Sequence[JobDemand]) -> dict[str, int]:
    """How many slots of each engine the plan of a pool without end would fill, for an autoscaler.

    `most_slots` count for nothing here: their batches fit into the windows of the slots that count,
    and only slots that stand empty help with them. What a deadline needs beyond that counts, unless
    the job would be late even so.
    """
    filled: dict[str, float] = defaultdict(float)
    for job in demand:
        filled[job.engine_key] += job.slots if job.beyond_reach else max(job.slots, job.least_slots)
    return {key: whole(slots) for key, slots in filled.items()}


def beside_cordoned(desired: Mapping[str, int], cordoned: int) -> dict[str, int]:
    """What an autoscaler reads where so many slots take no work: an autoscaler counts their machines
    among those that it has. The engine that wants the most slots has them added; where none is
    wanted, nobody asks for any.
    """
    wanted = dict(desired)
    if most := max(sorted(wanted), key=lambda key: wanted[key], default=None):
        wanted[most] += cordoned if wanted[most] else 0
    return wanted


def whole(slots: float) -> int:
    """So many slots, with one for the part of a slot."""
    return max(1, math.ceil(slots - ROUNDING)) if slots > 0 else 0


class _Plan:
    """A plan in the making: each tier takes its slots out of the free ones."""

    def __init__(
        self, slots: Sequence[Slot], wanted: set[str], engines: Mapping[str, Engine]
    ) -> None:
        self.engine_of: dict[str, str | None] = {slot.id: None for slot in slots}
        # The slots that an engine would miss most come first: those at work, and for the longest.
        best = sorted(slots, key=lambda slot: (slot.idle, -slot.held_seconds, slot.id))
        self._free = {slot.id: slot for slot in best}
        self._wanted = wanted
        self._engines = engines
        self._given: Counter[tuple[int, str]] = Counter()
        places: Counter[str | None] = Counter()
        self._place: dict[str, int] = {}
        for slot in best:
            self._place[slot.id] = places[slot.engine_key]
            places[slot.engine_key] += 1

    def fill(self, priority: int, jobs: Sequence[JobDemand]) -> None:
        """Gives free slots to the jobs of one priority, which may have got some before."""
        caps = {
            key: more
            for key, slots in desired_slots(jobs).items()
            if (more := slots - self._given[priority, key]) > 0
        }
        if self._free and caps:
            tier = _Tier(self, [job for job in jobs if job.engine_key in caps], caps)
            tier.fill()
            for key, given in tier.given.items():
                self._given[priority, key] += given

    def plan(self, slot: Slot, key: str) -> None:
        """Plans a free slot."""
        self.engine_of[slot.id] = key
        del self._free[slot.id]

    def free(self) -> list[Slot]:
        """The slots that are not planned yet, those first that their engines would miss most."""
        return list(self._free.values())

    def engine(self, key: str) -> Engine:
        """What is known of an engine."""
        return self._engines.get(key) or Engine()

    def has_just_ended(self, slot: Slot) -> bool:
        """True for a moment after the last work of the slot's engine: more of it may come."""
        return not slot.idle and slot.held_seconds > 0 and slot.engine_key not in self._wanted

    def cost(self, slot: Slot) -> tuple[bool, bool, bool, bool, int, int, float]:
        """The cost of giving a slot another engine: slots with the least cost come first.

        Of several engines, the one with the most slots loses first.
        """
        return (
            slot.engine_key is not None,
            slot.engine_key in self._wanted,
            not slot.idle,
            slot.only is None,
            -len(slot.refused),
            -self._place[slot.id],
            slot.held_seconds,
        )


class _Tier:
    """The jobs of one priority, the most slots of each engine, and what is given of the free ones."""

    def __init__(self, plan: _Plan, jobs: Sequence[JobDemand], most: Mapping[str, int]) -> None:
        self.given: Counter[str] = Counter()
        self._plan = plan
        self._most = most
        free = plan.free()
        found = key_shares(len(free), jobs)
        self._alone, self._shares, self._late = found.alone, found.shares, found.reserved
        self._own: dict[str, list[Slot]] = {key: [] for key in self._shares}
        for slot in free:
            if slot.engine_key in self._own and slot.takes(slot.engine_key):
                self._own[slot.engine_key].append(slot)
        self._slots: dict[str, list[Slot]] = {key: [] for key in self._shares}
        self._resident = self._residents()
        self._reserved: dict[str, int] = {}

    def fill(self) -> None:
        """Deals the slots. First engines keep their own slots. Then engines whose jobs would be late get slots.
        Then each engine gets its first slot, then its share, and at last the rest.
        """
        targets = self._targets()
        for key, most in targets.items():
            self._keep(key, most)
        for key, least in self._reserved.items():
            while self.given[key] < least and self._give_one(key, {key}):
                pass
        served = set(self._plan.engine_of.values())
        for key in targets:
            if key not in served:
                self._give_one(key, {key})
        self._deal(targets)
        for key, most in self._most.items():
            self._keep(key, most)
        # If slots are still free while work waits, some engines refuse these slots.
        self._deal(self._most)

    def _targets(self) -> dict[str, int]:
        """How many slots each key gets: what its jobs need not to be late, else one first, then by the
        method of Sainte-Laguë.

        Where keys outnumber slots, those in their residence stay, then the longest waiting come.
        """
        free = self._plan.free()
        caps = self._caps(free)
        self._reserve(len(free), caps)
        left = len(free) - sum(self._reserved.values())
        resident = {slot.engine_key for slot in free if slot.id in self._resident}
        first = sorted(
            caps.keys() - self._reserved.keys(),
            key=lambda key: (
                key not in resident,
                -self._plan.engine(key).waiting_seconds,
                -len(self._own[key]),
                key,
            ),
        )[:left]
        targets = self._reserved | dict.fromkeys(first, 1)
        heap = [self._quotient(key, each) for key, each in targets.items() if caps[key] > each]
        heapq.heapify(heap)
        for _ in range(left - len(first)):
            if not heap:
                break
            _, _, key = heapq.heappop(heap)
            targets[key] += 1
            if targets[key] < caps[key]:
                heapq.heappush(heap, self._quotient(key, targets[key]))
        return targets

    def _reserve(self, slots: int, caps: Mapping[str, int]) -> None:
        """Whole slots for keys whose jobs would be late, the most urgent first, while there are any."""
        for key, needed in self._late.items():
            reserved = min(whole(needed), caps.get(key, 0), slots)
            if reserved > 0:
                self._reserved[key] = reserved
                slots -= reserved

    def _caps(self, free: Sequence[Slot]) -> dict[str, int]:
        """The most slots that each key can have of the free ones, without keys that get none."""
        bound = [slot for slot in free if slot.refused or slot.only is not None]
        caps = {
            key: min(most, len(free) - sum(not slot.takes(key) for slot in bound))
            for key, most in self._most.items()
        }
        return {key: cap for key, cap in caps.items() if cap > 0}

    def _quotient(self, key: str, given: int) -> tuple[float, bool, str]:
        """The key with the least of these gets the next slot; of equal ones, who has it already."""
        return -self._shares[key] / (2 * given + 1), given >= len(self._own[key]), key

    def _keep(self, key: str, most: int) -> None:
        """Leaves the key its own slots, so that it has up to `most`."""
        for slot in self._own[key]:
            if self.given[key] < most and self._plan.engine_of[slot.id] is None:
                self._give(slot, key)

    def _give_one(self, key: str, seen: set[str]) -> bool:
        """Gives a key one slot more, whoever resides there; False when there is none.

        Where only slots that refuse the key are free, another key of the tier makes room, and its
        last slot, or one that its deadlines need, is exchanged for one of those (an augmenting path;
        Kuhn, The Hungarian method, 1955).
        """
        found = [slot for slot in self._plan.free() if slot.takes(key)]
        if found:
            cost = self._plan.cost
            self._give(min(found, key=lambda slot: (self._is_held(slot), cost(slot))), key)
            return True
        for owner, slots in self._slots.items():
            slot = next((slot for slot in slots if slot.takes(key)), None)
            if slot is None or owner in seen:
                continue
            seen.add(owner)
            if self.given[owner] > self._reserved.get(owner, 1) or self._give_one(owner, seen):
                slots.remove(slot)
                self.given[owner] -= 1
                self._plan.engine_of[slot.id] = key
                self._note(slot, key)
                return True
        return False

    def _deal(self, caps: Mapping[str, int]) -> None:
        """Gives slots that nobody holds to the keys with the least of their shares, up to `caps`."""
        short = {key for key, most in caps.items() if self.given[key] < most}
        for slot in sorted(self._plan.free(), key=self._plan.cost) if short else ():
            able = [key for key in short if slot.takes(key)]
            if not able or self._is_held(slot):
                continue
            key = min(able, key=lambda key: (self.given[key] / self._shares[key], key))
            self._give(slot, key)
            if self.given[key] >= caps[key]:
                short.remove(key)

    def _give(self, slot: Slot, key: str) -> None:
        self._plan.plan(slot, key)
        self._note(slot, key)

    def _note(self, slot: Slot, key: str) -> None:
        self.given[key] += 1
        self._slots[key].append(slot)

    def _is_held(self, slot: Slot) -> bool:
        """True while a slot is only for the engine that it has."""
        return slot.id in self._resident or self._plan.has_just_ended(slot)

    def _residents(self) -> set[str]:
        """The slots that load or work for this tier, and whose load has not paid off yet.

        Slots of an engine beyond its work have nothing to claim and are no residents.
        """
        least = min(self._alone.values())
        found = set()
        for key, own in self._own.items():
            turn = min(LONGEST_TURN, self._alone[key] / least)
            seconds = turn * self._plan.engine(key).residence_seconds
            found |= {slot.id for slot in own[: self._most[key]] if slot.held_seconds < seconds}
        return found
