"""The table of a reaper's duties: who takes turns when, what is counted, and how a reaper leaves."""

import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer import wings
from nightshift.producer.reaper import duties, duty, loop, watchdog
from nightshift.producer.reaper.duty import Beside, Duty, Reaper, Round
from nightshift.producer.reaper.metrics import Rounds
from tests.support.fleet import wait_until


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def reaper(registry: CollectorRegistry) -> Iterator[Reaper]:
    """A reaper whose Postgres never answers."""
    settings = Settings(serve_store="/nowhere", retention_days=1, dispatch_seconds=0.01)
    ledger = Ledger("postgresql://nobody@127.0.0.1:1/none")
    found = Reaper(ledger, settings, Rounds(registry), delete=print)
    yield found
    found.stop.set()
    found.at_end.close()
    ledger.close()


def test_every_duty_is_in_the_table_once_and_its_failures_are_counted_from_zero(
    reaper: Reaper, registry: CollectorRegistry
) -> None:
    names = [each.name for each in duties.table(reaper)]
    assert len(names) == len(set(names))
    for name in (*names, "hold"):  # `hold` is one budget of many
        failures = registry.get_sample_value(
            "nightshift_reaper_duty_failures_total", {"duty": name}
        )
        assert failures == 0


def test_budgets_are_held_before_anything_is_admitted_and_nothing_is_reaped_before(
    reaper: Reaper,
) -> None:
    turns = [each.name for each in duties.table(reaper) if not each.threads]
    assert turns == ["hold_budgets", "unqueue", "dispatch", "reap", "tidy", "beat"]


def test_a_reaper_has_a_connection_for_its_rounds_and_each_duty_that_may_take_long(
    reaper: Reaper,
) -> None:
    threads = 1 + sum(each.threads for each in duties.table(reaper))
    assert threads <= 2 * loop.CONNECTIONS, "as many again are opened where they are needed"


def test_a_wing_that_is_not_installed_has_no_duties(
    reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wings, "INSTALLED", ())
    wings.modules.cache_clear()
    try:
        names = {each.name for each in duties.table(reaper)}
    finally:
        wings.modules.cache_clear()
    assert names & {"archive_due", "make_looks", "validate", "finalize"} == set()
    assert {"dispatch", "reap", "finish", "write_finished"} <= names


def test_a_round_takes_turns_in_order_and_a_duty_with_a_pause_waits(reaper: Reaper) -> None:
    seen: list[str] = []

    def turn(name: str) -> Duty:
        return Duty(name, 60.0 if name == "seldom" else 0.0, lambda: seen.append(name))

    turns = Round(reaper, [turn("first"), turn("seldom"), turn("last")])
    turns.turn()
    turns.turn()
    assert seen == ["first", "seldom", "last", "first", "last"]


def test_a_duty_that_fails_stops_no_other_and_delays_the_reaping(reaper: Reaper) -> None:
    seen: list[str] = []

    def fail() -> None:
        raise LedgerUnavailable("no answer")

    reaper.silence.reap_from = 0.0
    assert reaper.silence.may_reap
    failing, next_one = Duty("reap", 0.0, fail), Duty("tidy", 0.0, lambda: seen.append("tidy"))
    Round(reaper, [failing, next_one]).turn()
    assert seen == ["tidy"]
    assert not reaper.silence.may_reap


def test_a_duty_with_threads_goes_on_at_once_while_there_is_more_and_leaves_in_time(
    reaper: Reaper,
) -> None:
    left, busy, go_on = [3], threading.Event(), threading.Event()

    def turn() -> bool:
        left[0] -= 1
        if left[0] == 0:
            busy.set()
            assert go_on.wait(60)
        return left[0] > 0

    beside = Beside(reaper, Duty("finish", 0.01, turn, threads=1, leave_seconds=0.05))
    beside.start()
    assert busy.wait(60)
    reaper.stop.set()
    began = time.monotonic()
    beside.leave(began)  # what hangs holds up nobody
    assert beside._threads[0].is_alive()
    go_on.set()
    wait_until(lambda: not beside._threads[0].is_alive(), what="the end of the turn")


def test_threads_of_a_duty_that_find_nothing_ask_no_more_often_than_one_would(
    reaper: Reaper,
) -> None:
    asked, enough = [0], threading.Event()

    def turn() -> bool:
        asked[0] += 1
        if asked[0] >= 5:
            enough.set()
        return False

    beside = Beside(reaper, Duty("finish", 0.1, turn, threads=4))
    began = time.monotonic()
    beside.start()
    assert enough.wait(60)
    # The first asks at once, then four pauses come one after the other; four threads by themselves would need one.
    assert time.monotonic() - began >= 0.4


def test_a_turn_that_failed_is_tried_again_soon_however_long_the_pause_is(
    reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)

    def fail() -> None:
        tried.release()
        raise LedgerUnavailable("no answer")

    monkeypatch.setattr(duty, "RETRY_SECONDS", 0.01)
    Beside(reaper, Duty("sweep_files", 3600.0, fail, threads=1)).start()
    for _ in range(3):
        assert tried.acquire(timeout=60)
    turns = Round(reaper, [Duty("beat", 3600.0, fail)])
    turns.turn()
    turns.turn()
    assert tried.acquire(timeout=60)
    assert tried.acquire(timeout=60)


def test_the_watchdog_says_when_the_next_sign_of_the_round_is_due() -> None:
    written: list[float] = []

    class State:
        def write(self, late_at: float) -> None:
            written.append(late_at - time.monotonic())

    settings = Settings(dispatch_seconds=2.0)
    watchdog.Watchdog(settings, State()).alive()
    longest = watchdog.DUTY_ANSWERS * settings.answer_seconds + watchdog.BROKER_SECONDS
    assert written == [pytest.approx(watchdog.DUTIES * longest + 2.0, abs=1)]
