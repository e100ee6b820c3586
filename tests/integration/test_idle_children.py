"""Warm children without work: their supervisor asks Postgres and beats for all of them at once."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.fleet import workers
from nightshift.common.settings import Settings
from nightshift.worker.child_context import ChildContext
from nightshift.worker.heartbeat import Heartbeat
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.outages import PatientLedger
from nightshift.worker.runner import Runner
from nightshift.worker.supervisor.channel import ToChild, ToSupervisor, Word
from nightshift.worker.supervisor.children import ChildConfig, Slot
from nightshift.worker.supervisor.liveness import ChildLiveness, hung_seconds
from nightshift.worker.supervisor.supervisor import Supervisor
from nightshift.worker.telemetry.machine import MachineMetrics
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window
from tests.integration.test_ledger import World
from tests.support.databases import statements
from tests.support.fleet import wait_until

ENGINE = SimpleNamespace(concurrency=4, stalled_seconds=lambda: 0.0)


class Group:
    """The process group of a child that lives."""

    pid = 1

    def __init__(self) -> None:
        self.was_killed = False

    def poll(self) -> int | None:
        return None

    def killed(self) -> bool:
        self.was_killed = True
        return False


class Child:
    """A warm child of a slot, in this process."""

    def __init__(self, world: World, slot: Slot, job_id: int, settings: Settings) -> None:
        key = world.specs[job_id].engine_key
        slot.channel, end = ToChild.pair()
        self.id = f"child-{slot.number}"
        self.supervisor = ToSupervisor(end.detach())
        slot.config = ChildConfig(self.id, "m", "default", slot.number, "host", 1, key, job_id, 0)
        slot.group = cast(Any, Group())
        world.run(workers.register, slot.config)
        with world.ledger.transaction() as connection:
            workers.ready(connection, slot.config, workers.LoadedEngine("function", "1", 8))
        who = Claimant(self.id, "default", key, "function", "1")
        recorder, engine = Recorder(), cast(Any, ENGINE)
        ledger = PatientLedger(world.ledger, recorder)
        window = Window.of_engine(engine.concurrency)
        child = ChildContext(who, ledger, engine, settings, window, recorder, print, print)
        self.runner = Runner(child)
        self.heartbeat = Heartbeat(
            child,
            world.ledger,
            ChildLiveness(settings, self.id),
            self.runner.give_back,
            self.supervisor.say_idle,
        )


class Machine:
    """A supervisor with a warm child in each slot; `jobs` names a job of the engine of each."""

    def __init__(self, world: World, jobs: Sequence[int], **settings: Any) -> None:
        known = Settings(**settings)
        self.supervisor = Supervisor(
            world.ledger,
            known,
            pool="default",
            slot_count=len(jobs),
            gpus=(),
            engine_key=None,
            identity="m",
            profile=None,
            metrics=MachineMetrics("default"),
        )
        slots = zip(self.supervisor.slots, jobs, strict=True)
        self.children = [Child(world, slot, job, known) for slot, job in slots]

    def look(self) -> None:
        """A whole look, as one a second is."""
        self.supervisor._chosen_at = time.monotonic() - 2
        self.supervisor.look()

    def ask(self) -> None:
        """What a look asks Postgres, without the plan."""
        self.supervisor.reported()

    def words(self) -> list[Word | None]:
        """What each child hears."""
        return [child.supervisor.wait(0) for child in self.children]


@pytest.fixture
def world(ledger: Ledger) -> World:
    return World(ledger)


@pytest.fixture
def machine(world: World) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(jobs: Sequence[int], **settings: Any) -> Machine:
        made.append(Machine(world, jobs, **settings))
        return made[-1]

    yield make
    for each in made:
        for slot in each.supervisor.slots:
            slot.free()


def seen(world: World) -> dict[str, tuple[str, bool]]:
    """The state of each child, and whether the child was seen within a minute."""
    rows = world.ask("SELECT worker, state, seconds_since_seen < 60 AS fresh FROM worker_status")
    return {row.worker: (row.state, row.fresh) for row in rows}


def silence(world: World, seconds: float) -> None:
    """Nobody has seen a child for so long."""
    world.ask("UPDATE workers SET seen_at = now() - make_interval(secs => %s) RETURNING 1", seconds)


def over(world: World, name: str = "shout", **engine: Any) -> int:
    """A job of an engine, with nothing left to do."""
    job_id = world.job(1, name=name, **engine)
    world.commit(world.lease(job_id))
    world.ask(
        "UPDATE jobs SET state = 'completed', closed_at = now() WHERE id = %s RETURNING 1", job_id
    )
    return job_id


def test_a_machine_of_warm_idle_children_sends_one_statement_a_look(
    world: World, machine: Callable[..., Machine]
) -> None:
    """Each child once asked for itself every two seconds, and beat for itself every ten."""
    one = machine([over(world)] * 8)
    one.look()
    assert one.words() == [Word.NOTHING] * 8
    silence(world, 100)
    with statements(world.ledger) as sent:
        for _ in range(5):
            for child in one.children:
                child.heartbeat.beat()
            one.look()
            for child in one.children:
                child.runner.poll(child.supervisor)
                child.runner.claim_when_told(0)
    assert len(sent) == 5, sent
    assert seen(world) == {f"child-{number}": ("ready", True) for number in range(8)}


def test_children_whose_queue_has_work_are_woken_and_no_others(
    world: World, machine: Callable[..., Machine]
) -> None:
    idle, wanted = over(world), world.job(5, 5, name="other", callable="rules:other")
    paused = world.job(5, name="third", callable="rules:third")
    one = machine([idle, wanted, paused, wanted])
    one.ask()
    assert one.words() == [Word.NOTHING] * 4
    for job_id in (wanted, paused):
        world.admit(job_id)
    world.ask("UPDATE jobs SET state = 'paused' WHERE id = %s RETURNING 1", paused)
    one.ask()
    assert one.words() == [Word.NOTHING, Word.WORK, Word.NOTHING, Word.WORK]
    assert len(world.claim(wanted)) == 2
    one.ask()
    assert one.words() == [Word.NOTHING] * 4


def test_a_child_that_does_not_say_that_it_lives_is_not_beaten_for_and_is_ended(
    world: World, machine: Callable[..., Machine]
) -> None:
    one = machine([over(world)] * 2)
    lives, hangs = one.children
    one.ask()
    one.words()
    silence(world, hung_seconds(Settings()) + 100)
    one.supervisor._ledger_heard_since -= 1000
    lives.heartbeat.beat()
    one.ask()
    assert seen(world) == {lives.id: ("ready", True), hangs.id: ("ready", False)}
    one.look()
    killed = [cast(Any, slot.group).was_killed for slot in one.supervisor.slots]
    assert killed == [False, True]


def test_a_child_beats_for_itself_while_it_holds_a_batch_or_has_computed_something_new(
    world: World, machine: Callable[..., Machine]
) -> None:
    job_id = world.job(5)
    one = machine([job_id])
    (child,) = one.children
    one.ask()
    one.words()
    lease = world.lease(job_id, owner=child.id)
    batch, window = HeldBatch(lease, 5), child.runner.window
    window.add(batch)
    for _ in range(2):
        assert "UPDATE batches" in " ".join(beat(world, child))
    window.remove(batch)
    assert "INSERT INTO job_spending" in " ".join(beat(world, child))
    assert beat(world, child) == []


def beat(world: World, child: Child) -> list[str]:
    """What a child sends at a heartbeat."""
    with statements(world.ledger) as sent:
        child.heartbeat.beat()
    return sent


def test_a_child_whose_supervisor_is_silent_asks_and_beats_for_itself(
    world: World, machine: Callable[..., Machine]
) -> None:
    """A supervisor that is killed takes its children with it; one that is frozen leaves them."""
    one = machine([over(world)], poll_seconds=0.1, heartbeat_seconds=0.1)
    (child,) = one.children
    one.ask()
    one.words()
    child.supervisor.heard_at -= 1
    child.runner.asked_at -= 1
    assert "UPDATE workers" in " ".join(beat(world, child))
    with statements(world.ledger) as sent:
        child.runner.poll(child.supervisor)
        child.runner.claim_when_told(0)
    assert "FROM batches" in " ".join(sent)


def test_a_child_that_does_not_know_what_it_claimed_asks_again_whatever_its_supervisor_says(
    world: World, machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last claim may have leased batches; nobody would renew those."""
    job_id = world.job(5)
    one = machine([job_id], poll_seconds=0.1)
    (child,) = one.children
    lease = world.lease(job_id, owner=child.id)

    def lost(*_: object) -> None:
        raise LedgerUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(child.runner, "claim_share", lost)
        child.runner.work("poll", wait=False)
    one.ask()
    child.runner.asked_at -= 1
    child.runner.poll(child.supervisor)
    child.runner.claim_when_told(0)
    assert world.batch(lease.batch_id).state == "pending"


