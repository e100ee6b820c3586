"""How many rows of a job each version of its function's code made: the ledger, what commands show, and the manifest."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from sqlalchemy import text
from typer.testing import Result

from nightshift.common.descriptor import RowRanges
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import splits
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.engines import engine_versions
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.queries import audit
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET
from nightshift.producer.views import progress
from nightshift.worker.runner import Runner
from tests.integration.test_retry import Function, Site, moody, nightshift  # noqa: F401
from tests.support import console_site
from tests.support.child import child_of
from tests.support.fleet import Fleet, function_spec, logs, output_ids, write_rows
from tests.support.functions import engine_of
from tests.support.world import World, make_ready, part_of
from tests.support.world import child_of as boot_of

Command = Callable[..., Result]


def digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


@dataclass
class Versioned(Site):
    """A site whose children register the code of their function."""

    code: str = "one"

    def runner(self, function: Function) -> Runner:
        self.boots += 1
        child = workers.Child(
            f"w{self.boots}", "s", "default", 0, "here", 1, self.job.spec.engine_key
        )
        code = {"rules.py": digest(self.code)}
        with self.ledger.transaction() as connection:
            workers.register(connection, child)
            workers.ready(connection, child, workers.LoadedEngine("function", "1", 64, code=code))
        who = Claimant(child.id, "default", child.engine_key, "function", "1")
        found = Runner(child_of(who, self.ledger, engine_of(function, "rules:moody")))
        found.draining.set()
        return found

    def work_with(self, code: str, *failing: int) -> JobState:
        self.code = code
        return self.work(moody(*failing))

    def rows(self, *codes: str) -> list[int]:
        """The rows of each version, by its code; no other version has rows."""
        with self.ledger.transaction() as connection:
            found = engine_versions.of_job(connection, self.job_id)
        counts = {each.code["rules.py"]: each.rows for each in found}
        rows = [counts.pop(digest(code), 0) for code in codes]
        assert not counts
        return rows


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Versioned:
    found = Versioned(ledger, tmp_path)
    found.submit()
    return found


@pytest.mark.parametrize("form", ["parquet", pytest.param("jsonl", marks=pytest.mark.slow)])
def test_rows_that_ran_again_are_of_their_last_version_and_kept_rows_of_theirs(
    ledger: Ledger, tmp_path: Path, form: str
) -> None:
    """Over four batches of ten rows, whose rows 3, 5 and 7 fail in turn."""
    site = Versioned(ledger, tmp_path)
    site.submit(form)
    site.work_with("one", 3, 5, 7)
    assert site.rows("one") == [40]
    site.retry()
    assert site.rows("one") == [28]  # rows that run again are of no version
    site.work_with("two", 5, 7)
    assert site.rows("one", "two") == [28, 12]
    site.retry()
    assert site.rows("one", "two") == [28, 4]
    site.work_with("three", 7)
    assert site.rows("one", "two", "three") == [28, 4, 8]
    site.retry()
    site.work_with("one")  # the first version again: its rows come together
    assert site.rows("one", "two", "three") == [32, 4, 4]
    assert site.agrees() == {}


def test_rows_between_two_versions_are_counted_batch_by_batch(site: Versioned) -> None:
    site.run(moody(), most=1)
    assert site.rows("one") == [10]
    assert site.work_with("two") is JobState.COMPLETED
    assert site.rows("one", "two") == [10, 30]
    assert site.agrees() == {}


def test_a_part_that_is_gone_counts_for_no_version_until_its_rows_ran_again(
    site: Versioned,
    nightshift: Command,  # noqa: F811
) -> None:
    site.work_with("one", 3)
    site.retry()
    site.work_with("two")
    next((site.folder / "out").glob("part-000001*")).unlink()
    lost = nightshift("retry", str(site.job_id), "--lost", "--yes")
    assert lost.exit_code == 0, lost.output
    assert site.rows("one", "two") == [27, 3]
    site.work_with("two")
    assert site.rows("one", "two") == [27, 13]
    assert site.agrees() == {}


def test_errors_that_a_reaper_writes_are_of_no_version(site: Versioned) -> None:
    site.work_with("one", 3)
    site.retry()
    with site.ledger.transaction() as connection:
        connection.execute(
            text("UPDATE batches SET state = 'dead', last_error = 'gone', not_before = NULL")
        )
    assert site.finish() is JobState.FAILED
    assert site.rows("one") == [36]
    assert len(site.agrees()) == 4


def test_the_finished_child_of_a_split_is_of_its_owners_version(world: World) -> None:
    job_id = world.job(6)
    make_ready(world, boot_of(world.specs[job_id]))
    lease = world.lease(job_id, owner="child-1")
    world.run(splits.split, lease, RowRanges.from_indices([0, 2, 3]), part_of(lease))
    (version,) = world.run(engine_versions.of_job, job_id)
    assert (version.engine, version.engine_version, version.rows) == ("function", "1", 3)
    assert world.run(audit.miscounted_versions, job_id) == {}


def test_folding_version_counters_keeps_their_sums_and_when_a_version_was_first_used(
    world: World,
) -> None:
    job_id = world.job(*[1] * 60)
    make_ready(world, boot_of(world.specs[job_id]))
    for _ in range(60):
        world.commit(world.lease(job_id, owner="child-1"))
    before = world.run(engine_versions.of_job, job_id)
    assert [each.rows for each in before] == [60]
    assert world.run(engine_versions.fold_counters) == 60
    assert world.run(engine_versions.of_job, job_id) == before
    assert world.run(engine_versions.fold_counters) == 0
    assert world.ask("SELECT count(*) AS n FROM version_counters")[0].n == 1


def test_a_miscounted_version_is_found(site: Versioned) -> None:
    site.work_with("one")
    with site.ledger.transaction() as connection:
        connection.execute(text("UPDATE version_counters SET rows = 39 WHERE rows = 40"))
        connection.execute(text("UPDATE version_counters SET rows = rows - 1"))
        assert len(audit.miscounted_versions(connection, site.job_id)) == 1


def test_commands_and_the_manifest_name_the_versions_where_there_are_several(
    site: Versioned,
    nightshift: Command,  # noqa: F811
) -> None:
    job = str(site.job_id)
    site.run(moody(), most=1)
    alone = nightshift("status", job)
    assert "rows by version" not in alone.output
    site.code = "two"
    site.run(moody(), most=2)

    one, two = digest("one")[:8], digest("two")[:8]
    under_way = " ".join(nightshift("status", job).output.split())
    assert f"rows by version of rules.py: 10 of {one} (first used " in under_way
    assert f", 20 of {two} (first used " in under_way
    assert "`--new` with another `--out` runs all rows with one version" in under_way

    assert site.work_with("two") is JobState.COMPLETED
    ended = " ".join(nightshift("status", job).output.split())
    assert f"10 of {one}" in ended
    assert f"30 of {two}" in ended
    expected = [("one", 10), ("two", 30)]
    manifest = json.loads((site.folder / "out" / part_names.MANIFEST).read_text())
    listed = json.loads(nightshift("status", job, "--json").output)
    for found in (manifest["versions"], listed["versions"]):
        assert [(each["code"], each["rows"]) for each in found] == [
            ({"rules.py": digest(code)}, rows) for code, rows in expected
        ]
    assert f"30 of {two}" in nightshift("sample", job).stderr
    spec = function_spec("moody", site.folder / "in", site.folder / "out", batch={"rows": 10})
    spec["output"]["format"] = "parquet"
    (site.folder / "job.yaml").write_text(json.dumps(spec))
    again = nightshift("submit", str(site.folder / "job.yaml"))
    assert f"30 of {two}" in again.stderr, again.output

    browser = console_site.Site(site.ledger, Settings()).browser("ops")
    assert (
        f"ows by version of rules.py: 10 of {one} (first used " in browser.get(f"/jobs/{job}").text
    )
    with site.ledger.transaction() as connection:
        assert (
            progress.job_as_json(connection, site.job_id, FLEET)["versions"] == listed["versions"]
        )


def test_an_append_names_the_rows_that_ran_with_other_code_than_there_is_now(
    site: Versioned,
    nightshift: Command,  # noqa: F811
) -> None:
    rules = site.folder / "rules.py"
    rules.write_text("one")
    site.work_with("one")
    write_rows(site.folder / "in", [("b.parquet", 5)])
    same = nightshift("submit", "--append", str(site.job_id))
    assert (same.exit_code, same.stderr) == (0, "")

    rules.write_text("two")
    write_rows(site.folder / "in", [("c.parquet", 5)])
    appended = nightshift("submit", "--append", str(site.job_id))
    assert appended.exit_code == 0
    assert "40 rows of job 1 ran with another version of rules.py" in appended.stderr
    site.work_with("two")
    rules.unlink()  # the code of a fleet lies on its workers
    grown = nightshift("submit", "--append", str(site.job_id), "--json")
    (remark,) = json.loads(grown.stdout)["remarks"]
    assert remark.startswith(f"rows by version of rules.py: 40 of {digest('one')[:8]}")


def test_a_deleted_job_leaves_no_counters(site: Versioned, nightshift: Command) -> None:  # noqa: F811
    site.work_with("one")
    gone = nightshift("delete", str(site.job_id))
    assert gone.exit_code == 0, gone.output
    assert site.ask("SELECT * FROM version_counters") == []


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Fleet]:
    """A folder with nothing but a dataset, code, and the command."""
    found = Fleet(tmp_path)
    write_rows(tmp_path / "in", [("a.jsonl", 250)])
    yield found
    found.end()


RUN = ("run", "in", "--callable", "rules:loud", "--id", "id", "--out", "out")

VERSION = """
import os, pathlib
def loud(rows):
    if {number} == 1 and rows[0]["id"] == "a-100":
        pathlib.Path(__file__).write_text(pathlib.Path("next.txt").read_text())
        os._exit(3)
    return [{{"loud": "{number}"}} for row in rows]
