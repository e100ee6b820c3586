"""What others do to the table of a job, and what a reaper that stood still does late: no row lost, none twice, no job
stuck.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs.table_commits import MARK_BITS, Scope, TableCommit
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.control import lost_parts
from nightshift.producer.control.deletion import delete
from nightshift.producer.submit.submit import submit
from nightshift.producer.tables import commit
from nightshift.producer.tables.catalogs import open_catalog
from nightshift.producer.tables.table import CommitLost, CommitRefused
from tests.integration.test_retry import Function, moody, number
from tests.support.fleet import function_spec
from tests.support.lake import NAME, TableSite, opened

pytestmark = pytest.mark.slow

SHOUT = moody()

UNIQUE = {"unique_id": True}


@pytest.fixture(params=["delta", "iceberg"])
def site(request: pytest.FixtureRequest, ledger: Ledger, tmp_path: Path) -> Iterator[TableSite]:
    with opened(request.param, request, ledger, tmp_path) as found:
        yield found


@pytest.fixture
def iceberg(request: pytest.FixtureRequest, ledger: Ledger, tmp_path: Path) -> Iterator[TableSite]:
    with opened("iceberg", request, ledger, tmp_path) as found:
        yield found


def says(word: str, *failing: int) -> Function:
    """Answers with a word, and raises for rows whose number is one of `failing`."""

    def function(rows: Any) -> list[dict[str, Any]]:
        if any(number(row) in failing for row in rows):
            raise ValueError("not today")
        return [{"loud": word} for _ in rows]

    return function


class Stopped(BaseException):
    """A process stands still here."""


def stopped_before_its_write(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], object]:
    """A reaper stands still when it has looked at the table and at all files; returns what it does when it wakes."""
    assert site.job.spec.output.table is not None
    kind = type(commit.table_of(site.job.spec.output.table, site.settings))
    real = kind.commit
    late: list[Callable[[], object]] = []

    def stops(self: Any, seen: Any, change: Any) -> str:
        late.append(lambda: real(self, seen, change))
        raise Stopped

    with monkeypatch.context() as inner:
        inner.setattr(kind, "commit", stops)
        with pytest.raises(Stopped):
            commit.commit_job(site.ledger, site.job, site.settings)
    return late[0]


def damaged(site: TableSite) -> tuple[Path, bytes]:
    part = min((site.root / "moody").glob("part-*.parquet"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-10])
    return part, whole


def compact(site: TableSite) -> None:
    """As a person does with the table, and then with what no version needs any more."""
    if site.kind == "delta":
        site.delta.optimize.compact()
    else:
        site.iceberg.overwrite(site.rows())
    for part in (site.root / "moody").glob("part-*.parquet"):
        part.unlink()


def commit_of(number: int, token: int = 7) -> TableCommit:
    return TableCommit(1, number, token, Scope(0, 1), None, "done", "1", None)


@pytest.mark.parametrize(
    ("mark", "done", "word"),
    [
        (0, None, None),
        (commit_of(2).mark, commit_of(2), None),
        (commit_of(1).fence, None, None),
        (commit_of(2).fence, commit_of(1), None),
        (0, commit_of(2), "dropped"),
        (commit_of(1).mark, commit_of(2), "dropped"),
        (commit_of(2, 8).mark, commit_of(2), "restored"),
        (commit_of(3, 8).mark, commit_of(2), "restored"),
        (commit_of(4).mark, None, "restored"),
        (commit_of(1, 8).mark, None, "restored"),
    ],
)
def test_a_table_is_the_one_that_the_ledger_knows_or_not(
    mark: int, done: TableCommit | None, word: str | None
) -> None:
    found = commit.misplaced(mark, commit_of(3), done)
    assert (found is None) if word is None else (found is not None and word in found)


def test_marks_are_positive_numbers_of_64_bits_and_no_fence_is_a_mark() -> None:
    last = commit_of(2**31 - 1, 2**31 - 1)
    assert last.mark < 2**63
    assert last.fence < last.mark
    assert last.mark >> MARK_BITS == last.number


def test_a_reaper_that_stood_still_until_its_commit_was_refused_writes_nothing(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="before", files=[("before.parquet", 10)])
    site.work(SHOUT)
    site.start(40)
    site.run(SHOUT)
    wakes = stopped_before_its_write(site, monkeypatch)
    part, whole = damaged(site)
    assert site.finish() is JobState.FAILED
    part.write_bytes(whole)
    with pytest.raises(CommitLost):
        wakes()
    assert len(site.table_ids()) == 10
    site.retry(dead=True)
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def dies_before_it_notes_the_refusal(site: TableSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reaper refuses the commit, fences it, and ends before the ledger knows why."""
    with monkeypatch.context() as inner:

        def stops(*_: Any, **__: Any) -> None:
            raise Stopped

        inner.setattr(commit.table_commits, "end", stops)
        with pytest.raises(Stopped):
            commit.commit_job(site.ledger, site.job, site.settings)
    assert site.state() == "open"


