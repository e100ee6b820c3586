"""Badges of states, short times, names and long messages of pages."""

from datetime import UTC, datetime, timedelta

import pytest

from nightshift.common.states import ArchiveState, BatchState, JobState, Outcome
from nightshift.producer.serve.console import marks, wording
from nightshift.producer.serve.console.marks import Meaning

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("word", [*JobState, *BatchState, *Outcome])
def test_every_state_has_a_meaning(word: str) -> None:
    assert word in marks.MEANINGS
    assert word not in list(ArchiveState)


def test_states_of_one_meaning_differ_from_all_others_in_shape_too() -> None:
    assert set(marks.SHAPES) == set(Meaning)
    assert len(set(marks.SHAPES.values())) == len(Meaning)
    told = {marks.meaning(word) for word in ("running", "waits", "completed", "failed", "paused")}
    assert len(told) == 5


def test_a_badge_has_a_word_and_no_markup_of_its_word() -> None:
    assert ">in progress</span>" in marks.state("in_progress")
    assert "<b>" not in marks.state("<b>")


@pytest.mark.parametrize(
    ("moment", "short"),
    [
        (datetime(2026, 11, 28, 8, 41, tzinfo=UTC), "08:41"),
        (datetime(2026, 11, 27, 23, 10, tzinfo=UTC), "yesterday 23:10"),
        (datetime(2026, 11, 26, 23, 59, tzinfo=UTC), "26 Nov 23:59"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2 Jan 03:04"),
        (datetime(2025, 12, 31, 8, 0, tzinfo=UTC), "2025-12-31 08:00"),
        (NOW + timedelta(days=1), "29 Nov 12:00"),
    ],
)
def test_a_time_is_as_short_as_it_can_be(moment: datetime, short: str) -> None:
    assert wording.short_time(moment, NOW) == short


def test_a_long_name_is_cut_in_its_middle_and_whole_on_hover() -> None:
    name = "reviews-of-the-winter-" * 4 + "2026-11-28"
    cut = wording.shortened(name, 30)
    assert f'title="{name}"' in cut
    assert len(cut.striptags()) == 30
    assert cut.striptags().endswith("2026-11-28")
    assert wording.shortened("short", 30) == "short"


def test_a_long_message_is_one_line_that_opens() -> None:
    assert wording.folded("no worker is alive") == "no worker is alive"
    long = wording.folded("x" * 300 + "<script>")
    assert long.startswith("<details")
    assert "x" * 300 + "&lt;script&gt;" in long
    assert wording.folded("two\nlines").startswith("<details")
    assert wording.folded(None) == ""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("/models/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("./models/tiny", "tiny"),
        ("s3://bucket/models/tiny", "tiny"),
        ("/cache/models--Qwen--Qwen3-0.6B/snapshots/0123abcd", "Qwen/Qwen3-0.6B"),
        ("rules:shout", "rules:shout"),
        ("gpt-oss", "gpt-oss"),
        (None, ""),
        ("/", ""),
    ],
)
def test_a_folder_never_stands_for_the_name_of_a_model(value: str | None, name: str) -> None:
    assert wording.model_name(value) == name