"""


@pytest.mark.slow
def test_a_run_names_the_versions_of_a_function_that_changed_between_rows_and_between_generations(
    alone: Fleet,
) -> None:
    """The process of the first version ends at row 100 once its file has changed; the third version has the rows of
    an append.
    """
    rules, numbered = alone.folder / "rules.py", [VERSION.format(number=n) for n in (1, 2, 3)]
    rules.write_text(numbered[0].replace("next.txt", str(alone.folder / "next.txt")))
    (alone.folder / "next.txt").write_text(numbered[1])
    one, two, three = (digest(text)[:8] for text in (rules.read_text(), *numbered[1:]))
    first = alone.command(*RUN, "--batch-rows", "50", "--max-parallel", "1")
    assert first.returncode == 0, first.stdout + first.stderr + logs(alone.folder)
    said = " ".join(first.stdout.split())
    assert f"rows by version of rules.py: 100 of {one} (first used " in said
    assert f", 150 of {two} (first used " in said

    rules.write_text(numbered[2])
    write_rows(alone.folder / "in", [("b.jsonl", 30)])
    appended = alone.command("submit", "--append", "1")
    assert appended.returncode == 0, appended.stderr
    assert "250 rows of job 1 ran with another version of rules.py" in appended.stderr
    again = alone.command(*RUN, "--batch-rows", "50", "--max-parallel", "1")
    assert again.returncode == 0, again.stdout + again.stderr + logs(alone.folder)
    assert "250 rows of job 1 ran with another version of rules.py" in again.stdout
    said = " ".join(again.stdout.split())
    for rows, version in ((100, one), (150, two), (30, three)):
        assert f"{rows} of {version}" in said
    assert len(output_ids(alone.folder / "out")) == 280
    manifest = json.loads((alone.folder / "out" / part_names.MANIFEST).read_text())
    assert [each["rows"] for each in manifest["versions"]] == [100, 150, 30]
    # What the parts themselves have.
    made = ds.dataset(alone.folder / "out", format="parquet").to_table()["loud"]
    assert Counter(made.to_pylist()) == {"1": 100, "2": 150, "3": 30}
