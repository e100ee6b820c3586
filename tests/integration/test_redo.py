"""Rows whose part is gone run again; ledger, files and lists agree before, during and after."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.batches import lost_parts
from nightshift.common.ledger.jobs import jobs
from nightshift.common.states import JobState
from nightshift.producer.cli.app import app
from nightshift.producer.verify.verify import verify
from tests.integration.test_retry import Site, moody


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def parts(site: Site) -> list[Path]:
    return sorted((site.folder / "out").glob("part-*"))


def test_lost_parts_of_a_closed_job_run_again_and_nothing_else(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    assert site.work(moody(3)) is JobState.COMPLETED
    kept, *gone = parts(site)
    before = kept.read_bytes()
    for part in gone[:2]:
        part.unlink()
    said = nightshift("retry", "1", "--lost")
    assert said.stdout == (
        "job 1 (moody): 20 rows in 2 batches run again; `nightshift wait 1` waits for it\n"
    )
    assert site.job.state is JobState.RUNNING
    assert not (site.folder / "out" / "_manifest.json").exists()
    assert verify(site.ledger, site.job) == []
    assert site.work(moody(4)) is JobState.COMPLETED
    # Errors of the parts that were lost went with them; those of the others stay.
    assert sorted(row % 10 for row in site.agrees()) == [3, 3, 4, 4]
    assert kept.read_bytes() == before
    again = nightshift("retry", "1", "--lost")
    assert again.stdout == "job 1 (moody): no part is gone\n"
    with site.ledger.transaction() as connection:
        log = audit_log.of_job(connection, site.job_id)
    [row] = [row for row in log if row["action"] == "redo"]
    assert row["detail"] == {"rows": 20, "batches": 2}


def test_a_lost_part_of_a_running_job_runs_again(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    site.run(moody(), most=2)
    parts(site)[0].unlink()
    assert "10 rows in 1 batch run again" in nightshift("retry", "1", "--lost").stdout
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_job_that_could_not_be_finished_names_the_command_that_helps(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    site.run(moody())
    parts(site)[0].unlink()
    assert site.finish() is JobState.FAILED
    assert "`nightshift retry 1 --lost` runs their rows again" in str(site.job.reason)
    assert nightshift("retry", "1", "--lost").exit_code == 0
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_lost_error_part_of_a_dead_batch_makes_its_rows_run_again(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit(rows=20)
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE batches SET state = 'dead' WHERE seq = 0")
    site.run(moody())
    assert site.finish() is JobState.FAILED
    dead = next(part for part in parts(site) if "part-000000" in part.name)
    dead.unlink()
    assert nightshift("retry", "1", "--lost").exit_code == 0
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_part_that_was_replaced_meanwhile_is_left_alone(site: Site) -> None:
    site.submit()
    site.work(moody())
    with site.ledger.transaction() as connection:
        done = lost_parts.redo(connection, site.job_id, [("part-of-before.parquet", 1)])
    assert (done.batches, done.reopened) == (0, False)
    assert site.job.state is JobState.COMPLETED


def test_a_directory_that_is_gone_as_a_whole_needs_a_second_word(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    """The store may be the wrong one, or not mounted."""
    site.submit()
    site.work(moody())
    (site.folder / "out").rename(site.folder / "elsewhere")
    said = nightshift("retry", "1", "--lost")
    assert (said.exit_code, "is this the right store, and mounted?" in said.stderr) == (2, True)
    assert site.job.state is JobState.COMPLETED
    assert nightshift("retry", "1", "--lost", "--yes").exit_code == 0
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_every_reader_of_an_output_that_is_gone_names_the_command_that_brings_it_back(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    site.work(moody())
    first, *_ = parts(site)
    first.unlink()
    collect = ("collect", "1", "--to", str(site.folder / "all.jsonl"))
    for reader, code in ((("verify", "1"), 1), (collect, 2), (("wait", "1"), 3)):
        said = nightshift(*reader)
        told = " ".join((said.stdout + said.stderr).split())
        assert (said.exit_code, "`nightshift retry 1 --lost`" in told) == (code, True), told
    first.parent.rename(site.folder / "elsewhere")
    for reader in (("verify", "1"), collect, ("sample", "1"), ("wait", "1")):
        said = nightshift(*reader)
        told = " ".join((said.stdout + said.stderr).split())
        assert "`nightshift retry 1 --lost --yes`" in told, told
    assert nightshift("retry", "1", "--lost", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["1"], "say which rows run again: --failed (with --kind, if only some), --dead or --lost"),
        (["1", "--lost"], "job 1 is cancelled"),
    ],
)
def test_what_cannot_be_redone_is_one_sentence(
    site: Site, nightshift: Callable[..., Result], arguments: list[str], sentence: str
) -> None:
    site.submit()
    site.run(moody())
    with site.ledger.transaction() as connection:
        jobs.cancel(connection, site.job_id)
    parts(site)[0].unlink()
    said = nightshift("retry", *arguments)
    assert (said.exit_code, said.stderr.startswith(f"nightshift: {sentence}")) == (2, True)
