"""A child, or a whole machine, is killed: others go on with what it held, nothing is orphaned."""

import subprocess
from collections.abc import Callable, Sequence

import pytest

from nightshift.common.failpoints import Moment
from nightshift.worker.heartbeat import HUNG_THREADS
from tests.support.fleet import is_alive, kill_tree, tree, wait_until
from tests.support.rig import Rig

STEPS = (
    Moment.CLAIMED,
    Moment.READING,
    Moment.ANSWERED,
    Moment.WRITING,
    Moment.WRITTEN,
    Moment.COMMITTING,
    Moment.COMMITTED,
)


@pytest.mark.parametrize(
    "steps",
    [
        STEPS[::3],
        pytest.param(
            tuple(each for each in STEPS if each not in STEPS[::3]), marks=pytest.mark.slow
        ),
    ],
    ids=["first and last", "others"],
)
def test_what_a_dead_child_held_goes_to_its_warm_siblings_at_once(
    rig: Rig, steps: Sequence[Moment]
) -> None:
    """At each step of a batch. One child starts anew while the others go on with the next step."""
    rig.environment |= {
        # So long that the test is over before a lease runs out: only the supervisor frees any.
        "NIGHTSHIFT_LEASE_SECONDS": "600",
        "NIGHTSHIFT_HEARTBEAT_SECONDS": "5",
    }
    rig.reaper()
    worker = rig.worker("--slots", "4")
    for moment in steps:
        warm_up(rig, f"warm-{moment}", lambda: len(living(rig, worker)) >= 2)
        rig.arm(moment, "kill")
        ids = rig.submit(moment, 100)
        victim = worker_of(rig, rig.wait_fired(moment))
        rig.finished(moment, ids)
        (outcome,) = rig.ask(
            "SELECT count(*) FILTER (WHERE outcome = 'done'), count(*) FILTER (WHERE outcome "
            "= 'lost') FROM attempts JOIN jobs j ON j.id = job_id "
            "WHERE worker_id = %s AND j.name = %s",
            victim,
            moment,
        )
        assert outcome[0] >= 1 if moment is Moment.COMMITTED else outcome[1] >= 1, moment
        assert victim not in taken_over(rig, victim, moment)
    failures, _ = rig.charges()
    assert failures == 0


@pytest.mark.slow
def test_when_machines_are_lost_another_goes_on_with_what_they_held(rig: Rig) -> None:
    """One is gone at once; of the other only the supervisor, and nobody is left to end the rest."""
    rig.reaper()
    machines = [rig.worker() for _ in range(3)]
    query = "SELECT id FROM workers WHERE state = 'ready'"
    warm_up(rig, "warm", lambda: len(rig.ask(query)) >= len(machines))
    rig.let(0)
    ids = rig.submit("lost", 300)
    gone, headless = wait_until(lambda: holding(rig, machines, 2), what="two that hold leases")
    lost = [worker_of(rig, rig.child(machine).pid) for machine in (gone, headless)]
    members = tree(headless)
    headless.kill()
    kill_tree(gone)
    headless.wait(60)
    wait_until(lambda: not any(map(is_alive, members)), what="the end of the orphans")
    rig.let()
    rig.finished("lost", ids)
    taken = [owner for one in lost for owner in taken_over(rig, one, "lost")]
    assert taken
    assert set(taken).isdisjoint(lost)
    failures, _ = rig.charges()
    assert failures == 0


@pytest.mark.slow
def test_a_child_whose_threads_hang_leaves_in_order_and_charges_nothing(rig: Rig) -> None:
    """Its supervisor sees no death: the batches of its other threads are finished or released."""
    rig.environment["NIGHTSHIFT_STAGE_TIMEOUT_SECONDS"] = "1"
    rig.reaper()
    worker = rig.worker()
    rig.arm(Moment.READING, "hang", times=HUNG_THREADS + 1)
    ids = rig.submit("hung", 100, batch={"rows": 1})
    hung = worker_of(rig, rig.wait_fired(Moment.READING))
    rig.finished("hung", ids)
    assert hung not in living(rig, worker)
    assert rig.charges() == (0, 0)
    assert rig.ask("SELECT error FROM workers WHERE id = %s", hung) == [(None,)]
    assert len(rig.fired(Moment.READING)) == HUNG_THREADS + 1


def warm_up(rig: Rig, name: str, is_warm: Callable[[], bool]) -> None:
    """Waits until enough children are warm. Engines are loaded only while a job has work for them."""
    if is_warm():
        return
    rig.let(0)  # nothing ends while some of them still load
    rig.submit(name, 3000)
    wait_until(is_warm, what="enough warm children")
    rig.let()
    rig.wait_closed(name)


def worker_of(rig: Rig, pid: int) -> str:
    """The id of the child that has, or had, this process id."""
    query = "SELECT id FROM workers WHERE pid = %s ORDER BY started_at DESC LIMIT 1"
    return str(rig.value(query, pid))


def living(rig: Rig, worker: subprocess.Popen[bytes]) -> set[str]:
    """The warm children of a supervisor that are alive."""
    query = "SELECT pid, id FROM workers WHERE state = 'ready'"
    alive = {child.pid for child in rig.children(worker) if is_alive(child)}
    return {id for pid, id in rig.ask(query) if pid in alive}


def holding(
    rig: Rig, machines: list[subprocess.Popen[bytes]], wanted: int
) -> list[subprocess.Popen[bytes]] | None:
    """So many machines whose children hold batches, once there are enough of them."""
    query = "SELECT pid FROM worker_status WHERE batches_leased > 0"
    pids = {pid for (pid,) in rig.ask(query)}
    found = [one for one in machines if pids & {child.pid for child in rig.children(one)}]
    return found[:wanted] if len(found) >= wanted else None


def taken_over(rig: Rig, victim: str, name: str) -> list[str]:
    """For each batch that the victim lost, the child that claimed it next."""
    found = rig.ask(
        """
        SELECT next.worker_id FROM attempts lost JOIN jobs j ON j.id = lost.job_id
        LEFT JOIN attempts next
             ON next.batch_id = lost.batch_id AND next.attempt = lost.attempt + 1
        WHERE lost.outcome = 'lost' AND lost.worker_id = %s AND j.name = %s
        """,
        victim,
        name,
    )
    return [owner for (owner,) in found]
