"""Where each part comes from: its metadata, the manifest, and the manifest as a table."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from nightshift.common.formats import part_names
from nightshift.common.formats.parquet.read import part_metadata
from nightshift.common.ledger import Ledger
from nightshift.common.provenance import code_version
from nightshift.common.states import JobState
from nightshift.producer.results import manifest_table
from tests.integration.test_look import Work, nightshift, work  # noqa: F401
from tests.integration.test_retry import Site, moody

DOCS = Path(__file__).parents[2] / "docs" / "provenance.md"


def metadata(site: Site) -> dict[str, dict[str, str]]:
    return {
        path.name: part_metadata(str(path)) for path in sorted((site.folder / "out").glob("part-*"))
    }


def manifest(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.folder / "out" / part_names.MANIFEST).read_text())
    return found


def table(site: Site, name: str = "m.parquet") -> list[dict[str, Any]]:
    target = site.folder / name
    manifest_table.write(site.ledger, site.job, str(target), force=True)
    rows: list[dict[str, Any]] = pq.read_table(target).to_pylist()
    return rows


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    found = Site(ledger, tmp_path)
    found.submit()
    return found


def test_every_part_says_which_job_model_parameters_and_code_made_it(site: Site) -> None:
    site.work(moody())
    page = DOCS.read_text()
    for name, said in metadata(site).items():
        batch = int(said["batch"])
        assert name.startswith(f"part-00000{batch - 1}-b{batch}-a1")
        assert (said["job"], said["job_name"], said["attempt"]) == (str(site.job_id), "moody", "1")
        assert (said["worker"], said["engine"]) == ("w1", "function")
        assert said["engine_version"].startswith("python 3")
        assert said["model"] == "rules:shout"
        assert json.loads(said["spec_task"]) == {"kind": "function"}
        assert said["code_version"] == code_version()
        assert all(f"`{key}`" in page for key in said)


def test_a_part_of_a_retry_says_which_lines_are_new_and_whose_the_others_are(site: Site) -> None:
    site.work(moody(3))
    site.retry()
    site.work(moody())
    for said in metadata(site).values():
        first = 10 * (int(said["batch"]) - 1)
        assert (said["attempt"], said["worker"]) == ("2", "w2")
        assert json.loads(said["rows_redone"]) == [[first + 3, first + 4]]
        kept = json.loads(said["kept"])
        assert (kept["attempt"], kept["worker"], kept["batch"]) == ("1", "w1", said["batch"])
        assert kept["engine_version"] == said["engine_version"]
        assert all(f"`{key}`" in DOCS.read_text() for key in said)
    rows = table(site)
    assert [json.loads(row["earlier_attempts"])[0]["worker"] for row in rows] == ["w1"] * 4


def test_the_error_part_of_a_dead_batch_keeps_where_its_answers_came_from(site: Site) -> None:
    site.work(moody(3))
    site.retry()
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE batches SET state = 'dead', last_error = 'gone', not_before = NULL"
        )
    assert site.finish() is JobState.FAILED
    said = metadata(site)
    assert len(said) == 4
    for one in said.values():
        assert one["code_version"] == code_version()
        assert "engine" not in one
        assert json.loads(one["kept"])["worker"] == "w1"


def test_columns_that_come_late_take_nothing_from_the_provenance(site: Site) -> None:
    def late(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if rows[0]["id"] in ("a-0", "a-10") or len(rows) == 1:
            raise ValueError("too early")
        return [{"loud": row["text"]} for row in rows]

    site.work(late)
    said = metadata(site)
    assert {one["worker"] for one in said.values()} == {"w1"}
    assert not any(part_names.is_bare(name) for name in said)


def test_the_manifest_and_its_table_say_the_same_of_every_part(site: Site) -> None:
    site.work(moody(3))
    said, rows = manifest(site), table(site)
    assert said["model"] == "rules:shout"
    assert said["code_version"] == code_version()
    (maker,) = said["engines"]
    assert maker["engine"] == "function"
    assert [row["name"] for row in rows] == [part["name"] for part in said["parts"]]
    for row, part in zip(rows, said["parts"], strict=True):
        same = part.keys() - {"claimed_at", "ended_at"}
        assert {key: part[key] for key in same} == {key: row[key] for key in same}
        assert part.keys() <= row.keys()
        path = site.folder / "out" / row["name"]
        assert row["bytes"] == path.stat().st_size
        assert row["claimed_at"] <= row["ended_at"]
        assert part_metadata(str(path))["worker"] == row["worker"]
    assert sum(row["rows"] for row in rows) == 40
    assert sum(row["rows_failed"] for row in rows) == 4
    columns = re.findall(r"^\| `(\w+)`", DOCS.read_text().partition("## The manifest")[2], re.M)
    assert columns == manifest_table.COLUMNS.names


def test_the_done_child_of_a_drain_has_the_attempt_of_its_parent(done_work: Work) -> None:
    manifest_table.write(done_work.ledger, done_work.job, str(done_work.folder / "m.parquet"))
    rows = pq.read_table(done_work.folder / "m.parquet").to_pylist()
    assert len(rows) == 6
    assert {row["worker"] for row in rows} == {"w1"}
    assert all(row["claimed_at"] and row["engine_version"] == "0" for row in rows)


@pytest.fixture
def done_work(ledger: Ledger, tmp_path: Path) -> Work:
    found = Work(ledger, tmp_path)
    found.to_the_end()
    return found


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_collect_writes_the_table_also_of_a_job_that_runs_and_says_so(
    work: Work,  # noqa: F811
    nightshift: Callable[..., Result],  # noqa: F811
    suffix: str,
) -> None:
    for lease in work.claim()[:2]:
        work.commit(lease)
    target = work.folder / f"m.{suffix}"
    done = nightshift("collect", "small", "--manifest", "--to", str(target))
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        f"2 parts in {target}\njob {work.job_id} is running: 24 rows are in no part yet\n"
    )
    text = target.read_text() if suffix != "parquet" else ""
    rows = {
        "csv": lambda: list(csv.DictReader(text.splitlines())),
        "jsonl": lambda: [json.loads(line) for line in text.splitlines()],
        "parquet": lambda: pq.read_table(target).to_pylist(),
    }[suffix]()
    assert [str(row["rows"]) for row in rows] == ["8", "8"]
    assert [row["model"] for row in rows] == ["M", "M"]
    again = nightshift("collect", "small", "--manifest", "--to", str(target))
    assert (again.exit_code, "--force replaces it" in again.stderr) == (2, True)
    inside = nightshift("collect", "small", "--manifest", "--to", f"{work.output}/m.{suffix}")
    assert "inside the output directory" in inside.stderr


def test_a_table_has_one_of_three_suffixes(
    work: Work,  # noqa: F811
    nightshift: Callable[..., Result],  # noqa: F811
) -> None:
    done = nightshift("collect", "small", "--manifest", "--to", "m.xls")
    assert done.exit_code == 2
    assert "ends in none of .parquet, .jsonl, .csv" in done.stderr
