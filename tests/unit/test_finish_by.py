"""limits.finish_by: what a text means at a moment, in a zone whose clocks change."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from nightshift.common.spec import finish_by

BERLIN = ZoneInfo("Europe/Berlin")

EVENING = "2026-11-23T22:00:00+01:00"
BEFORE_SUMMER = "2026-03-28T22:00:00+01:00"
BEFORE_WINTER = "2026-10-24T22:00:00+02:00"


@pytest.mark.parametrize(
    ("text", "now", "moment"),
    [
        ("06:00", EVENING, "2026-11-24T06:00:00+01:00"),
        ("6:00", EVENING, "2026-11-24T06:00:00+01:00"),
        (" 23:30 ", EVENING, "2026-11-23T23:30:00+01:00"),
        ("22:00", EVENING, "2026-11-24T22:00:00+01:00"),
        ("00:00", EVENING, "2026-11-24T00:00:00+01:00"),
        ("06:00", "2026-11-23T21:00:00+00:00", "2026-11-24T06:00:00+01:00"),
        ("06:00", "2026-12-31T22:00:00+01:00", "2027-01-01T06:00:00+01:00"),
        ("06:00", BEFORE_SUMMER, "2026-03-29T06:00:00+02:00"),
        ("06:00", BEFORE_WINTER, "2026-10-25T06:00:00+01:00"),
        # The clocks skip 02:30 in that night, and show it twice in this one.
        ("02:30", BEFORE_SUMMER, "2026-03-29T03:30:00+02:00"),
        ("02:30", BEFORE_WINTER, "2026-10-25T02:30:00+02:00"),
        ("2026-11-24", EVENING, "2026-11-25T00:00:00+01:00"),
        ("2026-11-23", EVENING, "2026-11-24T00:00:00+01:00"),
        ("2026-11-24 06:00", EVENING, "2026-11-24T06:00:00+01:00"),
        ("2026-11-24T06:00:30", EVENING, "2026-11-24T06:00:30+01:00"),
        ("2026-11-24T07:00+09:00", EVENING, "2026-11-24T07:00:00+09:00"),
        ("2026-11-24T06:00Z", EVENING, "2026-11-24T06:00:00+00:00"),
        ("8h", EVENING, "2026-11-24T06:00:00+01:00"),
        ("90m", EVENING, "2026-11-23T23:30:00+01:00"),
        ("1h30m", EVENING, "2026-11-23T23:30:00+01:00"),
        ("1.5h", EVENING, "2026-11-23T23:30:00+01:00"),
        ("30s", EVENING, "2026-11-23T22:00:30+01:00"),
        ("2d", EVENING, "2026-11-25T22:00:00+01:00"),
        # Eight hours are eight hours, whatever the clocks show.
        ("8h", BEFORE_SUMMER, "2026-03-29T07:00:00+02:00"),
        ("8h", BEFORE_WINTER, "2026-10-25T05:00:00+01:00"),
    ],
)
def test_a_text_means_one_moment(text: str, now: str, moment: str) -> None:
    found = finish_by.moment(text, datetime.fromisoformat(now), BERLIN)
    assert found.isoformat() == moment
    finish_by.check(text)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock of this machine is that of Berlin."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", [BERLIN, None], ids=["a zone", "the clock of the machine"])
@pytest.mark.parametrize(
    ("text", "now", "moment"),
    [
        ("02:30", BEFORE_SUMMER, "2026-03-29T03:30:00+02:00"),
        ("02:00", BEFORE_SUMMER, "2026-03-29T03:00:00+02:00"),
        ("02:30", "2026-03-29T01:45:00+01:00", "2026-03-29T03:30:00+02:00"),
        ("02:30", "2026-03-29T03:10:00+02:00", "2026-03-29T03:30:00+02:00"),
        ("02:30", "2026-03-29T03:40:00+02:00", "2026-03-30T02:30:00+02:00"),
        ("2026-03-29T02:30", BEFORE_SUMMER, "2026-03-29T03:30:00+02:00"),
        ("02:30", BEFORE_WINTER, "2026-10-25T02:30:00+02:00"),
        ("2026-10-25T02:30", BEFORE_WINTER, "2026-10-25T02:30:00+02:00"),
    ],
)
def test_hours_that_the_clocks_skip_or_repeat_are_the_same_for_a_zone_and_the_machine(
    in_berlin: None, zone: ZoneInfo | None, text: str, now: str, moment: str
) -> None:
    found = finish_by.meaning(text, datetime.fromisoformat(now), zone)
    assert found.isoformat() == moment


def test_without_a_zone_the_clock_of_this_machine_counts() -> None:
    now = datetime(2026, 11, 23, 22).astimezone()
    assert finish_by.moment("06:00", now) == datetime(2026, 11, 24, 6).astimezone()
    assert finish_by.moment("8h", now) == now + timedelta(hours=8)


NO_TIMES = ("", "soon", "1110", "8", "25:00", "06:60", "06:00 tomorrow", "2026-13-01", "9999-12-31")
NO_DURATIONS = ("8 hours", "8h,5m", "8mm", "1..5h", "-8h", "0h", "99999999999d", "100000w")


@pytest.mark.parametrize("text", [*NO_TIMES, *NO_DURATIONS])
def test_what_is_no_time_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"give (a time such as|one )"):
        finish_by.check(text)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("2026-11-22", "22 h ago"),
        ("2026-11-23T21:20", "40 min ago"),
        ("2026-11-20T19:30+01:00", "3 d 2 h ago"),
    ],
)
def test_a_moment_that_has_passed_is_refused(text: str, passed: str) -> None:
    with pytest.raises(ValueError, match=f"has passed: it was {passed}"):
        finish_by.moment(text, datetime.fromisoformat(EVENING), BERLIN)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-12:00", "9999-06-01"])
def test_a_moment_that_another_clock_cannot_show_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is too far away"):
        finish_by.check(text)
