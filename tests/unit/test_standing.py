"""Where a job stands: its word, the reason that explains most, and whether it needs a person."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nightshift.common.allocation.deadlines import Outlook
from nightshift.common.allocation.deadlines import Standing as OfDeadline
from nightshift.common.ledger.fleet.outages import Kind, Outage
from nightshift.common.states import JobState
from nightshift.producer.advice.here import NOBODY
from nightshift.producer.explain.snapshot import Facts, SetAside, SlotFact
from nightshift.producer.explain.standing import AWAY_SECONDS, GRACE_SECONDS, standing

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
FACTS = Facts(
    7,
    JobState.RUNNING,
    "gpus",
    "own",
    rows_total=100,
    pending=10,
    reaper_seconds=1.0,
    read_at=NOW,
    state_since=NOW - timedelta(hours=1),
    moved_at=NOW - timedelta(seconds=1),
)
READY = SlotFact("host-9", "ready", "own")
AT_WORK = {"leased": 4, "children_at_work": 2, "rows_per_second": 12.3}
LATE = Outlook(OfDeadline.LATE, 600.0, 2)
DAY = 86_400.0


def away(kind: Kind, seconds: float) -> dict[str, Any]:
    since = NOW - timedelta(seconds=seconds)
    outage = Outage(7, "disk", kind, 1, ("host-9",), since, seconds, "No space on /mnt/host-9")
    return {"leased": 1, "children_at_work": 1, "stalled": True, "outages": [outage]}


def over(state: JobState, **more: Any) -> dict[str, Any]:
    return {"state": state, "closed": True, "pending": 0, "finished_seconds": 60.0, **more}


CASES: list[tuple[str, dict[str, Any], str, str, bool]] = [
    ("at work", AT_WORK, "at work", "working", False),
    ("about to begin", {"slots": [READY]}, "at work", "soon", False),
    ("rows over, files are put in place", {"pending": 0}, "at work", "closing", False),
    ("at work, and no reaper", {**AT_WORK, "reaper_seconds": 90.0}, "at work", "no_reaper", True),
    ("at work and late", {**AT_WORK, "outlook": LATE}, "at work", "late", True),
    (
        "at work and late by seconds",
        {**AT_WORK, "outlook": replace(LATE, late_seconds=GRACE_SECONDS - 1)},
        "at work",
        "late",
        False,
    ),
    (
        "at work and on time",
        {**AT_WORK, "outlook": Outlook(OfDeadline.ON_TIME)},
        "at work",
        "working",
        False,
    ),
    ("no run", {"here": NOBODY}, "waits", "no_run", True),
    ("no run, late", {"here": NOBODY, "outlook": LATE, **AT_WORK}, "waits", "no_run", True),
    ("no reaper", {"reaper_seconds": None}, "waits", "no_reaper", True),
    ("no worker for a moment", {}, "waits", "no_worker", False),
    ("leases of workers that are gone", {"leased": 3}, "waits", "leases_left", False),
    (
        "workers of another engine only",
        {"slots": [replace(READY, serves="other")]},
        "waits",
        "other_engine_only",
        False,
    ),
    ("cordoned", {"slots": [replace(READY, cordon="host-9")]}, "waits", "cordoned", False),
    ("lost", {"slots": [replace(READY, state="lost")]}, "waits", "lost", False),
    (
        "its engine cannot be loaded",
        {
            "slots": [replace(READY, state="free")],
            "set_aside": [SetAside("host-9", "no", "no", 20.0)],
        },
        "waits",
        "load_failed",
        True,
    ),
    (
        "loading",
        {"slots": [replace(READY, state="loading", child_seconds=9.0)]},
        "waits",
        "loading",
        False,
    ),
    (
        "another job goes first",
        {"slots": [READY], "ahead": "job 3 (urgent)", "ahead_id": 3, "foreign": frozenset({3})},
        "waits",
        "others_first",
        False,
    ),
    (
        "slots are taken",
        {"slots": [replace(READY, engine_key="x", job="urgent", job_id=3, priority=5)]},
        "waits",
        "slots_taken",
        False,
    ),
    ("new files", {"pending": 0, "watch_seconds": 30}, "waits", "waits_for_files", False),
    (
        "looks for files fail",
        {"pending": 0, "watch_seconds": 30, "watch_error": "gone"},
        "waits",
        "look_failed",
        True,
    ),
    (
        "after an error",
        {"slots": [READY], "resting": 10, "rest_seconds": 4.0, "rest_error": "disk full"},
        "waits",
        "backing_off",
        False,
    ),
    ("storage away", away(Kind.STORAGE, AWAY_SECONDS - 1), "waits", "storage_away", False),
    ("storage away for long", away(Kind.STORAGE, AWAY_SECONDS), "waits", "storage_away", True),
    ("a server away for long", away(Kind.SERVER, AWAY_SECONDS), "waits", "server_away", True),
    ("a rate limit", away(Kind.RATE, 9 * AWAY_SECONDS), "waits", "rate_away", False),
    (
        "storage away for one of two",
        {**away(Kind.STORAGE, AWAY_SECONDS), "stalled": False},
        "at work",
        "storage_away",
        False,
    ),
    (
        "paused by a person",
        {"state": JobState.PAUSED, "paused_by": "by carol (ops) on host-9"},
        "paused",
        "paused",
        False,
    ),
    (
        "paused by its budget",
        {"state": JobState.PAUSED, "reason": "limits.budget 5 is spent"},
        "paused",
        "paused",
        True,
    ),
    ("completed", over(JobState.COMPLETED), "done", "completed", False),
    ("some rows failed", over(JobState.COMPLETED, rows_failed=3), "done", "completed", False),
    ("failed", over(JobState.FAILED, reason="no such model"), "failed", "failed", True),
    (
        "failed, and its files are not in place yet",
        over(JobState.FAILED, closed=False),
        "failed",
        "failed",
        True,
    ),
    (
        "failed a week ago",
        over(JobState.FAILED, finished_seconds=7 * DAY),
        "failed",
        "failed",
        False,
    ),
    ("cancelled", over(JobState.CANCELLED), "cancelled", "cancelled", False),
    (
        "cancelled a moment ago",
        over(JobState.CANCELLED, closed=False),
        "cancelled",
        "closing",
        False,
    ),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize(("facts", "word", "kind", "needs"), [case[1:] for case in CASES], ids=IDS)
def test_word_kind_and_need(facts: dict[str, Any], word: str, kind: str, needs: bool) -> None:
    found = standing(replace(FACTS, **facts))
    assert (found.word, found.kind, found.needs_person) == (word, kind, needs)


LASTING = {
    "no_worker": {},
    "other_engine_only": {"slots": [replace(READY, serves="other")]},
    "cordoned": {"slots": [replace(READY, cordon="host-9")]},
    "lost": {"slots": [replace(READY, state="lost")]},
}


@pytest.mark.parametrize(("kind", "facts"), LASTING.items())
def test_what_comes_and_goes_with_a_fleet_needs_a_person_once_it_lasts(
    kind: str, facts: dict[str, Any]
) -> None:
    for seconds, needs in ((GRACE_SECONDS - 1, False), (GRACE_SECONDS, True)):
        began = NOW - timedelta(seconds=seconds)
        found = standing(replace(FACTS, moved_at=began, **facts))
        assert (found.kind, found.needs_person, found.since) == (kind, needs, began)
        resumed = replace(FACTS, state_since=NOW, moved_at=began, **facts)
        assert not standing(resumed).needs_person, "it runs again since a moment"


HOUR_AGO = NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("facts", "since"),
    [
        ({"moved_at": None}, HOUR_AGO),
        ({}, NOW - timedelta(seconds=1)),
        (
            {"moved_at": None, "worker_seen_at": NOW - timedelta(seconds=7)},
            NOW - timedelta(seconds=7),
        ),
        ({"moved_at": None, "reaper_seconds": 31.0}, NOW - timedelta(seconds=31)),
        ({"moved_at": None, "reaper_seconds": None}, HOUR_AGO),
        (
            {"moved_at": None, "slots": [replace(READY, cordon="host-9", cordoned_since=NOW)]},
            NOW,
        ),
        # Of the slots that may have its engine.
        (
            {
                "moved_at": None,
                "slots": [
                    replace(READY, cordon="host-9"),
                    replace(READY, cordon="host-8", serves="other", cordoned_since=NOW),
                ],
            },
            HOUR_AGO,
        ),
        (away(Kind.STORAGE, 40.0), NOW - timedelta(seconds=40)),
        (AT_WORK, HOUR_AGO),
        ({"state": JobState.PAUSED}, HOUR_AGO),
        (over(JobState.FAILED), HOUR_AGO),
    ],
)
def test_since_when(facts: dict[str, Any], since: datetime) -> None:
    assert standing(replace(FACTS, **facts)).since == since


def test_a_job_that_is_about_to_begin_for_long_waits() -> None:
    for seconds, word in ((GRACE_SECONDS - 1, "at work"), (GRACE_SECONDS, "waits")):
        began = NOW - timedelta(seconds=seconds)
        assert standing(replace(FACTS, slots=[READY], moved_at=began)).word == word


@pytest.mark.parametrize("facts", [case[1] for case in CASES], ids=IDS)
def test_a_guest_hears_of_no_machine_no_job_of_others_and_no_person(facts: dict[str, Any]) -> None:
    known = replace(
        FACTS, **{"paused_by_for_guest": "by an operator", "foreign": frozenset({3}), **facts}
    )
    here, guest = standing(known), standing(known.for_guest())
    assert (here.word, here.kind, here.needs_person) == (guest.word, guest.kind, guest.needs_person)
    for name in ("host-9", "urgent", "job 3", "carol"):
        assert name not in guest.sentence
    assert guest.sentence


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AT_WORK, {**AT_WORK, "leased": 5, "rows_per_second": 99.0}),
        (away(Kind.RATE, 9), away(Kind.RATE, 99)),
        (
            {"slots": [replace(READY, state="loading", child_seconds=9.0)]},
            {"slots": [replace(READY, state="loading", child_seconds=99.0)]},
        ),
        ({"reaper_seconds": 60.0}, {"reaper_seconds": 90.0}),
        ({"leased": 3}, {"leased": 2}),
        (
            {"slots": [READY], "resting": 10, "rest_seconds": 4.0},
            {"slots": [READY], "resting": 11, "rest_seconds": 9.0},
        ),
        (
            {"state": JobState.PAUSED, "leased": 2},
            {"state": JobState.PAUSED},
        ),
        (
            {**AT_WORK, "outlook": LATE},
            {**AT_WORK, "outlook": replace(LATE, late_seconds=900.0, more_slots=3)},
        ),
    ],
)
def test_a_sentence_has_no_figures_that_change_by_the_second(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = (standing(replace(FACTS, **facts)).sentence for facts in (one, other))
    assert first == second
