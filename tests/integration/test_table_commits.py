"""A job's parts become part of a table: in one commit, in place, exactly once; both formats, by their own libraries."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from nightshift.common import failpoints
from nightshift.common.errors import BadInput, StorageUnavailable, TableTaken
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.batches import lost_parts, retries
from nightshift.common.ledger.jobs import deletions, job_end, jobs, table_commits
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer import under_way
from nightshift.producer.control import garbage, job_moves
from nightshift.producer.control.deletion import delete
from nightshift.producer.reaper import generation_files
from nightshift.producer.submit import growing
from nightshift.producer.submit.submit import submit
from nightshift.producer.tables import commit, keep
from nightshift.producer.tables.iceberg import IcebergTables
from nightshift.producer.tables.table import Change, CommitRefused, DataFile, TableAway
from nightshift.producer.verify.verify import verify
from tests.integration.test_retry import moody
from tests.support.lake import NAME, TableSite, everywhere, opened

SHOUT = moody()


class Away:
    """A table that is out of reach."""

    def look(self) -> None:
        raise TableAway("the catalog is away")


@pytest.fixture(params=["delta", "iceberg"])
def site(request: pytest.FixtureRequest, ledger: Ledger, tmp_path: Path) -> Iterator[TableSite]:
    with opened(request.param, request, ledger, tmp_path) as found:
        yield found


@everywhere
def test_parts_become_files_of_a_new_table_in_one_commit_and_in_place(site: TableSite) -> None:
    site.start(45)
    assert not site.exists()
    site.run(SHOUT)
    before = site.parts()
    assert not site.exists()
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)
    assert site.versions() == 1
    assert site.parts() == before
    assert site.files() == set(before)
    assert site.state() == "done"


@everywhere
def test_jobs_append_to_one_table(site: TableSite) -> None:
    for number in range(3):
        site.start(20, name=f"job{number}", files=[(f"f{number}.parquet", 20)])
        assert site.work(SHOUT) is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)
    assert (len(site.ids), site.versions()) == (60, 3)


@everywhere
def test_a_second_finish_and_a_second_commit_change_nothing(site: TableSite) -> None:
    site.start(20)
    site.run(SHOUT)
    job = site.job
    commit.commit_job(site.ledger, job, site.settings)
    assert site.state() == "done"
    commit.commit_job(site.ledger, job, site.settings)
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 1)


@everywhere
def test_overwrite_puts_the_rows_in_the_place_of_all_others(site: TableSite) -> None:
    site.start(20, name="old")
    site.work(SHOUT)
    site.ids.clear()
    site.start(30, name="new", files=[("n.parquet", 30)], mode="overwrite")
    assert site.work(SHOUT) is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 2)


@everywhere
def test_overwrite_is_refused_when_somebody_committed_since_submit_until_a_person_says_so(
    site: TableSite,
) -> None:
    site.start(20, name="old")
    site.work(SHOUT)
    site.start(30, name="new", files=[("n.parquet", 30)], mode="overwrite")
    late = site.job_id
    site.start(10, name="other", files=[("o.parquet", 10)])
    site.work(SHOUT)
    site.job_id = late
    assert site.work(SHOUT) is JobState.FAILED
    assert "which mode overwrite would lose" in str(site.job.reason)
    assert len(site.table_ids()) == 30
    site.retry(dead=True)
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(f"n-{number}" for number in range(30))


@everywhere
def test_merge_replaces_rows_of_the_same_id_and_adds_the_others(site: TableSite) -> None:
    unique = {"unique_id": True}
    site.start(20, name="old", of_input=unique)
    site.work(SHOUT)
    site.start(30, name="new", of_input=unique, mode="merge")
    assert site.work(moody(3)) is JobState.COMPLETED
    rows = site.rows()
    assert sorted(rows.column("id").to_pylist()) == sorted(f"a-{number}" for number in range(30))
    # Of a-3, a-13 and a-23 the table had an answer for the first two.
    failed = rows.filter(pc.is_valid(rows.column("error")))
    assert failed.column("id").to_pylist() == ["a-23"]
    assert site.retry() == 3
    assert site.work(SHOUT) is JobState.COMPLETED
    rows = site.rows()
    assert sorted(rows.column("id").to_pylist()) == sorted(f"a-{number}" for number in range(30))
    assert rows.column("error").null_count == 30


@pytest.mark.parametrize(
    "message", ["not today", pytest.param("nor tomorrow", marks=pytest.mark.slow)]
)
def test_a_merge_that_changes_no_row_is_a_commit_of_the_table_as_well(
    site: TableSite, message: str
) -> None:
    unique = {"unique_id": True}
    site.start(10, name="old", of_input=unique)
    site.work(SHOUT)
    site.start(10, name="new", of_input=unique, mode="merge")
    assert site.work(moody(3)) is JobState.COMPLETED

    def fails_again(rows: Any) -> Any:
        raise ValueError(message)

    assert site.retry() == 1
    assert site.work(fails_again) is JobState.COMPLETED
    assert site.retry() == 1
    assert site.work(lambda rows: [{"loud": "third"} for _ in rows]) is JobState.COMPLETED
    rows = site.rows()
    assert rows.filter(pc.equal(rows.column("loud"), "third")).column("id").to_pylist() == ["a-3"]
    assert len(rows) == 10


@everywhere
def test_rows_with_errors_are_rows_of_the_table_and_a_retry_replaces_their_parts_in_one_commit(
    site: TableSite,
) -> None:
    site.start(40)
    assert site.work(moody(3)) is JobState.COMPLETED
    first = site.files()
    rows = site.rows()
    assert rows.filter(pc.is_valid(rows.column("error"))).num_rows == 4
    assert site.retry() == 4
    assert site.work(SHOUT) is JobState.COMPLETED
    rows = site.rows()
    assert sorted(rows.column("id").to_pylist()) == sorted(site.ids)
    assert rows.column("error").null_count == len(rows)
    assert site.versions() == 2
    assert site.files().isdisjoint(first)
    # For readers of the older version.
    assert site.parts().keys() == first | site.files()
    if site.kind == "delta":
        assert site.delta_at(version=0).to_pyarrow_table().num_rows == 40
    assert verify(site.ledger, site.job) == []


@pytest.mark.slow
def test_replaced_parts_go_after_their_days_and_not_before(site: TableSite) -> None:
    site.start(20, keep_days=3)
    site.work(moody(3))
    first = site.files()
    site.retry()
    site.work(SHOUT)
    keep.remove_expired(site.ledger, site.settings)
    garbage.collect(site.ledger, site.settings, sure=True)
    assert {path.name for path in (site.root / "moody").glob("part-*")} == first | site.files()
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE table_commits SET ended_at = now() - interval '3 days 1 second' WHERE number = 2"
        )
    keep.remove_expired(site.ledger, site.settings)
    assert {path.name for path in (site.root / "moody").glob("part-*")} == site.files()
    assert site.table_ids() == sorted(site.ids)


@everywhere
def test_a_growing_job_commits_a_generation_at_a_time(site: TableSite) -> None:
    site.start(20)
    site.work(SHOUT)
    for number in (2, 3):
        site.come(f"b{number}.parquet", 15)
        site.append()
        assert site.work(SHOUT) is JobState.COMPLETED
        assert (site.table_ids(), site.versions()) == (sorted(site.ids), number)


def test_the_generations_of_an_open_job_are_committed_once_they_are_finished(
    site: TableSite,
) -> None:
    site.start(20, of_input={"watch": "1h"})
    site.run(SHOUT)
    commit.commit_finished(site.ledger, site.settings)
    assert not site.exists()
    for number in (1, 2):
        generation_files.write_finished(site.ledger)
        for _ in range(2):
            commit.commit_finished(site.ledger, site.settings)
            assert (site.table_ids(), site.versions()) == (sorted(site.ids), number)
        site.come(f"b{number}.parquet", 15)
        site.append()
        site.run(SHOUT)
    assert site.job.state is JobState.RUNNING


def test_a_table_that_cannot_be_reached_is_waited_for(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    with monkeypatch.context() as patched:
        patched.setattr(commit, "table_of", lambda *_: Away())
        with pytest.raises(StorageUnavailable, match="away"):
            site.finish()
    assert site.job.state is JobState.RUNNING
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_error_that_nobody_foresaw_leaves_no_commit_open(
    site: TableSite, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """It ends the job as failed where the table has nothing, and the commit where the table has all."""
    site.start(20)
    site.run(SHOUT)
    table = commit.table_of(site.job.spec.output.table, site.settings)  # type: ignore[arg-type]
    real = type(table).commit

    def fails(self: Any, *given: Any) -> str:
        if after:
            real(self, *given)
        raise TypeError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(type(table), "commit", fails)
        assert site.finish() is (JobState.COMPLETED if after else JobState.FAILED)
    assert site.exists() is after
    assert site.state() == ("done" if after else "refused")
    if not after:
        site.retry(dead=True)
        assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def test_a_job_without_any_answer_does_not_say_the_columns_of_a_table(site: TableSite) -> None:
    site.start(10, schema=None)
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET max_failed_fraction = 1")
    assert site.work(moody(*range(10))) is not JobState.COMPLETED
    assert not site.exists()
    site.retry()
    assert site.work(SHOUT) is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


@everywhere
def test_a_cancelled_job_and_a_failed_one_commit_nothing(site: TableSite) -> None:
    site.start(20)
    site.run(SHOUT, most=1)
    job_moves.cancel(site.ledger, site.job)
    assert site.finish() is JobState.CANCELLED
    assert not site.exists()


def test_a_job_whose_rows_are_in_the_table_is_not_cancelled(site: TableSite) -> None:
    site.start(20)
    site.run(SHOUT)
    commit.commit_job(site.ledger, site.job, site.settings)
    with pytest.raises(BadInput, match="are in its table: the job closes in a moment"):
        job_moves.cancel(site.ledger, site.job)
    assert site.finish() is JobState.COMPLETED


def test_a_retry_is_refused_where_somebody_compacted_its_parts_away(site: TableSite) -> None:
    site.start(40)
    site.work(moody(3))
    rewritten = site.rows()
    if site.kind == "delta":
        site.delta.optimize.compact()
    else:
        site.iceberg.overwrite(rewritten)
    with pytest.raises(BadInput, match=r"no file of the table .* any more"):
        site.retry()
    assert site.job.state is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


@everywhere
def test_delete_with_output_leaves_the_files_that_the_table_names(site: TableSite) -> None:
    site.start(20)
    site.work(moody(3))
    site.retry()
    site.work(SHOUT)
    answer = delete(site.ledger, site.job, site.settings, output=True)
    assert "its table needs 4 more, which stay" in answer.line
    assert site.table_ids() == sorted(site.ids)


@pytest.mark.slow
def test_delete_with_output_removes_files_that_the_table_names_no_more(site: TableSite) -> None:
    site.start(20, name="old")
    site.work(SHOUT)
    old = site.job
    site.start(10, name="new", files=[("n.parquet", 10)], mode="overwrite")
    site.work(SHOUT)
    delete(site.ledger, old, site.settings, output=True)
    assert not (site.root / "old").exists()
    assert len(site.table_ids()) == 10


def test_a_part_that_is_gone_or_damaged_refuses_the_commit(site: TableSite) -> None:
    site.start(20)
    site.run(SHOUT)
    part = next((site.root / "moody").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-10])
    assert site.finish() is JobState.FAILED
    assert "and the ledger says" in str(site.job.reason) or "cannot be read" in str(site.job.reason)
    assert not site.exists()


@pytest.mark.parametrize(
    ("of_table", "sentence"),
    [
        ({"format": "delta", "uri": "/somewhere/else"}, "does not lie below the table"),
        ({"format": "iceberg", "catalog": "nope", "name": "a.b"}, "there is no catalog nope"),
        ({"format": "iceberg", "catalog": "lake", "name": "nx.b"}, "has no namespace nx"),
    ],
)
def test_a_table_that_cannot_be_had_is_refused_at_submit(
    ledger: Ledger, tmp_path: Path, of_table: dict[str, Any], sentence: str
) -> None:
    site = TableSite(ledger, tmp_path)
    site.make_namespace()
    site.table_spec = lambda **_: of_table  # type: ignore[method-assign]
    with pytest.raises(BadInput, match=sentence):
        site.start(10)


def test_a_table_by_a_relative_path_is_the_same_in_every_folder(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = TableSite(ledger, tmp_path)
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        site.table_spec = lambda **_: {"format": "delta", "uri": "lake/t/"}  # type: ignore[method-assign]
        site.start(10)
    assert site.work(SHOUT) is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def test_a_delta_table_that_asks_something_of_its_files_is_refused(
    ledger: Ledger, tmp_path: Path
) -> None:
    site = TableSite(ledger, tmp_path)
    rows = pa.table({"id": ["x"], "day": [1]})
    write_deltalake(str(site.root), rows, partition_by=["day"])
    with pytest.raises(BadInput, match="partitioned by day"):
        site.start(10)


def test_the_log_of_a_delta_table_is_read_without_links(ledger: Ledger, tmp_path: Path) -> None:
    site = TableSite(ledger, tmp_path)
    write_deltalake(str(tmp_path / "elsewhere"), pa.table({"id": ["x"]}))
    site.root.mkdir(parents=True)
    (site.root / "_delta_log").symlink_to(tmp_path / "elsewhere" / "_delta_log")
    with pytest.raises(BadInput, match="is a link"):
        site.start(10)


def test_a_table_outside_the_roots_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    site = TableSite(ledger, tmp_path)
    site.start(10, name="first")
    data = json.loads(site.job.spec.model_dump_json(by_alias=True))
    data["output"]["uri"] = str(site.root / "inner" / "second")
    held = Settings(allowed_roots=(str(tmp_path / "in-first"), str(site.root / "inner")))
    with pytest.raises(BadInput, match="outside the folders"):
        submit(ledger, parse_spec(data, "test"), held)


def test_the_root_of_a_table_is_the_same_place_for_a_reaper_in_another_folder(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = TableSite(ledger, tmp_path)
    monkeypatch.chdir(tmp_path)
    site.table_spec = lambda **_: {"format": "delta", "uri": "lake/t"}  # type: ignore[method-assign]
    site.start(10)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert site.work(SHOUT) is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def test_moments_that_python_does_not_have_stand_in_an_iceberg_table(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A database exports its infinity as such a moment, and pyiceberg's statistics end with an error."""
    site = TableSite(ledger, tmp_path, kind="iceberg")
    site.make_namespace()
    table = IcebergTables(site.settings, "lake", NAME)
    schema = pa.schema([("at", pa.timestamp("us"))])
    moments = pa.array([0, 2**62]).cast(pa.timestamp("us"))
    for number in (1, 2):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"at": moments}, schema=schema), file)
        added = DataFile(str(file), file.stat().st_size, 2, {}, {}, {})
        table.commit(table.look(), Change("app", number, schema, add=[added]))
    assert site.rows().column("at").cast(pa.int64()).to_pylist() == [0, 2**62] * 2
    assert not [name for name in site.iceberg.properties if name.startswith(("write", "commit"))]


