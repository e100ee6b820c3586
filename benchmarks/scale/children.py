"""Simulated children and supervisors: real calls of the ledger at the times at which a fleet makes
them, over a bounded number of connections.

A child holds two batches of 60 s each, so that it commits one and claims one every 30 s. A child that
finds none waits for its supervisor, which asks and beats for it.
"""

import heapq
import itertools
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, commits, leasing
from nightshift.common.ledger.batches.records import Claimant, Lease, Part
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.fleet.slots import Machine, SlotReport
from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.settings import Settings
from nightshift.worker.supervisor import planning
from nightshift.worker.supervisor.supervisor import CHOOSE_SECONDS, REPORTS_A_LEASE

SLOTS = 8
HELD = 2
BATCH_SECONDS = 30.0
KILL_SECONDS = 10.0
"""One child of this process vanishes so often; each fifth time all children of a machine do."""

NICE = 10

LOOK = "look of a supervisor at its 8 slots"


@dataclass(frozen=True, slots=True)
class Order:
    """What one process simulates: machines by their numbers, for how long, with so many connections."""

    url: str
    machines: range
    engines: list[tuple[str, str]]
    seconds: float
    connections: int
    seed: int


@dataclass
class Result:
    """Milliseconds of each kind of transaction, and how late each began for want of a connection."""

    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    late: list[float] = field(default_factory=list)
    failed: int = 0
    killed: int = 0


@dataclass
class SimulatedChild:
    """One child; `alive` is false once it has vanished with everything that it held. The first
    batches of a child, before it has `worked`, end at any time: the fleet starts in its middle. A
    child that `waits` claims when its supervisor has seen work; one that is `idle` has asked to be
    beaten for.
    """

    child: Child
    machine: "SimulatedMachine"
    held: list[Lease] = field(default_factory=list)
    alive: bool = True
    worked: bool = False
    waits: bool = False
    idle: bool = False

    @property
    def who(self) -> Claimant:
        """As whom it claims."""
        return Claimant(self.child.id, self.child.pool, self.child.engine_key, "function", "1")


@dataclass
class SimulatedMachine:
    """One supervisor and its children by slot."""

    machine: Machine
    engine_key: str
    children: list[SimulatedChild] = field(default_factory=list)


