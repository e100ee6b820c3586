"""Footers of foreign Parquet files are read in a process of their own first; that process may die."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.formats.parquet import footer_trial, foreign_footer
from nightshift.common.formats.parquet.footer import read_footer
from nightshift.common.formats.parquet.footer_trial import FooterTrial, TrialFailedError
from tests.support.fleet import function_spec, wait_until, write_rows
from tests.support.serve import Door
from tests.support.unsound_parquet import TABLE, encrypted


def footer_of(path: Path) -> bytes:
    """A file without its row groups."""
    content = path.read_bytes()
    return b"PAR1" + content[-8 - int.from_bytes(content[-8:-4], "little") :]


@pytest.fixture
def sound(tmp_path: Path) -> bytes:
    pq.write_table(TABLE, tmp_path / "sound.parquet")
    return footer_of(tmp_path / "sound.parquet")


@pytest.fixture
def trial() -> Iterator[FooterTrial]:
    found = FooterTrial(processes=2)
    try:
        yield found
    finally:
        found.close()


def processes(parent: int | None = None) -> list[psutil.Process]:
    """Processes of trials that a process has started."""
    children = psutil.Process(parent).children()
    found = []
    for each in children:
        with suppress(psutil.Error):  # one that has ended meanwhile
            if str(footer_trial.PROCESS) in each.cmdline():
                found.append(each)
    return found


def test_a_footer_ends_its_trial_alone_and_other_footers_are_read(
    tmp_path: Path, trial: FooterTrial, sound: bytes
) -> None:
    unsound = footer_of(encrypted(tmp_path / "a.parquet", "text"))

    def check(file: bytes) -> str:
        try:
            trial.check(file)
        except TrialFailedError as error:
            return str(error)
        return "read"

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(check, [sound, unsound, b"", b"PAR1PAR1", sound] * 6))
    assert found == ["read", "it ends the process that reads it, by SIGABRT", *["read"] * 3] * 6
    assert len(processes()) <= 2


def test_a_trial_is_kept_for_the_next_footer_and_has_no_credentials(
    monkeypatch: pytest.MonkeyPatch, sound: bytes
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "postgresql://secret")
    trial = FooterTrial(processes=1)
    trial.check(sound)
    (process,) = processes()
    trial.check(sound)
    assert processes() == [process]
    assert set(process.environ()) <= {"ARROW_DEFAULT_MEMORY_POOL", "LD_LIBRARY_PATH", "PYTHONPATH"}
    process.kill()
    trial.check(sound)
    assert processes() != [process]
    trial.close()
    assert processes() == []


def test_trials_end_with_what_they_were_begun_for(sound: bytes) -> None:
    with footer_trial.begun():
        footer_trial.try_footer(sound)
        assert len(processes()) == 1
    assert processes() == []
    footer_trial.try_footer(sound)
    assert processes() == []


def test_a_footer_that_takes_too_long_fails(sound: bytes) -> None:
    trial = FooterTrial(processes=1, seconds=0)
    with pytest.raises(TrialFailedError, match="it takes too long to read"):
        trial.check(sound)
    assert processes() == []


def test_a_machine_that_starts_no_process_is_no_fault_of_the_file(
    sound: bytes, tmp_path: Path, trial: FooterTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer_trial.sys, "executable", str(tmp_path / "none"))
    monkeypatch.setattr(footer_trial, "_begun", [trial])
    with pytest.raises(StorageUnavailable, match="no process can be started"):
        read_footer(str(tmp_path / "sound.parquet"))
    monkeypatch.undo()
    trial.check(sound)


def test_a_large_footer_is_tried_whole(tmp_path: Path, trial: FooterTrial) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{at}": range(200) for at in range(100)}), path, row_group_size=2)
    footer = footer_of(path)
    assert len(footer) > 2**19, "more than a pipe holds"
    trial.check(footer)


@pytest.mark.parametrize("column", ["text", "id"])
def test_a_process_lives_on_after_a_footer_that_nothing_else_refuses(
    tmp_path: Path, trial: FooterTrial, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Without the checks of `foreign_footer`, which know what ends pyarrow today."""
    path = encrypted(tmp_path / "a.parquet", column)
    monkeypatch.setattr(footer_trial, "_begun", [trial])
    monkeypatch.setattr(foreign_footer, "row_groups", lambda _: iter(()))
    with pytest.raises(BadInput, match=r"damaged \(it ends the process that reads it, by SIGABRT"):
        read_footer(str(path))


UNCHECKED = """
from nightshift.common.formats.parquet import foreign_footer

foreign_footer._check = lambda *_: None
"""
"""Takes the checks of the column chunks away in every process that starts."""


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    (tmp_path / "unchecked").mkdir()
    (tmp_path / "unchecked" / "sitecustomize.py").write_text(UNCHECKED)
    path = os.pathsep.join(
        filter(None, [str(tmp_path / "unchecked"), os.environ.get("PYTHONPATH", "")])
    )
    found = Door(tmp_path / "door", database_url, redis_url, {}, PYTHONPATH=path)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow
def test_serve_and_a_look_outlive_a_file_that_ends_its_reader(door: Door) -> None:
    """What one tenant brings ends neither the server nor the reaper of all."""
    bad = encrypted(door.folder / "bad.parquet", "text")
    server, reaper = door.serve(), door.reaper()
    jobs = f"http://127.0.0.1:{door.port}/api/jobs"

    def submit(name: str, place: Path, **of_input: str) -> httpx.Response:
        spec = function_spec(name, place, door.folder / f"out-{name}")
        spec["input"] |= of_input
        return httpx.post(jobs, json=spec, timeout=100)

    refused = submit("refused", bad)
    assert (refused.status_code, "columns are encrypted" in refused.text) == (400, True)
    write_rows(door.folder / "in", [("a.parquet", 3)])
    watched = submit("watched", door.folder / "in" / "*.parquet", watch="1s")
    assert watched.status_code == 201, watched.text
    (kept,) = processes(server.pid)

    bad.rename(door.folder / "in" / "b.parquet")
    write_rows(door.folder / "in", [("c.parquet", 4)])

    wait_until(lambda: door.status("watched")["watch"]["refused"], what="a refusal by the look")
    status = door.command("status", "watched").stdout
    assert "b.parquet: columns are encrypted" in status, status
    wait_until(lambda: door.status("watched")["rows_total"] == 7, what="the rows of c.parquet")
    assert (server.poll(), reaper.poll()) == (None, None)
    server.kill()
    wait_until(lambda: not kept.is_running(), what="the end of the trial")
