"""Reapers that archive one job at the same time, or are cut off, and commands that read it meanwhile: no row is lost."""

from contextlib import suppress
from typing import Any

import pytest

from nightshift.common.errors import ArchiveTaken
from nightshift.common.ledger.jobs import archives
from nightshift.producer.archive import leave, retention, table_files
from tests.integration.test_retention import (
    age,
    archive,
    files,
    give_up_hold,
    gone,
    old,
    rows,
    seen,
    small_pages,
    state,
)
from tests.integration.test_retry import Site, site

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
    assert seen(old) == before


def test_a_job_is_read_whole_while_its_rows_leave(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the moment at which the files count, whatever Postgres still has."""
    before, cuts = rows(old), 0
    while state(old) != "archived":
        give_up_hold(old)
        with monkeypatch.context() as patch, suppress(Crash):
            cut_after(patch, archives, "delete_between", cuts + 1)
            archive(old)
        assert seen(old) == before
        age(old)
        cuts += 1
    assert cuts > 3


def test_whoever_needs_the_rows_while_they_are_written_keeps_them(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = rows(old), table_files.prove

    def read_meanwhile(*given: Any) -> None:
        real(*given)
        assert seen(old) == before

    monkeypatch.setattr(table_files, "prove", read_meanwhile)
    assert archive(old) == "kept"
    assert rows(old) == before
    assert files(old) == []


def test_a_cut_at_any_page_loses_no_row_and_the_next_round_goes_on(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, cuts = rows(old), 0
    while state(old) != "archived":
        age(old)
        give_up_hold(old)
        with monkeypatch.context() as patch, suppress(Crash):
            cut_after(patch, retention, "_rest", cuts)
            archive(old)
        cuts += 1
    assert cuts > 8
    assert gone(old)
    assert seen(old) == before


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
