"""Jobs with `input.where` over real files, on a real ledger: rows, numbers, manifest, verify, growth."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.estimate import estimate
from nightshift.producer.results.collect import collect
from nightshift.producer.submit import append_command
from nightshift.producer.submit.submit import Submitted, submit
from nightshift.producer.verify import verify as verifier
from nightshift.producer.verify.verify import verify
from nightshift.producer.views import tables
from tests.integration.test_growth import SHOUT, Grown
from tests.integration.test_retry import agreed, moody
from tests.support.fleet import function_spec

pytestmark = pytest.mark.slow

MATCHING = 4
"""Of ten rows, how many have the stars that the condition wants."""


def rows_of(name: str, count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": [f"{name}-{at}" for at in numbers],
            "text": [f"text {at}" for at in numbers],
            "stars": pa.array([at % 10 for at in numbers], pa.int64()),
        }
    )


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=7)
    elif path.suffix == ".csv":
        pc.write_csv(table, path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


class Chosen(Grown):
    """A job over the rows with at least six stars: the last four of ten."""

    def come_rows(self, name: str, count: int, first: int = 0) -> None:
        write(self.folder / "in" / name, rows_of(name.partition(".")[0], count, first))

    def submit_where(
        self, where: str = "stars >= 6", of_batch: dict[str, Any] | None = None, **of_input: Any
    ) -> Submitted:
        batch = {"rows": 10, **(of_batch or {})}
        data = function_spec("moody", self.folder / "in", self.folder / "out", batch=batch)
        data["input"].update(of_input, where=where)
        done = submit(self.ledger, parse_spec(data, "test"), Settings())
        self.job_id = done.job_id
        return done

    def indices(self) -> list[int]:
        return [row["row_index"] for row in self.output()]

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "out" / "_manifest.json").read_text())

    def said(self, check: str) -> str:
        found = {each.name: each for each in verifier.checks(self.ledger, self.job)}
        assert not found[check].problems
        return found[check].summary


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Chosen:
    return Chosen(ledger, tmp_path)


def matching(*ranges: range) -> list[int]:
    """The numbers of matching rows of files, whose own numbers begin at 0 each."""
    return [row for each in ranges for at, row in enumerate(each) if at % 10 >= 6]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "jsonl.gz", "csv"])
@pytest.mark.parametrize("limit", [None, 13])
def test_the_rows_that_match_run_and_everybody_counts_the_others(
    site: Chosen, suffix: str, limit: int | None
) -> None:
    site.come_rows(f"a.{suffix}", 30)
    site.come_rows(f"b.{suffix}", 25)
    site.come_rows(f"c.{suffix}", 5)
    done = site.submit_where(**({} if limit is None else {"limit": limit}))
    wanted = matching(range(30), range(30, 55))[:limit]
    left_out = (60 if limit is None else wanted[-1] + 1) - len(wanted)
    assert done.rows == len(wanted)
    assert f"{left_out:,} rows left out by input.where" in done.remarks
    assert site.done() is JobState.COMPLETED
    assert site.indices() == wanted
    assert [row["id"] for row in site.output()] == [
        f"a-{at}" if at < 30 else f"b-{at - 30}" for at in wanted
    ]
    assert agreed(site.ledger, site.job, site.folder) == {}
    assert f"{left_out} rows left out by input.where" in site.said("batches")
    manifest = site.manifest()
    assert (manifest["rows_total"], manifest["rows"], manifest["complete"]) == (
        len(wanted), len(wanted), True,
    )  # fmt: skip
    assert manifest["rows_left_out"] == left_out
    assert sum(file.get("rows_left_out", 0) for file in manifest["input_files"]) == left_out
    with site.ledger.transaction() as connection:
        row = job_pace.of(connection, site.job_id)
    assert row["rows_left_out"] == left_out
    # A second submit finds the job; without the condition it is another.
    assert not site.submit_where(**({} if limit is None else {"limit": limit})).is_new
    with pytest.raises(BadInput, match=r"differs in input\.where"):
        site.submit_where("stars >= 5", **({} if limit is None else {"limit": limit}))


def test_a_condition_that_no_row_meets_makes_no_job(site: Chosen) -> None:
    site.come_rows("a.parquet", 30)
    with pytest.raises(BadInput, match=r"no row matches input\.where, of 30 in "):
        site.submit_where("stars > 10")
    with site.ledger.transaction() as connection:
        assert job_pace.listed(connection) == []


def test_failed_rows_run_again_out_of_batches_that_have_gaps(site: Chosen) -> None:
    site.come_rows("a.jsonl", 60)
    site.submit_where()
    assert site.work(moody(7)) is JobState.COMPLETED
    with site.ledger.transaction() as connection:
        assert jobs.progress(connection, site.job_id)["rows_failed"] == 6
    assert site.retry() == 6
    assert site.done() is JobState.COMPLETED
    assert site.indices() == matching(range(60))
    assert verify(site.ledger, site.job) == []


def test_files_that_come_later_are_held_against_the_condition_too(site: Chosen) -> None:
    site.come_rows("a.parquet", 30)
    site.submit_where()
    assert site.done() is JobState.COMPLETED
    site.come_rows("b.jsonl", 20)
    taken = site.append()
    assert (taken.appended.rows, taken.appended.rows_left_out) == (8, 12)
    assert "12 rows left out by input.where" in append_command.summary(site.job, taken)[0]
    site.come_rows("c.csv", 10)
    assert site.append().appended.rows == MATCHING
    assert site.done() is JobState.COMPLETED
    assert site.indices() == matching(range(30), range(30, 50), range(50, 60))
    assert verify(site.ledger, site.job) == []
    second = site.generation(2)
    assert second is not None
    assert (second["first_row"], second["stop_row"], second["rows_left_out"]) == (30, 50, 12)


def test_a_file_without_a_match_is_taken_once_with_no_rows(site: Chosen) -> None:
    site.come_rows("a.parquet", 30)
    site.submit_where(watch="1s")
    site.run(SHOUT)
    site.come_rows("b.parquet", 5)
    site.come_rows("c.parquet", 10)
    for _ in range(2):
        site.look()
    with site.ledger.transaction() as connection:
        files = jobs.files(connection, site.job_id)
    assert [(file.first_row, file.rows, file.left_out) for file in files] == [
        (0, 30, 18), (30, 5, 5), (35, 10, 6),
    ]  # fmt: skip
    assert site.watch["files_refused"] == site.watch["files_waiting"] == 0
    site.append(last=True)
    assert site.done() is JobState.COMPLETED
    assert site.indices() == matching(range(30), range(0), range(35, 45))
    assert verify(site.ledger, site.job) == []


def test_an_append_of_nothing_but_rows_that_do_not_match_closes_the_job_again(site: Chosen) -> None:
    site.come_rows("a.parquet", 30)
    site.submit_where()
    assert site.done() is JobState.COMPLETED
    site.come_rows("b.parquet", 5)
    taken = site.append()
    assert (taken.appended.files, taken.appended.rows, taken.appended.generation) == (1, 0, 2)
    assert site.done() is JobState.COMPLETED
    assert verify(site.ledger, site.job) == []
    assert site.append().appended.files == 0


def test_columns_of_the_condition_in_later_files_are_those_of_the_job(site: Chosen) -> None:
    site.come_rows("a.jsonl", 30)
    site.submit_where(columns=["text"])
    without = rows_of("b", 10).drop_columns("stars")
    write(site.folder / "in" / "b.jsonl", without)
    assert site.append().appended.rows == 0
    strange = rows_of("c", 10).set_column(2, "stars", pa.array(["many"] * 10))
    for name in ("c.parquet", "c.csv", "c.jsonl"):
        write(site.folder / "in" / name, strange)
        with pytest.raises(BadInput, match="stars"):
            site.append()
        (site.folder / "in" / name).unlink()
    write(site.folder / "in" / "d.csv", rows_of("d", 10))
    assert site.append().appended.rows == MATCHING
    assert site.done() is JobState.COMPLETED
    assert verify(site.ledger, site.job) == []


def test_an_estimate_and_a_pilot_are_of_rows_that_match(site: Chosen) -> None:
    site.come_rows("a.parquet", 300)
    data = function_spec("moody", site.folder / "in", site.folder / "out")
    data["input"]["where"] = "stars >= 6"
    spec = parse_spec(data, "test")
    found = estimate(spec, Settings(), site.ledger)
    assert (found.rows, found.notes[-1]) == (120, "180 rows left out by input.where")
    submitted, unreadable = pilot.submit_pilot(site.ledger, spec, Settings(), 20)
    assert (submitted.rows, unreadable) == (20, {})
    with site.ledger.transaction() as connection:
        (file,) = jobs.files(connection, submitted.job_id)
    assert {row["stars"] >= 6 for row in pq.read_table(file.uri).to_pylist()} == {True}


def test_rows_that_match_are_arranged_and_collected_in_dataset_order(
    site: Chosen, tmp_path: Path
) -> None:
    site.come_rows("a.jsonl", 30)
    site.come_rows("b.jsonl", 40)
    site.submit_where(of_batch={"arrange": "prefix"}, columns=["text"])
    assert site.done() is JobState.COMPLETED
    assert sorted(site.indices()) == matching(range(30), range(30, 70))
    assert verify(site.ledger, site.job) == []
    target = tmp_path / "all.parquet"
    collect(site.ledger, site.job, str(target))
    assert pq.read_table(target).column("row_index").to_pylist() == matching(
        range(30), range(30, 70)
    )


@pytest.mark.parametrize("arrange", ["none", "prefix"])
def test_copies_that_are_gone_come_again_for_rows_that_match(site: Chosen, arrange: str) -> None:
    site.come_rows("a.csv", 30)
    site.submit_where(of_batch={"arrange": arrange}, columns=["text"], limit=9)
    for copy in (site.folder / "out" / "_input").iterdir():
        copy.unlink()
    site.submit_where(of_batch={"arrange": arrange}, columns=["text"], limit=9)
    assert site.done() is JobState.COMPLETED
    assert sorted(site.indices()) == matching(range(30))[:9]
    assert verify(site.ledger, site.job) == []


def test_ids_must_differ_among_the_rows_that_match(site: Chosen) -> None:
    table = rows_of("a", 30)
    ids = table.column("id").to_pylist()
    ids[1] = ids[0]
    write(site.folder / "in" / "a.parquet", table.set_column(0, "id", pa.array(ids)))
    site.submit_where(unique_id=True)
    assert site.done() is JobState.COMPLETED
    write(site.folder / "in" / "b.parquet", rows_of("a", 30).slice(6, 5))
    with pytest.raises(BadInput, match="stands in two rows of the input, 6 and 30"):
        site.append()
    (site.folder / "in" / "b.parquet").unlink()
    write(site.folder / "in" / "c.parquet", rows_of("a", 6))
    assert site.append().appended.rows == 0
    assert verify(site.ledger, site.job) == []


def test_verify_sees_a_row_that_was_left_out_and_is_in_the_output(site: Chosen) -> None:
    site.come_rows("a.parquet", 30)
    site.submit_where()
    assert site.done() is JobState.COMPLETED
    with site.ledger.transaction() as connection:
        connection.execute(text("UPDATE input_files SET rows_left_out = rows_left_out - 1"))
    (problem,) = [each for each in verify(site.ledger, site.job) if each.check == "batches"]
    assert "cover 12 rows" in problem.message
    assert "the dataset has 13 without the 17 that input.where leaves out" in problem.message


def test_status_says_how_many_rows_are_left_out(site: Chosen) -> None:
    site.come_rows("a.parquet", 30)
    site.submit_where()
    assert site.done() is JobState.COMPLETED
    with site.ledger.transaction() as connection:
        row = job_pace.of(connection, site.job_id)
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as shown:
        console.print(tables.summary(row))
    assert "18 rows left out by input.where" in shown.get()
