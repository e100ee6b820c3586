"""Workers that are frozen past their leases, and workers whose clocks are wrong."""

import signal
from collections.abc import Callable

import psutil
import psycopg
import pytest

from nightshift.common.failpoints import Moment
from nightshift.common.ledger.queries import audit
from tests.support.fleet import kill_tree, wait_until
from tests.support.rig import Rig


@pytest.mark.slow
def test_a_worker_frozen_past_its_lease_counts_for_nothing_and_goes_on(rig: Rig) -> None:
    """First its child, with a written part in hand; then all of a worker, inside its COMMIT."""
    rig.reaper()
    # Both start before the freeze: starting a worker can take longer than a frozen child may be silent.
    workers = [rig.worker(), rig.worker()]
    rig.arm(Moment.WRITTEN, "freeze")
    ids = {"written": rig.submit("written", 60)}
    child = psutil.Process(rig.wait_fired(Moment.WRITTEN))
    overtaken(rig, "written", ids["written"], child, [child])

    rig.arm(Moment.COMMITTING, "freeze")
    ids["committing"] = rig.submit("committing", 200)
    child = psutil.Process(rig.wait_fired(Moment.COMMITTING))
    (worker,) = (one for one in workers if child in rig.children(one))
    overtaken(rig, "committing", ids["committing"], child, rig.freeze(worker))

    both = {child.pid for worker in workers for child in rig.children(worker)}
    assert len(both) == 2
    assert claimants(rig, "committing") == both
    # After the thaw it takes its share of new work, of which nothing ends before.
    rig.let(0)
    ids["after"] = rig.submit("after", 300)
    wait_until(lambda: claimants(rig, "after") == both, what="a claim of each child")
    rig.let()
    rig.finished("after", ids["after"])
    for worker in workers:
        worker.terminate()
    assert [worker.wait(200) for worker in workers] == [0, 0]
    for name, expected in ids.items():  # once more, when nobody has anything in hand
        rig.oracle(name, expected)
    failures, _ = rig.charges()
    assert failures == 0


@pytest.mark.slow
def test_the_warm_child_of_a_frozen_supervisor_asks_and_beats_for_itself(
    make_rig: Callable[..., Rig],
) -> None:
    """Without Redis, so that no hint wakes the child either."""
    rig = make_rig(broker="redis://127.0.0.1:1/0")
    rig.reaper()
    worker = rig.worker()
    rig.finished("before", rig.submit("before", 10))
    worker.send_signal(signal.SIGSTOP)
    rig.finished("frozen", rig.submit("frozen", 60))
    beaten = "SELECT seen_at > now() - interval '2 seconds' FROM workers WHERE state = 'ready'"
    wait_until(lambda: rig.ask(beaten) == [(True,)], what="a heartbeat of the child")
    worker.send_signal(signal.SIGCONT)
    rig.finished("thawed", rig.submit("thawed", 10))
    assert rig.value("SELECT count(*) FROM workers") == 1
    assert rig.charges() == (0, 0)


@pytest.mark.slow
def test_leases_obey_the_clock_of_the_database_alone(rig: Rig) -> None:
    """Batches take longer than a lease; one worker's clock is ten minutes ahead, one's behind."""
    rig.reaper()
    workers = []
    for seconds in (600, -600):
        rig.environment["CLOCK_SECONDS"] = str(seconds)
        workers.append(rig.worker())
    rig.let(0)
    ids = rig.submit("healthy", 1000, batch={"rows": 250})
    rig.wait_ready(2)
    both = {child.pid for worker in workers for child in rig.children(worker)}
    wait_until(lambda: claimants(rig, "healthy") == both, what="a claim of each child")
    longer = """
        SELECT count(DISTINCT worker_id) = 2 FROM attempts
        WHERE ended_at IS NULL AND claimed_at < now() - interval '5 seconds'
    """
    wait_until(lambda: rig.value(longer), what="a lease of each that was renewed more than twice")
    rig.let()
    rig.finished("healthy", ids)
    assert rig.charges() == (0, 0)

    ahead = rig.child(workers[0]).pid
    rig.let(0)
    ids = rig.submit("killed", 300)
    wait_until(lambda: holds(rig, ahead), what="leases of the worker whose clock is ahead")
    kill_tree(workers[0])
    rig.let()
    rig.finished("killed", ids)
    taken = rig.ask(
        """
        SELECT lost.error FROM attempts lost JOIN workers w ON w.id = lost.worker_id
        WHERE lost.outcome = 'lost' AND w.pid = %s
        """,
        ahead,
    )
    assert taken
    for (error,) in taken:
        assert "the lease ran out" in error
    assert rig.charges() == (0, len(taken))


def test_the_oracle_sees_a_transaction_left_open_unless_it_holds_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be frozen between BEGIN and the limits that would end its session."""
    monkeypatch.setattr(audit, "IDLE_SECONDS", 0)

    def seen() -> list[int]:
        with rig.ledger.transaction() as connection:
            return [row["pid"] for row in audit.idle_transactions(connection)]

    with psycopg.connect(rig.url, application_name="nightshift") as left_open:
        left_open.execute("SET LOCAL lock_timeout = 1000")
        assert seen() == []
        left_open.execute("SELECT count(*) FROM jobs")
        assert seen() == [left_open.info.backend_pid]


def overtaken(
    rig: Rig, name: str, ids: list[str], child: psutil.Process, frozen: list[psutil.Process]
) -> None:
    """Another does what the frozen child holds before that goes on: its part is never named."""
    (owner,) = (found for (found,) in rig.ask("SELECT id FROM workers WHERE pid = %s", child.pid))
    output = rig.folder / name
    listed = {path.name for path in output.glob("part-*")}
    named = {part for (part,) in rig.ask("SELECT part_name FROM batches")}
    assert listed <= named
    rig.finished(name, ids)
    outcomes = "SELECT DISTINCT outcome FROM attempts WHERE worker_id = %s AND outcome <> 'done'"
    assert rig.ask(outcomes, owner) == [("lost",)]
    assert not (output / "_attempts").exists()
    at = rig.value("SELECT clock_timestamp()")
    rig.thaw(frozen)
    alive = "SELECT seen_at > %s AND state = 'ready' FROM workers WHERE id = %s"
    wait_until(lambda: rig.value(alive, at, owner), what="the next heartbeat of the thawed child")


def claimants(rig: Rig, name: str) -> set[int]:
    """Process ids of the children that claimed batches of a job."""
    found = rig.ask(
        "SELECT DISTINCT w.pid FROM attempts a JOIN jobs j ON j.id = a.job_id "
        "JOIN workers w ON w.id = a.worker_id WHERE j.name = %s",
        name,
    )
    return {pid for (pid,) in found}


def holds(rig: Rig, pid: int) -> bool:
    """Whether a child holds a batch now."""
    query = "SELECT coalesce(max(batches_leased), 0) FROM worker_status WHERE pid = %s"
    return bool(rig.value(query, pid))