def test_a_reaper_that_finds_a_fence_refuses_the_commit_for_the_same_reason(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="before", files=[("before.parquet", 10)])
    site.work(SHOUT)
    site.start(20, name="new", mode="overwrite")
    late = site.job_id
    site.start(10, name="other", files=[("other.parquet", 10)])
    site.work(SHOUT)
    site.job_id = late
    site.run(SHOUT)
    dies_before_it_notes_the_refusal(site, monkeypatch)
    assert site.finish() is JobState.FAILED
    assert "which mode overwrite would lose" in str(site.job.reason)


def test_a_reaper_that_finds_a_fence_and_no_reason_says_that_a_retry_commits(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="before", files=[("before.parquet", 10)])
    site.work(SHOUT)
    site.start(20)
    site.run(SHOUT)
    part, whole = damaged(site)
    dies_before_it_notes_the_refusal(site, monkeypatch)
    part.write_bytes(whole)
    assert site.finish() is JobState.FAILED
    assert f"`nightshift retry {site.job_id} --dead`" in str(site.job.reason)
    assert len(site.table_ids()) == 10
    site.retry(dead=True)
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def test_a_part_that_goes_while_a_commit_is_open_ends_the_commit_with_the_job(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    stopped_before_its_write(site, monkeypatch)
    min((site.root / "moody").glob("part-*.parquet")).unlink()
    assert site.finish() is JobState.FAILED
    assert site.state() == "refused"
    lost_parts.redo(site.ledger, site.job, sure=False, settings=site.settings)
    assert site.work(SHOUT) is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def test_a_table_that_is_changed_while_a_commit_is_open_ends_the_commit_with_the_job(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="before", files=[("before.parquet", 10)])
    site.work(SHOUT)
    site.start(20)
    site.run(SHOUT)
    stopped_before_its_write(site, monkeypatch)
    if site.kind == "delta":
        site.delta.alter.add_constraint({"counted": "row_index >= 0"})
    else:
        with site.iceberg.update_spec() as update:
            update.add_identity("id")
    assert site.finish() is JobState.FAILED
    assert site.state() == "refused"
    assert "\n" not in str(site.job.reason)
    assert delete(site.ledger, site.job, site.settings, output=True)


def test_a_retry_of_a_merge_puts_no_old_answer_over_a_newer_one(site: TableSite) -> None:
    site.start(20, name="first", of_input=UNIQUE, mode="merge")
    site.work(says("first", 3))
    first = site.job_id
    site.start(20, name="second", of_input=UNIQUE, mode="merge")
    site.work(says("second"))
    site.job_id = first
    assert site.retry() == 1
    assert site.work(says("again")) is JobState.COMPLETED
    counted = site.rows().column("loud").value_counts().to_pylist()
    assert {each["values"]: each["counts"] for each in counted} == {"second": 19, "again": 1}


def test_rows_that_cannot_be_read_are_added_by_a_merge(site: TableSite) -> None:
    site.start(20, name="first", of_input=UNIQUE)
    site.work(says("first"))
    lines = [json.dumps({"id": f"a-{n}", "text": "x"}) for n in range(1020)]
    # A submit looks at the first thousand rows.
    lines[1010] = lines[1011] = '{"id": '
    source = site.folder / "in-second"
    source.mkdir()
    (source / "b.jsonl").write_text("\n".join(lines) + "\n")
    data = function_spec("second", source, f"{site.uri}/second", batch={"rows": 400})
    data["input"].update(UNIQUE)
    table = site.table_spec(mode="merge")
    data["output"] |= {"schema": {"loud": "string"}, "table": table}
    site.job_id = submit(site.ledger, parse_spec(data, "test"), site.settings).job_id
    assert site.work(lambda rows: [{"loud": "second"} for _ in rows]) is JobState.COMPLETED
    found = site.rows().select(["id", "loud"]).to_pylist()
    assert [row["loud"] for row in found if row["id"] is None] == [None, None]
    answers = sorted(row["loud"] for row in found if row["id"] is not None)
    assert answers == ["second"] * 1018


def test_a_merge_has_a_value_for_each_column_of_the_table(site: TableSite) -> None:
    site.start(20, name="first", of_input=UNIQUE, schema={"loud": "string", "quiet": "string"})
    site.work(lambda rows: [{"loud": "x", "quiet": "y"} for _ in rows])
    with pytest.raises(BadInput, match="a merge has no values for the column 'quiet'"):
        site.start(20, name="second", of_input=UNIQUE, mode="merge")


def test_a_merge_of_columns_that_the_first_answers_say_is_no_mistake(site: TableSite) -> None:
    site.start(20, name="first", of_input=UNIQUE)
    site.work(SHOUT)
    site.start(30, name="second", of_input=UNIQUE, schema=None, mode="merge")
    assert site.work(SHOUT) is JobState.COMPLETED
    assert len(site.table_ids()) == 30


def test_a_merge_finds_the_columns_of_a_table_in_any_order(site: TableSite) -> None:
    site.start(20, name="first", of_input=UNIQUE, schema={"b": "string", "a": "int64"})
    site.work(lambda rows: [{"b": "x", "a": 1} for _ in rows])
    site.start(
        30, name="second", of_input=UNIQUE, schema={"a": "int64", "b": "string"}, mode="merge"
    )
    assert site.work(lambda rows: [{"b": "z", "a": 2} for _ in rows]) is JobState.COMPLETED
    assert pc.sum(site.rows().column("a")).as_py() == 60


def test_a_job_grows_over_a_table_that_somebody_compacts_and_tidies(site: TableSite) -> None:
    site.start(20)
    site.work(SHOUT)
    compact(site)
    site.come("b.parquet", 15)
    site.append()
    assert site.work(SHOUT) is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)
    with pytest.raises(BadInput, match="no file of the table"):
        lost_parts.redo(site.ledger, site.job, sure=False, settings=site.settings)
    assert site.job.state is JobState.COMPLETED


