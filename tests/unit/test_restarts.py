"""How often a process that ends by itself is started again, and what is said of it meanwhile."""

import pytest

from nightshift.producer.local.restarts import (
    LIVED_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Restarts,
    pause_seconds,
)
from nightshift.producer.serve.health import SILENT_SECONDS, Health


@pytest.mark.parametrize(
    ("ends", "pause"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (8, 60), (9, 60), (10**6, 60)]
)
def test_each_end_in_a_row_doubles_the_pause_up_to_a_longest(ends: int, pause: float) -> None:
    assert pause_seconds(ends) == pause <= LONGEST_PAUSE_SECONDS


def test_an_end_after_a_long_life_is_the_first_one_again() -> None:
    now, restarts = 0.0, Restarts()
    for life in range(1000):
        restarts.began(now)
        now += LIVED_SECONDS
        restarts.ended(now, "with exit code 1")
        assert (restarts.ends, restarts.is_due(now)) == (1, True), f"after life {life}"


def test_a_process_that_ends_at_once_is_started_no_more_than_once_a_minute() -> None:
    now, starts, restarts = 0.0, 0, Restarts()
    while now < 3600:
        if restarts.is_due(now):
            restarts.began(now)
            starts += 1
            restarts.ended(now, "with exit code 1")
        now += 1.0
    assert starts < 3600 / LONGEST_PAUSE_SECONDS + 8
    restarts.began(now)
    restarts.ended(now + LIVED_SECONDS, "by a signal")
    assert restarts.ends == 1


def test_what_is_wrong_is_said_until_the_process_has_lived_for_long_enough() -> None:
    restarts = Restarts()
    assert restarts.trouble("worker", 0) is None
    restarts.began(0)
    assert restarts.trouble("worker", 5) is None
    restarts.ended(5, "with exit code 1")
    said = "the worker ended with exit code 1; it is started again in 0 s"
    assert restarts.trouble("worker", 5) == said
    restarts.began(5)
    restarts.ended(6, "with exit code 3")
    said = "the worker ended 2 times in a row, last with exit code 3; it is started again in 1 s"
    assert restarts.trouble("worker", 6) == said
    restarts.began(7)
    said = "the worker ended 2 times in a row, last with exit code 3; it runs again"
    assert restarts.trouble("worker", 7) == said
    assert restarts.trouble("worker", 7 + LIVED_SECONDS) is None


def test_health_says_what_is_wrong_with_the_fleet_and_nothing_while_all_is_well() -> None:
    wrong: list[str] = []
    health = Health(lambda: wrong, clock=lambda: 10 * SILENT_SECONDS)
    assert health.sentences() == []
    wrong.append("the worker ended with exit code 1; it runs again")
    assert health.sentences() == wrong
