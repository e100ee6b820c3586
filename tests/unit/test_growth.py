"""Datasets that grow: which files a look plans, notes or leaves, and which columns fit a job."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from nightshift.common.ledger.jobs.watches import FileState, UnplannedFile
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo
from nightshift.producer.cli.app import app
from nightshift.producer.submit.changes import changes, judge_look
from nightshift.producer.submit.column_fit import misfit

NOW = datetime(2026, 1, 1, tzinfo=UTC)

PLANNED = {"a": (1, "x"), "b": (2, "y"), "named": (3, "z")}


def info(uri: str, size: int = 1, fingerprint: str = "x") -> FileInfo:
    return FileInfo(uri, size, fingerprint)


def noted(state: FileState, seconds_ago: float, size: int = 1) -> dict[str, UnplannedFile]:
    seen = NOW - timedelta(seconds=seconds_ago)
    why = "no" if state == "refused" else None
    return {"new": UnplannedFile("new", size, "x", state, seen, why)}


def test_files_are_new_changed_or_gone_and_a_file_that_was_named_need_not_be_listed() -> None:
    found = changes([info("new"), info("a"), info("b", 9, "y")], PLANNED, {"named"})
    assert [each.uri for each in found.new] == ["new"]
    assert [each.uri for each in found.changed] == ["b"]
    assert found.gone == []
    assert changes([info("a")], PLANNED, {"named"}).gone == ["b"]
    assert changes([info("a")], PLANNED).uris == ["b", "named"]


# What earlier looks noted of the file `new`, whether this look plans it, and what it notes.
LOOKS: list[tuple[str, dict[str, UnplannedFile], bool, str]] = [
    ("never seen", {}, False, "waiting"),
    ("seen one look ago", noted("waiting", 30), True, "waiting"),
    ("seen by another reaper at the same time", noted("waiting", 0.1), False, "waiting"),
    ("grew since", noted("waiting", 30, size=7), False, "waiting"),
    ("refused and still the same", noted("refused", 300), False, "refused"),
    ("refused and written anew", noted("refused", 300, size=7), False, "waiting"),
    ("gone and back as a new file", noted("gone", 30), False, "waiting"),
]


@pytest.mark.parametrize(
    ("before", "ripe", "state"), [case[1:] for case in LOOKS], ids=[case[0] for case in LOOKS]
)
def test_a_new_file_is_planned_after_two_equal_looks_that_lie_apart(
    before: dict[str, UnplannedFile], ripe: bool, state: str
) -> None:
    found = judge_look(NOW, 30, changes([info("new")], {}), before)
    assert [each.uri for each in found.ripe] == (["new"] if ripe else [])
    assert found.noted["new"].state == state
    waits_since = found.noted["new"].seen_at
    assert waits_since == (before["new"].seen_at if ripe or state == "refused" else waits_since)


def test_changed_and_vanished_files_are_noted_and_never_planned() -> None:
    found = judge_look(NOW, 30, changes([info("a", 5)], PLANNED), {})
    assert found.ripe == []
    assert {uri: file.state for uri, file in found.noted.items()} == {
        "a": "changed",
        "b": "gone",
        "named": "gone",
    }


JOB = pa.schema([("id", pa.int64()), ("text", pa.string()), ("meta", pa.struct({"n": pa.int64()}))])

WIDE = pa.struct({"n": pa.int64(), "more": pa.string()})

# Kind of the new files, their columns, the columns that the job reads, and what is said.
FITS: list[tuple[str, dict[str, pa.DataType], list[str] | None, str | None]] = [
    ("parquet", {"id": pa.int64(), "text": pa.large_string()}, ["id", "text"], None),
    ("parquet", {"id": pa.int64(), "text": pa.null()}, ["id", "text"], None),
    ("parquet", {"id": pa.string(), "text": pa.string()}, ["id", "text"], "string in"),
    ("parquet", {"id": pa.int64()}, ["id", "text"], "no column 'text'"),
    ("parquet", {"id": pa.int64(), "more": pa.int64()}, ["id"], None),
    ("parquet", {**dict(zip(JOB.names, JOB.types, strict=True)), "x": pa.int8()}, None, "'x'"),
    ("csv", {"id": pa.int64(), "text": pa.int64()}, ["id", "text"], None),
    ("csv", {"id": pa.float64(), "text": pa.string()}, ["id", "text"], "double in"),
    ("csv", {"id": pa.int64()}, ["id", "text"], "no column 'text'"),
    ("jsonl", {"id": pa.int64()}, ["id", "text"], None),
    ("jsonl", {"id": pa.int64(), "meta": WIDE, "x": pa.bool_()}, None, None),
    ("jsonl", {"id": pa.int64(), "meta": pa.string()}, ["id", "meta"], "column 'meta'"),
]


@pytest.mark.parametrize(("kind", "columns", "used", "message"), FITS)
def test_new_files_fit_the_columns_that_the_first_files_fixed(
    kind: str, columns: dict[str, pa.DataType], used: list[str] | None, message: str | None
) -> None:
    why = misfit(JOB, pa.schema(list(columns.items())), {kind}, used)  # type: ignore[arg-type]
    assert (why is None) if message is None else (why is not None and message in why)


def test_a_column_that_had_no_value_has_no_type_that_a_later_file_could_fit() -> None:
    empty, full = pa.schema([("x", pa.null())]), pa.schema([("x", pa.int64())])
    assert "had none in the first files" in str(misfit(empty, full, {"jsonl"}, ["x"]))
    assert misfit(empty, empty, {"jsonl"}, ["x"]) is None


def test_the_type_of_a_folder_named_key_value_may_be_a_text_in_the_job() -> None:
    known, new = pa.schema([("day", pa.string())]), pa.schema([("day", pa.int64())])
    assert misfit(known, new, {"parquet"}, ["day"], {"day"}) is None
    assert misfit(new, known, {"parquet"}, ["day"], {"day"}) is not None
    assert "no column 'day'" in str(misfit(known, pa.schema([]), {"jsonl"}, ["day"], {"day"}))


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("2h", 7200)])
def test_the_pause_between_looks_is_a_number_with_its_unit(text: str, seconds: int) -> None:
    assert InputSpec(uri="in", watch=text).watch_seconds == seconds


@pytest.mark.parametrize("text", ["30", "0s", "1.5s", "1d", "-1s", ""])
def test_another_pause_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="watch"):
        InputSpec(uri="in", watch=text)


def test_a_limit_and_a_watch_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        InputSpec(uri="in", watch="30s", limit=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.jsonl", "b.jsonl", "--callable", "rules:f", "--out", "o"], "one spec or one input"),
        (["a.jsonl", "--last", "--callable", "rules:f", "--out", "o"], "--last goes with --append"),
        (["a.jsonl", "--append", "7", "--prompt", "x"], "--prompt does not go with --append"),
        (["a.jsonl", "--append", "7", "--new"], "--new does not go with --append"),
    ],
)
def test_a_submit_says_which_of_its_flags_do_not_go_together(
    arguments: list[str], message: str
) -> None:
    done = CliRunner().invoke(app, ["submit", *arguments])
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