def test_a_table_that_was_dropped_under_a_job_is_not_filled_with_the_rest(site: TableSite) -> None:
    site.start(20)
    site.work(SHOUT)
    if site.kind == "delta":
        for path in (site.root / "_delta_log").iterdir():
            path.unlink()
    else:
        open_catalog(site.settings, "lake").drop_table(NAME)
    site.come("b.parquet", 15)
    site.append()
    assert site.work(SHOUT) is JobState.FAILED
    assert "somebody dropped the table" in str(site.job.reason)
    assert not site.exists()


def test_overwrite_leaves_a_table_of_others_that_can_be_read(iceberg: TableSite) -> None:
    """Only pyiceberg's `add_files` says which column of a file without ids is which."""
    rows = pa.table({"row_index": [1], "id": ["x"], "loud": ["y"]})
    error = pa.struct([("kind", pa.string()), ("message", pa.string())])
    rows = rows.append_column("error", pa.nulls(1, error))
    open_catalog(iceberg.settings, "lake").create_table(NAME, schema=rows.schema).append(rows)
    iceberg.start(20, mode="overwrite")
    assert iceberg.work(SHOUT) is JobState.COMPLETED
    assert iceberg.table_ids() == sorted(iceberg.ids)


def test_delete_with_output_leaves_the_files_of_a_tag(iceberg: TableSite) -> None:
    iceberg.start(20, name="old")
    iceberg.work(SHOUT)
    old, snapshot = iceberg.job, iceberg.iceberg.current_snapshot().snapshot_id
    iceberg.iceberg.manage_snapshots().create_tag(snapshot, "release").commit()
    iceberg.start(10, name="new", files=[("n.parquet", 10)], mode="overwrite")
    iceberg.work(SHOUT)
    delete(iceberg.ledger, old, iceberg.settings, output=True)
    assert iceberg.iceberg.scan(snapshot_id=snapshot).to_arrow().num_rows == 20


def test_delete_leaves_the_files_of_a_table_whose_catalog_is_away(iceberg: TableSite) -> None:
    iceberg.start(20)
    iceberg.work(SHOUT)
    answer = delete(iceberg.ledger, iceberg.job, Settings(), output=True)
    assert "its table needs 2 more, which stay" in answer.line
    assert iceberg.table_ids() == sorted(iceberg.ids)


def test_a_delta_merge_reads_no_file_that_does_not_lie_below_the_table(
    ledger: Ledger, tmp_path: Path
) -> None:
    site = TableSite(ledger, tmp_path)
    site.start(20, name="old", of_input=UNIQUE)
    site.work(SHOUT)
    secret = tmp_path / "secret.parquet"
    pq.write_table(site.rows().slice(0, 3), secret)
    named = {
        "path": f"file://{secret}",
        "partitionValues": {},
        "size": secret.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    log = site.root / "_delta_log" / f"{1:020}.json"
    log.write_text(json.dumps({"add": named}) + "\n")
    site.start(30, name="new", of_input=UNIQUE, mode="merge")
    assert site.work(SHOUT) is JobState.FAILED
    assert "does not lie below the table" in str(site.job.reason)


def test_a_delta_table_that_gives_no_rows_away_is_appended_to_alone(
    ledger: Ledger, tmp_path: Path
) -> None:
    site = TableSite(ledger, tmp_path)
    site.start(20)
    site.work(moody(3))
    site.delta.alter.set_table_properties({"delta.appendOnly": "true"})
    site.start(10, name="more", files=[("m.parquet", 10)])
    assert site.work(SHOUT) is JobState.COMPLETED
    with pytest.raises(BadInput, match="appendOnly"):
        site.start(10, name="over", files=[("o.parquet", 10)], mode="overwrite")


def test_a_commit_that_a_table_never_takes_is_refused_and_not_tried_for_ever(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="before", files=[("before.parquet", 10)])
    site.work(SHOUT)
    site.start(20)
    site.run(SHOUT)
    assert site.job.spec.output.table is not None
    kind = type(commit.table_of(site.job.spec.output.table, site.settings))

    def never(*_: object) -> str:
        raise CommitLost("it says no")

    with monkeypatch.context() as inner:
        inner.setattr(kind, "commit", never)
        inner.setattr(kind, "fence", lambda *_: (_ for _ in ()).throw(CommitRefused("no")))
        inner.setattr(commit, "PAUSE_SECONDS", 0)
        assert site.finish() is JobState.FAILED
    assert site.state() == "refused"
