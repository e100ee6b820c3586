"""Redis holds hints only: it may be emptied, killed, frozen or gone, and lie or be silent."""

import signal
import subprocess
import time
from collections.abc import Callable

import pytest
import redis as client

from nightshift.common.ledger.jobs import jobs
from tests.support.fleet import wait_until
from tests.support.rig import Rig
from tests.support.servers import Server

GRACE_SECONDS = 200
"""What a worker may take to leave on a machine with much else to do; without limit it would wait for
Redis."""

LEASED = "SELECT count(*) FROM batches WHERE state = 'leased'"


def woken_by(rig: Rig, name: str) -> dict[str, int]:
    """How the claims of a job came about."""
    return dict(
        rig.ask(
            "SELECT woken, count(*) FROM attempts a JOIN jobs j ON j.id = a.job_id "
            "WHERE name = %s GROUP BY woken",
            name,
        )
    )


def wait_for_hint(rig: Rig, name: str) -> None:
    """Waits for a claim of the job that a hint led to, later than now.

    A chain of claims that a poll began goes on as one of polls while there is work, so the job is
    paused until the chain is over, and resumed, as often as it takes.
    """
    now = rig.value("SELECT now()")
    job = rig.value("SELECT id FROM jobs WHERE name = %s", name)
    claims = "SELECT woken FROM attempts WHERE claimed_at > %s"
    ends = time.monotonic() + 120
    while ("message",) not in rig.ask(claims, now):
        assert time.monotonic() < ends, "no claim that a hint led to within 120 s"
        with rig.ledger.transaction() as connection:
            jobs.pause(connection, job, "so that its claims begin anew")
        rig.let()  # what is held now, and no more
        wait_until(lambda: not rig.value(LEASED), what="the end of what is leased")
        rig.let(0)
        time.sleep(2)
        resumed = rig.value("SELECT now()")
        with rig.ledger.transaction() as connection:
            jobs.resume(connection, job)
        wait_until(lambda since=resumed: rig.ask(claims, since), what="a claim")


def go_on(rig: Rig, rows: int) -> None:
    """So many more rows get an answer."""
    done = rig.rows_done("emptied")
    rig.let(rows)
    rig.wait_rows("emptied", done + rows)


def waiting_hints(server: Server) -> int:
    """Messages in all queues of the broker."""
    with client.Redis.from_url(server.url) as redis:
        return sum(int(redis.llen(key)) for key in redis.keys("nightshift.*"))


def leave(rig: Rig, worker: subprocess.Popen[bytes]) -> None:
    """SIGTERM; it goes in time and holds nothing, and nothing was charged."""
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(GRACE_SECONDS) == 0
    print(f"left within {time.monotonic() - began:.1f} s")
    assert rig.value(LEASED) == 0
    assert rig.charges() == (0, 0)


@pytest.mark.slow
def test_an_emptied_a_restarted_a_frozen_and_a_lost_redis(rig: Rig, redis: Server) -> None:
    rig.let(20)
    ids = rig.submit("emptied", 5000)
    worker = rig.worker()
    rig.reaper()
    rig.wait_rows("emptied", 20)
    with client.Redis.from_url(redis.url) as connection:
        connection.flushall()
    wait_for_hint(rig, "emptied")
    go_on(rig, 20)
    redis.kill()
    go_on(rig, 200)
    redis.start()
    wait_for_hint(rig, "emptied")
    redis.freeze()
    go_on(rig, 200)
    leave(rig, worker)
    rig.let()
    # From here on there is none at all, neither for the reaper nor for a worker that starts.
    redis.kill()
    rig.worker()
    rig.finished("emptied", ids)
    assert rig.charges() == (0, 0)
    assert set(rig.computed().values()) == {1}


def test_without_redis_a_job_is_done_all_the_same(make_rig: Callable[..., Rig]) -> None:
    """Nobody listens at the broker's address, from the beginning to the end. The supervisor says
    that work waits: its child would ask after ten minutes.
    """
    rig = make_rig(broker="redis://127.0.0.1:1/0", NIGHTSHIFT_POLL_SECONDS="600")
    ids = rig.submit("alone", 60)
    rig.reaper()
    worker = rig.worker()
    rig.finished("alone", ids)
    assert woken_by(rig, "alone") == {"poll": 12}
    leave(rig, worker)


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, 0])
def test_messages_delivered_three_times_or_never(
    make_rig: Callable[..., Rig], redis: Server, times: int
) -> None:
    rig = make_rig(MESSAGES=str(times))
    with client.Redis.from_url(redis.url) as connection:
        connection.flushall()
    ids = rig.submit("repeated", 150)
    rig.reaper()
    if times:
        wait_until(lambda: waiting_hints(redis) >= times, what="each hint three times")
    rig.worker()
    rig.finished("repeated", ids)
    assert rig.charges() == (0, 0)
    assert set(rig.computed().values()) == {1}
    # A hint too much is an empty claim, not a second attempt.
    assert sum(woken_by(rig, "repeated").values()) == 30
    if not times:
        assert woken_by(rig, "repeated") == {"poll": 30}


@pytest.mark.long
def test_redis_frozen_for_minutes(rig: Rig, redis: Server, minutes: float) -> None:
    """Work goes on meanwhile, and a worker can leave at the end of it."""
    seconds = min(180.0, 60 * minutes / 4)
    ids = rig.submit("minutes", int(seconds * 50))
    workers = [rig.worker(), rig.worker()]
    rig.reaper()
    rig.wait_ready(2)
    redis.freeze()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        rig.wait_rows("minutes", min(len(ids), rig.rows_done("minutes") + 20))
        time.sleep(1)
    leave(rig, workers[0])
    redis.thaw()
    rig.finished("minutes", ids, seconds=300)
    assert rig.charges() == (0, 0)