def test_a_child_of_a_cordoned_slot_claims_nothing_until_the_cordon_is_gone(
    world: World, machine: Callable[..., Machine]
) -> None:
    job_id = world.job(5, 5)
    one = machine([job_id])
    (child,) = one.children
    world.admit(job_id)
    world.ask("INSERT INTO cordons (kind, name, drains) VALUES ('worker', 'm', false) RETURNING 1")
    one.ask()
    for woken in ("poll", "message"):  # a hint may wake it all the same
        child.runner.poll(child.supervisor)
        child.runner.claim_when_told(0)
        assert child.runner.work(woken, wait=False) == 0
    assert world.states(job_id) == ["queued", "queued"]
    world.ask("DELETE FROM cordons RETURNING 1")
    one.ask()
    assert one.words() == [Word.WORK]


def test_a_child_that_waits_for_room_hears_of_a_cordon(
    world: World, machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread once claimed and listened: while work waited, it heard nothing."""
    job_id = world.job(5, 5)
    one = machine([job_id])
    (child,) = one.children
    room = threading.Event()
    monkeypatch.setattr(child.runner.window, "wait_for_room", lambda: room.wait(60) and False)

    def twice(call: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=lambda: [call() for _ in range(2)])
        thread.start()
        return thread

    world.admit(job_id)
    one.ask()
    claims = twice(partial(child.runner.claim_when_told, 60))
    listens = twice(partial(child.runner.poll, child.supervisor))
    wait_until(lambda: not child.runner.told.is_set() and claims.is_alive(), what="the claim")
    world.ask("INSERT INTO cordons (kind, name, drains) VALUES ('worker', 'm', false) RETURNING 1")
    one.ask()
    wait_until(child.runner.cordoned.is_set, what="the cordon in the child")
    room.set()
    child.runner.told.set()
    for thread in (claims, listens):
        thread.join(60)


def test_a_notice_is_kept_whoever_reads_it_and_whatever_is_said_later() -> None:
    to_child, end = ToChild.pair()
    child = ToSupervisor(end.detach())
    to_child.tell(Word.NOTHING)
    assert (child.wait(0), child.is_preempted) == (Word.NOTHING, False)
    to_child.tell(Word.PREEMPT)
    to_child.tell(Word.WORK)
    assert (child.wait(0), child.is_preempted) == (Word.PREEMPT, True)
    to_child.tell(Word.NOTHING)
    assert (child.wait(0), child.is_preempted) == (Word.NOTHING, True)
    to_child.close()


def test_what_was_said_to_a_process_that_was_frozen_is_heard_as_one_word() -> None:
    to_child, end = ToChild.pair()
    child = ToSupervisor(end.detach())
    for _ in range(5000):  # more than the socket keeps: nobody waits for a frozen process
        to_child.tell(Word.NOTHING)
    to_child.close()
    assert child.wait(0) is Word.NOTHING
    while child.wait(0) is not None:
        pass
    assert not child.say_idle(60)
