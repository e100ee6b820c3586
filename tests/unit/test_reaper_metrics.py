"""A reaper's figures: rounds as they were, and a ledger that nobody waits for."""

import threading
from queue import Queue

import pytest
from prometheus_client import CollectorRegistry

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.reaper.duty import Reaper
from nightshift.producer.reaper.metrics import (
    CACHE_SECONDS,
    KEEP_SECONDS,
    LedgerGauges,
    LedgerSnapshot,
    Rounds,
)
from tests.support import exported

SNAPSHOT = LedgerSnapshot(
    [
        {
            "job": 3,
            "name": "a",
            "pool": "p",
            "status": "running",
            "rows_total": 9,
            "rows_done": 4,
            "rows_failed": 0,
            **{f"batches_{state}": 0 for state in ("pending", "queued", "done", "dead")},
            "batches_leased": 2,
        }
    ],
    4,
    [
        {
            "pool": "p",
            "batches_waiting": 5,
            "batches_leased": 2,
            "desired_workers": 1,
            "machines_set_aside": 3,
        }
    ],
    [{"pool": "p", "state": "ready", "workers": 1}],
    1000.0,
)


class Clock:
    """Time that only a test moves, in seconds."""

    now = 500.0

    def __call__(self) -> float:
        return self.now


def registered(gauges: LedgerGauges) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(gauges)
    return registry


def test_a_scrape_shows_what_the_ledger_said() -> None:
    value = registered(LedgerGauges(lambda: SNAPSHOT, 60)).get_sample_value
    job = {"job_id": "3", "name": "a", "pool": "p"}
    assert value("nightshift_ledger_up") == 1
    assert value("nightshift_job_rows", {**job, "state": "done"}) == 4
    assert value("nightshift_job_batches", {**job, "state": "leased"}) == 2
    assert value("nightshift_job_status", {**job, "status": "running"}) == 1
    assert value("nightshift_jobs_left_out") == 4
    assert value("nightshift_ledger_look_timestamp_seconds") == 1000
    assert value("nightshift_pool_batches_waiting", {"pool": "p"}) == 5
    assert value("nightshift_pool_workers", {"pool": "p", "state": "ready"}) == 1


def test_many_scrapes_ask_the_ledger_once() -> None:
    asked = []

    def read() -> LedgerSnapshot:
        asked.append(1)
        return SNAPSHOT

    clock = Clock()
    registry = registered(LedgerGauges(read, 60, clock))
    for reads in (1, 2):
        for _ in range(5):
            assert registry.get_sample_value("nightshift_ledger_up") == 1
        assert len(asked) == reads
        clock.now += CACHE_SECONDS


def test_a_ledger_that_fails_or_is_silent_is_not_up_and_shows_no_old_figures() -> None:
    def away() -> LedgerSnapshot:
        raise LedgerUnavailable("no answer")

    answered = threading.Event()

    def silent() -> LedgerSnapshot:
        answered.wait(60)
        return SNAPSHOT

    for read, wait in ((away, 60.0), (silent, 0.01)):
        registry = registered(LedgerGauges(read, wait))
        assert registry.get_sample_value("nightshift_ledger_up") == 0
        assert registry.get_sample_value("nightshift_pool_batches_waiting", {"pool": "p"}) is None
    answered.set()


def test_a_slow_ledger_is_up_and_shows_its_last_figures_for_a_while() -> None:
    clock = Clock()
    answers: Queue[LedgerSnapshot | None] = Queue()
    done: Queue[None] = Queue()

    def slow() -> LedgerSnapshot:
        answer = answers.get(timeout=60)
        done.put(None)
        if answer is None:
            raise LedgerUnavailable("no answer")
        return answer

    gauges = LedgerGauges(slow, 0.01, clock)
    registry = registered(gauges)

    def up() -> float | None:
        shown = registry.get_sample_value("nightshift_pool_batches_waiting", {"pool": "p"})
        found = registry.get_sample_value("nightshift_ledger_up")
        assert shown == (5 if found else None)
        return found

    def answered(answer: LedgerSnapshot | None) -> None:
        """A read ends after the scrape that began it."""
        answers.put(answer)
        done.get(timeout=60)
        for thread in threading.enumerate():
            if thread.name == "snapshot":
                thread.join(60)

    assert up() == 0  # nothing is known yet
    for _ in range(3):
        answered(SNAPSHOT)
        clock.now += KEEP_SECONDS / 2
        assert up() == 1
    clock.now += KEEP_SECONDS / 2
    assert up() == 0  # too old
    answered(SNAPSHOT)
    assert up() == 1
    clock.now += KEEP_SECONDS / 2
    assert up() == 1
    answered(None)
    assert up() == 0  # away, which is not slow


def test_a_read_that_gets_no_thread_is_begun_by_the_next_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    registry = registered(LedgerGauges(lambda: SNAPSHOT, 60))
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        assert registry.get_sample_value("nightshift_ledger_up") == 0
    assert registry.get_sample_value("nightshift_ledger_up") == 1


def test_rounds_and_failed_duties_are_counted_and_a_failed_round_is_one_too() -> None:
    registry = CollectorRegistry()
    rounds = Rounds(registry)
    reaper = Reaper(
        Ledger("postgresql://nobody@127.0.0.1:1/none"), Settings(), rounds, delete=print
    )

    def _dispatch() -> None:
        raise LedgerUnavailable("no answer")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"nightshift_reaper_{name}", labels)

    rounds.expect("dispatch")
    assert value("duty_failures_total", duty="dispatch") == 0
    with rounds.round():
        assert reaper.attempt("dispatch", _dispatch) == (False, False)
        assert reaper.attempt("tidy", lambda: None) == (True, False)
    assert value("duty_failures_total", duty="dispatch") == 1
    assert value("rounds_total") == value("round_seconds_count") == 1
    assert value("last_round_timestamp_seconds")


def test_no_label_is_one_that_prometheus_gives_its_targets() -> None:
    """Prometheus would rename ours to exported_job, and every query would come back empty."""
    for name, metric in exported.metrics().items():
        assert not {"job", "instance"} & set(metric.labels), name
