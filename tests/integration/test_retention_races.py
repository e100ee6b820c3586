"""Reapers and commands that move the rows of one job at the same time, or are cut off: no row is lost."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from nightshift.common.errors import ArchiveTaken
from nightshift.common.ledger.jobs import archives
from nightshift.common.states import JobState
from nightshift.producer.archive import come_back, leave, retention, table_files
from tests.integration.test_retention import (
    age,
    archive,
    came_back,
    files,
    give_up_hold,
    gone,
    old,
    rows,
    small_pages,
    state,
)
from tests.integration.test_retry import Site, moody, site

pytestmark = pytest.mark.slow

__all__ = ["old", "site", "small_pages"]


class Crash(BaseException):
    """Stands for a kill: nothing catches it."""


def cut_after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: int) -> None:
    real, left = getattr(module, name), calls

    def cut(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return real(*given) if name != "_rest" else None

    monkeypatch.setattr(module, name, cut)


def test_no_two_processes_move_the_rows_of_one_job(old: Site) -> None:
    before = rows(old)
    first = retention.take(old.ledger, 30, "r")
    assert first is not None
    assert retention.take(old.ledger, 30, "r") is None
    # Frozen until its hold is over: another one archives the job, and the first one gives up.
    give_up_hold(old)
    assert archive(old) == "archived"
    with pytest.raises(ArchiveTaken):
        leave.leave(old.ledger, *first, 30, lambda _: None)
    assert len(files(old)) == len(archives.TABLES)
    came_back(old)
    assert rows(old) == before


def test_a_return_that_a_reaper_overtakes_moves_nothing_and_deletes_no_file(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = rows(old), table_files.prove
    taken: list[Any] = []
    with monkeypatch.context() as patch, suppress(Crash):
        cut_after(patch, leave, "reached", 1)
        archive(old)
    assert state(old) == "leaving"
    give_up_hold(old)

    def take_meanwhile(*given: Any) -> None:
        real(*given)
        if not taken:
            taken.append(retention.take(old.ledger, 30, "r"))

    with monkeypatch.context() as patch:
        patch.setattr(table_files, "prove", take_meanwhile)
        with pytest.raises(ArchiveTaken):
            come_back.bring_back(old.ledger, old.job)
    assert len(files(old)) == len(archives.TABLES)
    assert leave.leave(old.ledger, *taken[0], 30, lambda _: None)
    assert gone(old)
    came_back(old)
    assert rows(old) == before


def test_whoever_needs_the_rows_while_they_are_written_keeps_them(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = rows(old), table_files.prove

    def read_meanwhile(*given: Any) -> None:
        real(*given)
        come_back.bring_back(old.ledger, old.job)

    monkeypatch.setattr(table_files, "prove", read_meanwhile)
    assert archive(old) == "kept"
    assert rows(old) == before
    assert files(old) == []


@pytest.mark.parametrize("frozen", ["proves", "adds"])
def test_a_late_return_adds_no_row_to_a_job_that_has_gone_on(
    old: Site, monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    archive(old)
    real, seen = table_files.read, 0

    def freeze(job: Any, file: Any) -> Iterator[Any]:
        nonlocal seen
        for place, page in enumerate(real(job, file)):
            if (file.table, place) == ("row_errors", 1):
                seen += 1
                if seen == ["proves", "adds"].index(frozen) + 1:
                    assert old.retry() == 12
                    assert old.work(moody()) is JobState.COMPLETED
            yield page

    monkeypatch.setattr(table_files, "read", freeze)
    come_back.bring_back(old.ledger, old.job)
    assert old.agrees() == {}


def test_a_return_that_nobody_goes_on_with_is_turned_back(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(old)
    with monkeypatch.context() as patch:
        cut_after(patch, archives, "add", 2)
        with pytest.raises(Crash):
            come_back.bring_back(old.ledger, old.job)
    assert archive(old) == "returning"
    age(old)
    give_up_hold(old)
    assert archive(old) == "archived"
    assert gone(old)
    assert len(files(old)) == len(archives.TABLES)


def test_a_cut_at_any_page_loses_no_row_and_the_next_round_goes_on(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the way out and of the way back alike."""
    before, cuts = rows(old), 0
    while state(old) != "archived":
        age(old)
        give_up_hold(old)
        with monkeypatch.context() as patch, suppress(Crash):
            cut_after(patch, retention, "_rest", cuts)
            archive(old)
        if cuts % 3 == 2 and state(old) != "archived":
            came_back(old)
            assert rows(old) == before
        cuts += 1
    assert cuts > 20
    assert gone(old)
    pages = 0
    while state(old) != "kept":
        with monkeypatch.context() as patch:
            cut_after(patch, archives, "add", pages)
            pages += 1
            try:
                come_back.bring_back(old.ledger, old.job)
            except Crash:
                assert state(old) == "returning"
    assert pages > 8
    assert rows(old) == before
    assert old.agrees()


def test_no_row_is_deleted_any_more_once_a_file_is_gone(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reaper died in the middle of the deletion, and somebody moved the files away."""
    with monkeypatch.context() as patch:
        cut_after(patch, archives, "delete_between", 2)
        with pytest.raises(Crash):
            archive(old)
    before = rows(old)
    assert state(old) == "leaving"
    assert len(before["batches"]) == 6
    lost = files(old)[0]
    lost.rename(old.folder / "away")
    give_up_hold(old)
    assert archive(old) == "leaving"
    assert rows(old) == before
    (old.folder / "away").rename(lost)
    give_up_hold(old)
    assert archive(old) == "archived"