def at(monkeypatch: pytest.MonkeyPatch, moment: Moment, act: Callable[[], object]) -> None:
    """Does this when a moment is reached next, once."""
    acts = [act]

    def observer(reached: Moment) -> None:
        if reached is moment and acts:
            acts.pop()()

    monkeypatch.setattr(failpoints, "observer", observer)


class Died(BaseException):
    """The end of a process, as the code sees it: nothing of its own runs any more."""


def die() -> None:
    raise Died


def refuse(site: TableSite) -> None:
    """Another process finds that the last commit cannot be made."""
    with site.ledger.transaction() as connection:
        last = table_commits.last(connection, site.job_id)
        assert last is not None
        table_commits.end(connection, last, reason="the other one says so")


def died(site: TableSite, monkeypatch: pytest.MonkeyPatch, moment: Moment) -> None:
    """A reaper that finishes the job dies at this moment."""
    at(monkeypatch, moment, die)
    with pytest.raises(Died):
        site.finish()


def test_a_retry_while_a_commit_is_open_is_told_to_wait_and_not_that_its_parts_are_gone(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_way, "MOST_SECONDS", 0)
    site.start(20)
    site.work(moody(3, 4))
    assert site.retry() == 4
    site.run(moody(3))
    # The new parts are in the table, and the ledger does not know yet.
    died(site, monkeypatch, Moment.TABLE_WRITTEN)
    with pytest.raises(TableTaken, match="on their way into its table"):
        site.retry()
    assert site.finish() is JobState.COMPLETED
    assert site.retry() == 2


