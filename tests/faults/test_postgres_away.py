"""Postgres goes away and comes back: nothing hangs, nothing is charged, no row runs twice."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from nightshift.common.failpoints import Moment
from tests.support.fleet import wait_until
from tests.support.proxy import Mode, Proxy
from tests.support.rig import Rig
from tests.support.serve import CLIENT_SECONDS, Door
from tests.support.servers import Server

GRACE_SECONDS = 200
"""What a worker may take to leave on a machine with much else to do; without limit it would wait for
Postgres."""

LEASE_SECONDS = 4
"""After an outage a busy machine has so long for its first heartbeat."""

SILENT_SECONDS = 6
"""Longer than anybody in a rig waits for an answer."""


def leave(worker: subprocess.Popen[bytes]) -> None:
    """SIGTERM; it must go in time, whatever it cannot reach."""
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(GRACE_SECONDS) == 0
    print(f"left within {time.monotonic() - began:.1f} s")


@pytest.mark.slow
def test_an_outage_costs_no_finished_work(
    proxied: Rig, postgres: Server, proxy: Proxy, minutes: float
) -> None:
    """Each lasts longer than a lease: what was claimed is finished and waits for its COMMIT."""
    rig = proxied
    rig.environment["NIGHTSHIFT_LEASE_SECONDS"] = str(LEASE_SECONDS)
    rig.let(0)
    ids = rig.submit("outages", 700)
    rig.worker()
    rig.reaper()
    longer = 4 if minutes else 1

    def lasts(seconds: float) -> None:
        """Rows are computed meanwhile."""
        wanted = rig.computed().total() + 20
        rig.let(20)
        wait_until(lambda: rig.computed().total() >= wanted, what="rows without Postgres")
        time.sleep(longer * seconds)

    def restarted() -> None:
        for _ in range(2 * longer):
            postgres.stop()
            postgres.start()
            time.sleep(1)
        postgres.kill()
        lasts(1.5 * LEASE_SECONDS)
        postgres.start()

    def frozen(seconds: float = 1.5 * LEASE_SECONDS) -> None:
        """Its answers come late, but they come."""
        postgres.freeze()
        lasts(seconds)
        postgres.thaw()

    def frozen_long() -> None:
        frozen(SILENT_SECONDS)

    def black_hole(mode: Mode = Mode.SWALLOW) -> None:
        proxy.mode = mode
        lasts(SILENT_SECONDS)
        proxy.mode = Mode.PASS

    def late() -> None:
        """What is sent arrives, long after its sender gave up."""
        black_hole(Mode.HOLD)

    for outage in (frozen, restarted, black_hole, *((frozen_long, late) if minutes else ())):
        rig.let(20)
        rig.wait_rows("outages", rig.rows_done("outages") + 20)
        done = rig.rows_done("outages")
        outage()
        rig.let(20)
        rig.wait_rows("outages", done + 40)
        assert rig.charges() == (0, 0), f"{outage.__name__}\n{rig.standing()}"
    rig.let()
    rig.finished("outages", ids)
    assert rig.charges() == (0, 0)
    assert set(rig.computed().values()) == {1}
    # A claim whose COMMIT was cut off is given back; nothing else was ever tried twice.
    outcomes = dict(rig.ask("SELECT outcome, count(*) FROM attempts GROUP BY 1"))
    assert outcomes["done"] == len(ids) / 5
    assert outcomes.keys() <= {"done", "released"}


@pytest.mark.slow
def test_a_worker_frozen_in_a_transaction_stops_nobody(rig: Rig, postgres: Server) -> None:
    """And one that is asked to leave while Postgres is frozen goes in time."""
    rig.let(0)
    ids = rig.submit("frozen", 1200)
    workers = [rig.worker(), rig.worker()]
    rig.reaper()
    rig.wait_ready(2)
    for moment in (Moment.COMMITTING, Moment.RENEWING):
        rig.arm(moment, "freeze")
        rig.let(20)
        frozen = rig.wait_fired(moment)
        done = rig.rows_done("frozen")
        last = wait_for_old_transactions(rig)
        assert psutil.pid_exists(frozen), f"its own end ended its transaction:\n{last}"
        # More than it can have held itself.
        rig.let(220)
        rig.wait_rows("frozen", done + 200)
        wait_until(lambda pid=frozen: not leases_of(rig, pid), what="the end of its leases")
        with suppress(ProcessLookupError):  # frozen for long, it counts as hung
            os.kill(frozen, signal.SIGCONT)
        done = rig.rows_done("frozen")
        rig.let(40)
        rig.wait_rows("frozen", done + 20)
    postgres.freeze()
    leave(workers[0])
    postgres.thaw()
    rig.let()
    rig.finished("frozen", ids)
    assert rig.charges()[0] == 0


def wait_for_old_transactions(rig: Rig) -> str:
    """Waits until every transaction that is open now is over; returns those that took longest."""
    now = rig.value("SELECT now()")
    query = """
        SELECT pid, state, clock_timestamp() - xact_start, clock_timestamp() - state_change,
               wait_event_type, wait_event, query
        FROM pg_stat_activity WHERE datname = current_database()
        AND backend_type = 'client backend' AND xact_start <= %s
    """
    last = ""

    def over() -> bool:
        nonlocal last
        found = rig.ask(query, now)
        last = "\n".join(map(str, found)) or last
        return not found

    try:
        wait_until(over, what="the end of a transaction")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{last}\n{rig.standing()}") from error
    return last


def leases_of(rig: Rig, pid: int) -> int:
    """How many leases the child with this process id holds."""
    return int(
        rig.value(
            "SELECT count(*) FROM batches b JOIN workers w ON w.id = b.owner "
            "WHERE b.state = 'leased' AND w.pid = %s",
            pid,
        )
    )


@pytest.mark.slow
def test_a_server_says_within_ten_seconds_that_postgres_is_away_and_answers_meanwhile(
    tmp_path: Path, database_url: str, redis_url: str, postgres: Server
) -> None:
    engine = {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    door = Door(tmp_path / "door", database_url, redis_url, {"m": {"engine": engine}})
    health = f"http://127.0.0.1:{door.port}/healthz"
    try:
        door.serve()
        assert httpx.get(health, timeout=CLIENT_SECONDS).text == "ok\n"
        for away, back in ((postgres.freeze, postgres.thaw), (postgres.kill, postgres.start)):
            away()
            answer = wait_until(
                lambda: (
                    "Postgres has not answered for"
                    in (response := httpx.get(health, timeout=CLIENT_SECONDS)).text
                    and response
                ),
                what="a sentence about Postgres",
            )
            assert (answer.status_code, answer.text.splitlines()[0]) == (200, "ok")
            assert postgres.url.rpartition("@")[2] not in answer.text, "whoever asks brings no key"
            back()
            wait_until(
                lambda: httpx.get(health, timeout=CLIENT_SECONDS).text == "ok\n",
                what="Postgres again",
            )
    finally:
        door.end()
