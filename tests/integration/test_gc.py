"""`nightshift gc` shows what nobody needs, deletes it when told to, and touches nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nightshift.common import storage
from nightshift.common.errors import DeleteRefused
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.jobs import deletions, jobs
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.cli.app import app
from nightshift.producer.control import deletion, garbage
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from tests.integration.test_retry import Site, moody
from tests.support.world import World


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    found = Site(ledger, tmp_path)
    found.submit()
    assert found.work(moody(3)) is JobState.COMPLETED
    return found


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def files(site: Site) -> list[str]:
    out = site.folder / "out"
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def test_orphans_are_shown_first_and_deleted_when_told_so(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    clean = nightshift("gc")
    assert clean.stdout == "0 jobs: 0 files of attempts that never counted can go\n"
    out, before = site.folder / "out", files(site)
    (out / "_attempts").mkdir()
    begun = ["._manifest.json.0123456789ab", "_generations/.000001.json.0123456789ab"]
    (out / "_generations").mkdir()
    proof = "_attempts/.proof-0123456789ab"
    orphans = ["_attempts/part-000001-a9.parquet", proof, "part-000002-a9.parquet", *begun]
    for name in [*orphans, "notes.txt", "_attempts/notes.txt"]:
        (out / name).write_text("left")
    shown = nightshift("gc")
    assert shown.stdout == (
        "1 job: 5 files of attempts that never counted can go; `nightshift gc --yes` deletes them\n"
    )
    assert all((out / name).exists() for name in orphans)
    said = json.loads(nightshift("gc", "--yes", "--json").stdout)
    assert said["files"] == sorted(str(out / name) for name in orphans)
    assert files(site) == sorted([*before, "notes.txt", "_attempts/notes.txt"])
    for name in ("notes.txt", "_attempts/notes.txt"):
        (out / name).unlink()
    assert len(site.agrees()) == 4


def test_the_files_of_a_job_that_runs_or_of_somebody_else_are_left_alone(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    out = site.folder / "out"
    (out / "part-000002-a9.parquet").write_text("left")
    marker = (out / "_owner.json").read_text()
    (out / "_owner.json").write_text(marker.replace('"identity": "', '"identity": "0'))
    assert "0 files" in nightshift("gc", "--yes").stdout
    (out / "_owner.json").write_text(marker)
    assert site.retry() == 4
    assert "0 files" in nightshift("gc", "--yes").stdout
    assert (out / "part-000002-a9.parquet").exists()


def test_a_deletion_that_was_cut_off_is_found_and_finished(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    with site.ledger.transaction() as connection:
        deletions.begin(connection, site.job_id, output=True)
    assert "and 1 deletions that were cut off can go" in nightshift("gc").stdout
    assert nightshift("gc", "--yes").exit_code == 0
    assert site.ask("SELECT count(*) AS n FROM jobs")[0].n == 0
    assert not (site.folder / "out").exists()


def test_the_ledger_of_a_folder_can_go_once_its_jobs_are_over_and_outputs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_DATABASE_URL", raising=False)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    output = tmp_path / "runs" / "sales" / "part-000000-a1.parquet"
    output.parent.mkdir(parents=True)
    output.write_text("rows")

    def in_ledger(act: Callable[[World], object]) -> None:
        server = EmbeddedPostgres()
        ledger = Ledger(server.start(tmp_path))
        try:
            schema.migrate(ledger)
            act(World(ledger))
        finally:
            ledger.close()
            server.stop()

    in_ledger(lambda world: world.job(1))
    refused = CliRunner().invoke(app, ["gc", "--home"])
    assert f"jobs 1 in {tmp_path} are not closed" in refused.output
    in_ledger(lambda world: world.run(jobs.cancel, 1))
    refused = CliRunner().invoke(app, ["gc", "--home", "--yes"])
    assert f"jobs 1 in {tmp_path} are not closed" in refused.output
    in_ledger(lambda world: world.ask("UPDATE jobs SET closed_at = now() RETURNING id"))
    shown = CliRunner().invoke(app, ["gc", "--home"])
    assert "can go; `nightshift gc --home --yes` deletes them" in shown.stdout, shown.output
    gone = CliRunner().invoke(app, ["gc", "--home", "--yes", "--json"])
    assert json.loads(gone.stdout)["deleted"] is True
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"runs/sales/part-000000-a1.parquet", "lock", ".gitignore"}


def test_what_one_job_refuses_keeps_no_other_back(
    site: Site, nightshift: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Site(site.ledger, site.folder / "other", boots=10)
    other.submit()
    assert other.work(moody()) is JobState.COMPLETED
    with site.ledger.transaction() as connection:
        for job_id in (site.job_id, other.job_id):
            deletions.begin(connection, job_id, output=True)
    delete = storage.delete

    def refuse(uri: str) -> None:
        if uri.startswith(str(site.folder / "out")):
            raise DeleteRefused(f"{uri} may not be deleted")
        delete(uri)

    monkeypatch.setattr(storage, "delete", refuse)
    said = json.loads(nightshift("gc", "--yes", "--json").stdout)
    [why] = said["refused"]
    assert why.endswith("may not be deleted")
    assert [row.id for row in site.ask("SELECT id FROM jobs")] == [site.job_id]


def test_a_file_that_was_found_stays_once_its_job_is_another_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of the next job of the same spec may have the names of what was left by the first."""
    left = site.folder / "out" / "_attempts" / "part-000001-a2.parquet"
    left.parent.mkdir()
    left.write_text("left")
    found = garbage.find(site.ledger, Settings())
    assert found.orphans == {site.job_id: [str(left)]}
    monkeypatch.setattr(garbage, "find", lambda *_: found)
    deletion.delete(site.ledger, site.job, Settings(), output=True)
    site.submit()
    left.parent.mkdir(exist_ok=True)
    left.write_text("an attempt of the next job")
    said = garbage.collect(site.ledger, Settings(), sure=True)
    assert left.exists()
    assert said.facts["refused"] == ["job 1 is gone: it was deleted"]