class Simulation:
    """A clock of events, and threads that run what is due, each over a connection of its own."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._settings = Settings()
        self._ledger = Ledger(order.url, connections=order.connections)
        self._random = random.Random(order.seed)
        self._events: list[tuple[float, int, str, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ready = threading.Condition()
        self._ends = 0.0
        self.result = Result()

    def run(self) -> Result:
        """Starts the fleet, and returns when its time is over."""
        machines = [self._machine(number) for number in self._order.machines]
        for one in machines:
            for slot in range(SLOTS):
                self._boot(one, slot)
        self._ends = time.monotonic() + self._order.seconds
        for one in machines:
            self._in(self._random.uniform(0, 1), LOOK, partial(self._look, one))
            for child in one.children:
                self._begin(child, self._random.uniform(0, BATCH_SECONDS))
        self._in(KILL_SECONDS, "kill", lambda: self._kill(machines))
        threads = [
            threading.Thread(target=self._serve, daemon=True)
            for _ in range(self._order.connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._ledger.close()
        return self.result

    def _machine(self, number: int) -> SimulatedMachine:
        pool, key = self._order.engines[number % len(self._order.engines)]
        return SimulatedMachine(Machine(f"s-{number}", pool, f"host-{number}"), key)

    def _boot(self, one: SimulatedMachine, slot: int) -> SimulatedChild:
        identity = f"{one.machine.supervisor}-{slot}-{next(self._numbers)}"
        at = one.machine
        child = Child(identity, at.supervisor, at.pool, slot, at.host, slot, one.engine_key)
        with self._ledger.transaction() as connection:
            workers.register(connection, child)
            workers.ready(connection, child, workers.LoadedEngine("function", "1", HELD))
        made = SimulatedChild(child, one)
        one.children[slot : slot + 1] = [made]  # appends at the first boot
        return made

    def _begin(self, child: SimulatedChild, first: float) -> None:
        self._in(first, "claim", lambda: self._claim(child))
        beat = self._random.uniform(0, self._settings.heartbeat_seconds)
        self._in(beat, "heartbeat", lambda: self._beat(child))

    def _in(self, seconds: float, name: str, act: Callable[[], None]) -> None:
        with self._ready:
            event = (time.monotonic() + seconds, next(self._numbers), name, act)
            heapq.heappush(self._events, event)
            self._ready.notify()

    def _serve(self) -> None:
        while True:
            with self._ready:
                now = time.monotonic()
                if now > self._ends:
                    return
                if not self._events or self._events[0][0] > now:
                    pause = self._events[0][0] - now if self._events else 0.1
                    self._ready.wait(min(pause, 0.5))
                    continue
                due, _, name, act = heapq.heappop(self._events)
            began = time.monotonic()
            try:
                act()
            except NightshiftError as error:
                print(f"{name}: {error}", flush=True)
                self.result.failed += 1
                self._in(1.0, name, act)
                continue
            self.result.taken[name].append((time.monotonic() - began) * 1000)
            self.result.late.append((began - due) * 1000)

    def _claim(self, child: SimulatedChild) -> None:
        if not child.alive:
            return
        lease_seconds = self._settings.lease_seconds
        with self._ledger.transaction() as connection:
            found = []
            if claims.fair_share(connection, child.who, lease_seconds) != 0:
                found = claims.claim(
                    connection, child.who, room_rows=HELD - len(child.held),
                    max_batches=HELD - len(child.held), idle=not child.held, woken="poll",
                    lease_seconds=lease_seconds,
                )  # fmt: skip
        for lease in found:
            child.held.append(lease)
            seconds = self._random.uniform(0.7, 1.3) * HELD * BATCH_SECONDS
            if not child.worked:
                seconds *= self._random.random()
            self._in(seconds, "commit", partial(self._commit, child, lease))
        child.worked = child.worked or bool(found)
        child.waits = not found

    def _commit(self, child: SimulatedChild, lease: Lease) -> None:
        if not child.alive:
            return
        part = Part(f"part-{lease.seq:08}-a{lease.attempt}.parquet", 1000, "s" * 64, 10, 20, [])
        with self._ledger.transaction() as connection:
            commits.commit(connection, [(lease, part)])
        child.held.remove(lease)
        self._in(0, "claim", lambda: self._claim(child))

    def _beat(self, child: SimulatedChild) -> None:
        if not child.alive:
            return
        self._in(self._settings.heartbeat_seconds, "heartbeat", lambda: self._beat(child))
        held = [(lease.batch_id, lease.attempt) for lease in list(child.held)]
        if not held:
            child.idle = True
            return
        with self._ledger.transaction() as connection:
            workers.beat(connection, child.child.id, "ready")
            leasing.renew(connection, child.child.id, held, self._settings.lease_seconds)

    def _look(self, one: SimulatedMachine) -> None:
        """What a supervisor asks in a round in which nothing changes."""
        self._in(CHOOSE_SECONDS, LOOK, lambda: self._look(one))
        if self._report(one):
            pool, alive_seconds = one.machine.pool, self._settings.lease_seconds
            if planning.renew(self._ledger, pool, alive_seconds):
                self._report(one)

    def _report(self, one: SimulatedMachine) -> bool:
        """Tells what the slots have, and wakes the children whose queue has work; True when the plan
        is old.
        """
        children = list(one.children)
        slots = [
            SlotReport(slot, "", each.child.id, one.engine_key, leaves=False, idle=each.idle)
            for slot, each in enumerate(children)
        ]
        with self._ledger.transaction() as connection:
            orders, is_old = fleet.report(
                connection, one.machine, slots, idle_seconds=0,
                seen_every_seconds=self._settings.lease_seconds / REPORTS_A_LEASE,
            )  # fmt: skip
        for child, order in zip(children, orders, strict=True):
            child.idle = False
            if child.waits and order.has_work:
                child.waits = False
                self._in(0, "claim", partial(self._claim, child))
        return is_old

    def _kill(self, machines: list[SimulatedMachine]) -> None:
        """A child vanishes and is reported; each fifth time a machine does, and is not."""
        self._in(KILL_SECONDS, "kill", lambda: self._kill(machines))
        one = self._random.choice(machines)
        self.result.killed += 1
        lost = self.result.killed % 5 == 0
        for child in list(one.children) if lost else one.children[:1]:
            child.alive = False
            if not lost:
                with self._ledger.transaction() as connection:
                    workers.end(connection, child.child.id, died="the worker child was killed")
            self._begin(self._boot(one, child.child.slot), 1.0)


def simulate(order: Order) -> Result:
    """Runs in a process of its own, behind Postgres and the reapers where cores are short: the
    children of a fleet are on other machines.
    """
    os.nice(NICE)
    return Simulation(order).run()
