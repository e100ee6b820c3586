"""Three reapers, any of them frozen, also inside a transaction: others go on, none overshoots."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from nightshift.common.failpoints import Moment
from nightshift.producer.reaper.admission import LEAST_QUEUED, WINDOWS_AHEAD
from tests.support.fleet import wait_until
from tests.support.rig import Rig
from tests.support.servers import Server

BATCH_ROWS = 5

LEASE_SECONDS = 16
"""After an outage a busy machine has so long for its first heartbeat, and each duty of a reaper half of it."""


class Admitted:
    """The most rows that were ever seen waiting for a claim."""

    QUERY = "SELECT coalesce(sum(row_count), 0) FROM batches WHERE state = 'queued'"

    def __init__(self, url: str) -> None:
        self.most_rows = 0
        self._url = url
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks all the time, over a connection of its own."""
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join(60)

    def _watch(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(0.01):
                found = connection.execute(self.QUERY).fetchone()
                assert found is not None
                self.most_rows = max(self.most_rows, int(found[0]))


def in_transaction(rig: Rig) -> bool:
    """True while a session is idle inside a transaction."""
    return bool(
        rig.ask(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in transaction%'"
        )
    )


@pytest.mark.slow
def test_three_reapers_frozen_by_turns(rig: Rig, postgres: Server) -> None:
    rig.environment["NIGHTSHIFT_LEASE_SECONDS"] = str(LEASE_SECONDS)
    rig.let(0)
    ids = rig.submit("reaped", 2000, batch={"rows": BATCH_ROWS})

    # Two of three are frozen in their first round, one of them with what it has just admitted.
    rig.arm(Moment.DISPATCHING, "freeze", times=2)
    reapers = [rig.reaper() for _ in range(3)]
    wait_until(lambda: len(rig.fired(Moment.DISPATCHING)) == 2, what="two frozen reapers")
    for pid in rig.fired(Moment.DISPATCHING):
        os.kill(pid, signal.SIGCONT)
    query = "SELECT count(*) FROM batches WHERE state = 'queued'"
    wait_until(
        lambda: rig.value(query) >= LEAST_QUEUED and not in_transaction(rig), what="an admission"
    )
    assert rig.value(query) == LEAST_QUEUED

    rig.worker()
    rig.wait_ready()
    ahead = WINDOWS_AHEAD * rig.value("SELECT window_rows FROM workers WHERE state = 'ready'")
    admitted = Admitted(rig.url)
    with admitted.watched():
        for reaper in reapers[:2]:
            reaper.send_signal(signal.SIGSTOP)
            go_on(rig, 50)
            reaper.send_signal(signal.SIGCONT)
        for moment in (Moment.DISPATCHING, Moment.REAPING):
            rig.arm(moment, "freeze")
            count = len(rig.fired(moment)) + 1
            wait_until(lambda m=moment, c=count: len(rig.fired(m)) == c, what=f"one at {moment}")
            frozen = rig.fired(moment)[-1]
            # More than what was admitted and claimed before: somebody else goes on admitting.
            go_on(rig, ahead + 200)
            os.kill(frozen, signal.SIGCONT)
        # One that sleeps through an outage does not take its end for the death of everybody.
        reapers[0].send_signal(signal.SIGSTOP)
        postgres.freeze()
        time.sleep(1.5 * LEASE_SECONDS)
        reapers[0].send_signal(signal.SIGCONT)
        postgres.thaw()
        # One that was frozen inside a transaction goes on alone.
        end(reaper for reaper in reapers if reaper.pid != frozen)
        rig.let()
        rig.finished("reaped", ids)
    assert 0 < admitted.most_rows <= ahead + BATCH_ROWS
    assert rig.charges() == (0, 0)
    assert rig.ask("SELECT DISTINCT outcome FROM attempts") == [("done",)]


def go_on(rig: Rig, rows: int) -> None:
    """Waits until so many more rows have an answer."""
    done = rig.rows_done("reaped")
    rig.let(rows)
    rig.wait_rows("reaped", done + rows)


def end(reapers: Iterator[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, and they go."""
    leaving = list(reapers)
    for reaper in leaving:
        reaper.terminate()
    for reaper in leaving:
        assert reaper.wait(200) == 0