@pytest.mark.slow
def test_overwrite_may_be_refused_again_and_a_person_may_say_so_again(site: TableSite) -> None:
    site.start(10, name="old", files=[("old.parquet", 10)])
    site.work(SHOUT)
    site.start(10, name="new", files=[("n.parquet", 10)], mode="overwrite")
    late = site.job_id
    for number in range(2):
        name = f"other{number}"
        site.start(10, name=name, files=[(f"{name}.parquet", 10)])
        site.work(SHOUT)
        site.job_id = late
        assert site.work(SHOUT) is JobState.FAILED
        if number == 0:
            # As a person does who has not read why: the job was told to go on, and others were faster again.
            site.retry(dead=True)
    assert len(site.table_ids()) == 30
    site.retry(dead=True)
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(f"n-{number}" for number in range(10))


@pytest.mark.slow
def test_overwrite_that_was_refused_before_its_job_failed_goes_on_by_no_retry_of_failed_rows(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="old", files=[("old.parquet", 10)])
    site.work(SHOUT)
    site.start(20, name="new", files=[("n.parquet", 20)], mode="overwrite")
    late = site.job_id
    site.start(10, name="other", files=[("o.parquet", 10)])
    site.work(SHOUT)
    site.job_id = late
    site.run(moody(3))
    with monkeypatch.context() as inner:
        inner.setattr(job_end, "abandon", lambda *_: die())
        with pytest.raises(Died):
            site.finish()
    assert (site.job.state, site.state()) == (JobState.RUNNING, "refused")
    assert site.retry() == 2
    assert site.work(SHOUT) is JobState.FAILED
    assert len(site.table_ids()) == 20


