"""What a child waits for, and what is said of it."""

from datetime import UTC, datetime

import pytest

from nightshift.common.ledger.fleet.outages import Kind, Outage
from nightshift.worker.telemetry.waits import LASTING_SECONDS, QUIET_SECONDS, Waits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_wait_is_told_once_it_lasts_and_counts_from_its_beginning() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.waits(Kind.STORAGE, 7, "the disk is full", 30)
    assert waits.lasting() == [], "a store refuses now and then"
    clock.now += LASTING_SECONDS
    waits.waits(Kind.STORAGE, 7, "the disk is still full", 30)
    [wait] = waits.lasting()
    assert (wait.kind, wait.job_id, wait.seconds) == (Kind.STORAGE, 7, LASTING_SECONDS)
    assert wait.why == "the disk is still full"


def test_a_wait_is_over_once_the_work_went_on_or_nobody_heard_of_it_again() -> None:
    clock = Clock()
    waits = Waits(clock)
    for job in (7, 8):
        waits.waits(Kind.STORAGE, job, "full", 30)
    waits.waits(Kind.SERVER, None, "503", 10)
    clock.now += 9
    assert {(each.kind, each.job_id) for each in waits.lasting()} == {
        (Kind.STORAGE, 7),
        (Kind.STORAGE, 8),
        (Kind.SERVER, None),
    }
    waits.went_on(Kind.STORAGE, 7)
    clock.now += 2
    assert [each.job_id for each in waits.lasting()] == [7, 8], "a part of it may be away still"
    clock.now += QUIET_SECONDS
    assert [each.job_id for each in waits.lasting()] == [8]
    clock.now += 30
    assert waits.lasting() == []
    waits.waits(Kind.STORAGE, 8, "full", 30)
    assert waits.lasting() == [], "that is another outage, which has just begun"


AWAY = Outage(
    7,
    "disk",
    Kind.STORAGE,
    2,
    ("gpu-1", "gpu-2"),
    datetime(2026, 1, 1, tzinfo=UTC),
    61.4,
    "No space left",
)


@pytest.mark.parametrize(
    ("workers", "is_guest", "sentence"),
    [
        (
            2,
            False,
            "2 workers have waited 61 s for the storage of its files, on gpu-1, gpu-2: No space left",
        ),
        (1, True, "1 worker has waited 61 s for the storage of its files"),
        (0, True, "a reaper has waited 61 s for the storage of its files"),
    ],
)
def test_an_outage_is_one_sentence_without_hosts_and_causes_for_a_guest(
    workers: int, is_guest: bool, sentence: str
) -> None:
    away = Outage(7, "disk", Kind.STORAGE, workers, AWAY.hosts, AWAY.since, AWAY.seconds, AWAY.why)
    assert away.sentence(is_guest=is_guest) == sentence
