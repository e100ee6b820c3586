"""The connection is cut during COMMIT: what Postgres says afterwards decides, nobody guesses."""

import json
import threading
from collections.abc import Callable

import pytest

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.submit import submit
from tests.support.databases import with_port
from tests.support.fleet import wait_until
from tests.support.proxy import Proxy
from tests.support.rig import Rig

TRANSACTIONS = {
    "commit": b"SET state = CASE WHEN",
    "ready": b"SET state = 'ready'",
    "claim": b"candidates AS MATERIALIZED",
    "renew": b"UPDATE batches b SET lease_expires_at",
    "dispatch": b"SET state = 'queued'",
    "schema": b"SET output_schema",
    "submit": b"COPY batches",
    "close": b"closed_at = now()",
}
"""What a transaction sends, by what it does."""


WAITING = "SELECT 1 FROM batches WHERE state = 'queued' LIMIT 1"


class Cuts:
    """Cuts connections at the COMMIT of chosen transactions, by turns before Postgres gets it and
    after it did it. `is_worth_it` is asked before: many a claim takes nothing.
    """

    def __init__(self, proxy: Proxy) -> None:
        self.is_worth_it: Callable[[str], bool] = lambda _what: True
        self._left: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self._own = threading.local()  # the proxy has a thread for each connection
        proxy.spot = self._spot

    def order(self, what: str, times: int) -> None:
        """The next COMMITs of such transactions: cut before, cut after, and so on."""
        with self._lock:
            self._left[what] = ["before", "after"] * times

    def left(self) -> dict[str, list[str]]:
        """What was ordered and did not happen yet."""
        with self._lock:
            return {what: verbs for what, verbs in self._left.items() if verbs}

    def _spot(self, data: bytes) -> str | None:
        for what, sign in TRANSACTIONS.items():
            if sign in data:
                self._own.what = what
        if b"COMMIT\0" not in data:
            return None
        what, self._own.what = getattr(self._own, "what", ""), ""
        if not self._left.get(what) or not self.is_worth_it(what):
            return None
        with self._lock:
            return self._left[what].pop(0) if self._left[what] else None


@pytest.fixture
def cuts(proxy: Proxy) -> Cuts:
    return Cuts(proxy)


def worker_says(rig: Rig, event: str) -> list[dict[str, object]]:
    """Lines of the workers' logs with this event."""
    lines = [
        line
        for log in rig.folder.glob("nightshift.worker.*.log")
        for line in log.read_text().split("\n")
    ]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.mark.slow
def test_read_back_decides_what_a_cut_commit_was(
    make_rig: Callable[..., Rig], proxy: Proxy, cuts: Cuts, database_url: str
) -> None:
    rig = make_rig(told=with_port(database_url, proxy.port), NIGHTSHIFT_LOG_FORMAT="json")
    cuts.order("commit", 5)
    cuts.order("schema", 1)
    cuts.order("ready", 1)
    rig.reaper()
    rig.worker()
    ids = rig.submit("commits", 200)
    for rows in range(20, 200, 20):  # so many commits at least, however the machine groups them
        rig.let(20)
        rig.wait_rows("commits", rows)
    rig.let()
    rig.finished("commits", ids)
    assert not cuts.left()
    # No warm engine was thrown away.
    assert rig.value("SELECT count(*) FROM workers") == 1
    # One attempt a batch, and its child knows that it was the one.
    assert rig.ask("SELECT attempt, outcome, count(*) FROM attempts GROUP BY 1, 2") == [
        (1, "done", 40)
    ]
    # The job may be over while the child still reads back what became of its last commit.
    wait_until(lambda: len(worker_says(rig, "batch_done")) == 40, what="the child's own word")
    assert not worker_says(rig, "lease_lost")

    cuts.is_worth_it = lambda what: what != "claim" or rig.ask(WAITING) != []
    for what, times in {"claim": 2, "renew": 2, "dispatch": 2, "close": 1}.items():
        cuts.order(what, times)
    rig.let(100)
    ids = rig.submit("others", [("b.parquet", 300)])
    wait_until(lambda: cuts.left().keys() == {"close"}, what="the cuts while it runs")
    rig.let()
    rig.finished("others", ids)
    assert not cuts.left()
    assert rig.charges() == (0, 0)
    assert set(rig.computed().values()) == {1}
    outcomes = dict(rig.ask("SELECT outcome, count(*) FROM attempts GROUP BY 1"))
    assert outcomes["done"] == 100
    # What a claim took whose answer never came is given back at once, not left to expire.
    assert outcomes.keys() == {"done", "released"}
    assert not worker_says(rig, "lease_lost")


def test_submitting_again_after_a_cut_gives_one_job(
    rig: Rig, proxy: Proxy, cuts: Cuts, database_url: str
) -> None:
    rig.submit("other", 5)
    source = rig.spec_of("other")["input"]
    spec = JobSpec.model_validate({**rig.spec_of("twice"), "input": source})
    ledger = Ledger(with_port(database_url, proxy.port), connections=1)
    cuts.order("submit", 1)
    for stored in (0, 1):
        with pytest.raises(LedgerUnavailable):
            submit(ledger, spec, Settings())
        assert rig.value("SELECT count(*) FROM jobs WHERE name = 'twice'") == stored
        assert rig.value("SELECT count(*) FROM batches") == 1 + stored
    assert not cuts.left()
    again = submit(ledger, spec, Settings())
    assert not again.is_new
    assert again.job_id == rig.value("SELECT id FROM jobs WHERE name = 'twice'")
    ledger.close()