def test_a_commit_that_another_process_refused_is_decided_anew_before_the_job_closes(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    at(monkeypatch, Moment.TABLE_INTENDED, lambda: refuse(site))
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.state()) == (sorted(site.ids), "done")


def test_a_commit_of_another_scope_that_is_open_keeps_no_scope_out_of_the_table(
    site: TableSite,
) -> None:
    site.start(20)
    site.come("b.parquet", 10)
    site.append()
    site.run(SHOUT)
    with site.ledger.transaction() as connection:
        _, second = table_commits.due(connection, site.job_id)
        assert table_commits.begin(connection, site.job_id, second, None) is not None
    commit._Commits(site.ledger, site.job, site.settings).commit_due()
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 2)


def foreign(site: TableSite) -> None:
    """Somebody else commits one row of the table once more."""
    row = site.rows().slice(0, 1)
    if site.kind == "delta":
        write_deltalake(str(site.root), row, mode="append")
    else:
        site.iceberg.append(row)


def test_a_commit_whose_reaper_died_before_the_ledger_knew_is_not_made_again(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    died(site, monkeypatch, Moment.TABLE_WRITTEN)
    assert site.state() == "open"
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 1)


def test_a_commit_whose_reaper_died_before_the_table_was_written_is_made_by_the_next(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    died(site, monkeypatch, Moment.TABLE_CHECKED)
    assert not site.exists()
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 1)


@pytest.mark.parametrize("is_new", [True, False])
def test_two_reapers_that_have_checked_the_same_version_make_one_commit(
    site: TableSite, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    if not is_new:
        site.start(10, name="old", files=[("old.parquet", 10)])
        site.work(SHOUT)
    before = 0 if is_new else site.versions()
    site.start(20)
    site.run(SHOUT)
    at(
        monkeypatch,
        Moment.TABLE_CHECKED,
        lambda: commit.commit_job(site.ledger, site.job, site.settings),
    )
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), before + 1)


def test_overwrite_is_refused_when_somebody_commits_between_the_check_and_the_write(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(10, name="old", files=[("old.parquet", 10)])
    site.work(SHOUT)
    site.start(10, name="new", files=[("n.parquet", 10)], mode="overwrite")
    site.run(SHOUT)
    at(monkeypatch, Moment.TABLE_CHECKED, lambda: foreign(site))
    assert site.finish() is JobState.FAILED
    assert len(site.table_ids()) == 11


def test_a_commit_that_was_refused_meanwhile_is_not_made_by_whoever_looked_before(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)

    def cancel() -> None:
        refuse(site)
        job_moves.cancel(site.ledger, site.job)

    at(monkeypatch, Moment.TABLE_INTENDED, cancel)
    assert site.finish() is JobState.CANCELLED
    assert not site.exists()


def test_a_refused_commit_that_the_table_has_after_all_is_found_before_the_next(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    acts = {Moment.TABLE_CHECKED: lambda: refuse(site), Moment.TABLE_WRITTEN: die}
    monkeypatch.setattr(failpoints, "observer", lambda moment: acts.pop(moment, lambda: None)())
    with pytest.raises(Died):
        site.finish()
    assert (site.state(), site.exists()) == ("refused", True)
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions(), site.state()) == (sorted(site.ids), 1, "done")


def test_a_cancelled_job_begins_no_commit(site: TableSite) -> None:
    site.start(20)
    site.run(SHOUT)
    job_moves.cancel(site.ledger, site.job)
    with site.ledger.transaction() as connection:
        (scope,) = table_commits.due(connection, site.job_id)
        assert table_commits.begin(connection, site.job_id, scope, None) is None
    assert site.finish() is JobState.CANCELLED
    assert not site.exists()


CHANGES: dict[str, Callable[[TableSite, Connection], object]] = {
    "cancel": lambda site, connection: table_commits.refuse_cancel(connection, site.job_id),
    "retry": lambda site, connection: retries.retry(
        connection, site.job_id, failed=True, dead=False
    ),
    "lost": lambda site, connection: lost_parts.redo(connection, site.job_id, [("part", 1)]),
    "append": lambda site, connection: growing.open_job(connection, site.job),
    "delete": lambda site, connection: (
        jobs.cancel(connection, site.job_id),
        deletions.begin(connection, site.job_id, output=False),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_transaction_changes_a_job_while_a_commit_is_open(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    site = TableSite(ledger, tmp_path)
    site.start(20)
    site.run(moody(3))
    died(site, monkeypatch, Moment.TABLE_CHECKED)
    with pytest.raises(TableTaken), ledger.transaction() as connection:
        CHANGES[change](site, connection)


@pytest.mark.parametrize("change", ["retry", "append", "cancel"])
def test_a_change_waits_for_the_end_of_an_open_commit(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    site = TableSite(ledger, tmp_path)
    site.start(20)
    site.run(moody(3))
    died(site, monkeypatch, Moment.TABLE_WRITTEN)
    waited: list[float] = []

    def finish(seconds: float) -> None:
        waited.append(seconds)
        site.finish()

    monkeypatch.setattr(under_way, "time", SimpleNamespace(monotonic=time.monotonic, sleep=finish))
    if change == "retry":
        assert site.retry() == 2
    elif change == "append":
        site.come("b.parquet", 10)
        assert site.append().appended.rows == 10
    else:
        with pytest.raises(BadInput, match="is completed"):
            job_moves.cancel(ledger, site.job)
    assert len(waited) == 1


def cut(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-10])


def write_again(part: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = pq.read_table(part, partitioning=None)
    pq.write_table(change(table), part, compression="zstd")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (Path.unlink, "is gone"),
        (cut, "cannot be read"),
        (lambda part: write_again(part, lambda rows: rows), "bytes, and the ledger says"),
        (lambda part: write_again(part, lambda rows: rows.slice(1)), "rows, and the ledger says"),
        (
            lambda part: write_again(part, lambda rows: rows.rename_columns({"loud": "quiet"})),
            "has other columns than the job",
        ),
    ],
    ids=["gone", "cut", "bytes", "rows", "columns"],
)
def test_each_part_is_looked_at_before_the_table_names_it(
    site: TableSite, damage: Callable[[Path], object], sentence: str
) -> None:
    site.start(20)
    site.run(SHOUT)
    damage(next((site.root / "moody").glob("part-*.parquet")))
    with pytest.raises(CommitRefused, match=sentence):
        commit.commit_job(site.ledger, site.job, site.settings)
    assert not site.exists()


def test_new_answers_are_refused_where_somebody_compacted_the_old_ones_meanwhile(
    site: TableSite,
) -> None:
    site.start(40)
    site.work(moody(3))
    site.retry()
    site.run(SHOUT)
    if site.kind == "delta":
        site.delta.optimize.compact()
    else:
        site.iceberg.overwrite(site.rows())
    assert site.finish() is JobState.FAILED
    assert "any more, since somebody compacted" in str(site.job.reason)
    assert site.table_ids() == sorted(site.ids)


def test_a_replaced_part_that_the_table_names_again_stays_after_its_days(
    ledger: Ledger, tmp_path: Path
) -> None:
    site = TableSite(ledger, tmp_path)
    site.start(20, keep_days=0)
    site.work(moody(3))
    site.retry()
    site.work(SHOUT)
    site.delta.restore(0)
    keep.remove_expired(site.ledger, site.settings)
    assert len(site.table_ids()) == 20


def test_the_open_commit_of_a_job_that_failed_meanwhile_is_ended_before_the_job_closes(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(20)
    site.run(SHOUT)
    died(site, monkeypatch, Moment.TABLE_CHECKED)
    with site.ledger.transaction() as connection:
        jobs.fail(connection, site.job_id, "no engine")
    assert site.finish() is JobState.FAILED
    assert (site.table_ids(), site.state()) == (sorted(site.ids), "done")
