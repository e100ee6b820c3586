"""A job that is deleted leaves the ledger; its output stays, or exactly its own files go."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.errors import BadInput, LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import deletions, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.cli.app import app
from nightshift.producer.control import deletion, job_moves, job_settings
from nightshift.producer.retry import retry
from tests.integration.test_retry import Site, moody

TABLES = """
    SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = 'public' AND (column_name = 'job_id' OR table_name = 'jobs'
                                       AND column_name = 'id')
      AND table_name IN (SELECT tablename FROM pg_tables)
"""


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def rows_of(site: Site, job_id: int) -> dict[str, int]:
    """Rows that a job has in each table, without tables that have none."""
    found = {}
    for table, column in site.ask(TABLES):
        query = f"SELECT count(*) AS n FROM {table} WHERE {column} = {job_id}"
        found[table] = site.ask(query)[0].n
    return {table: count for table, count in found.items() if count}


def files(site: Site) -> list[str]:
    """Every file and folder below the output directory."""
    out = site.folder / "out"
    return sorted(str(path.relative_to(out)) for path in out.rglob("*"))


def finished(site: Site) -> None:
    site.submit()
    assert site.work(moody(3)) is JobState.COMPLETED


def cut_off(nightshift: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion of job 1 that comes to its end in the directory, and not in the ledger."""

    def cut(*_: object) -> None:
        raise LedgerUnavailable("Postgres is away")

    with monkeypatch.context() as patch:
        patch.setattr(deletions, "end", cut)
        assert nightshift("delete", "1", "--output").exit_code == 2


def test_a_deleted_job_leaves_every_table_but_the_audit_log_and_its_output_stays(
    site: Site, nightshift: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "PAGE_ROWS", 2)
    finished(site)
    first, before = site.job_id, files(site)
    other = Site(site.ledger, site.folder / "other", boots=10)
    finished(other)
    kept = rows_of(other, other.job_id)
    said = nightshift("delete", str(first))
    assert said.stdout == (
        f"job {first} (moody): deleted, 40 rows in 4 batches; its files stay in "
        f"{site.folder / 'out'}\n"
    )
    assert rows_of(site, first) == {"audit_log": 2}
    assert files(site) == before
    assert rows_of(other, other.job_id) == kept
    assert other.agrees()
    assert nightshift("delete", str(first)).exit_code == 2


def test_with_output_exactly_the_files_of_the_job_go(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    finished(site)
    out = site.folder / "out"
    strangers = ["notes.txt", "part-of-mine.parquet", "_input/mine.txt", "_attempts/mine"]
    for name in strangers:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    outside = site.folder / "outside.parquet"
    outside.write_text("not in the directory")
    (out / "link.parquet").symlink_to(outside)
    (out / "_attempts" / "part-000001-a9.parquet").write_text("an attempt that never counted")
    (out / "_generations").mkdir()
    (out / "_generations" / "000002.json").write_text("of an append")
    # A manifest is a file like others: what it names beyond parts of this directory stays.
    manifest = json.loads((out / "_manifest.json").read_text())
    manifest["parts"] += [{"name": "notes.txt"}, {"name": "part-/../../outside.parquet"}]
    (out / "_manifest.json").write_text(json.dumps(manifest))
    said = json.loads(nightshift("delete", "1", "--output", "--json").stdout)
    assert (said["files"], said["files_left"]) == (8, 5)
    assert files(site) == sorted(["_attempts", "_input", "link.parquet", *strangers])
    assert outside.exists()
    assert site.ask("SELECT count(*) AS n FROM jobs")[0].n == 0


def test_a_manifest_that_is_too_large_is_refused_before_anything_goes(
    site: Site, nightshift: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(site)
    before, manifest = files(site), site.folder / "out" / "_manifest.json"
    monkeypatch.setattr("nightshift.producer.reaper.manifest.MOST_BYTES", 10)
    refused = nightshift("delete", "1", "--output")
    assert refused.exit_code == 2
    said = f"{manifest} has more than 10 bytes, which no manifest of ours has: move the file away"
    assert said in " ".join(refused.output.split())
    assert files(site) == before
    manifest.rename(site.folder / "away.json")
    assert nightshift("delete", "1", "--output").exit_code == 0
    assert not (site.folder / "out").exists()


def test_the_same_spec_makes_a_new_job_in_the_directory_afterwards(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    finished(site)
    said = nightshift("delete", "1", "--output")
    assert said.stdout.endswith(f"and 6 files in {site.folder / 'out'}\n")
    assert not (site.folder / "out").exists()
    finished(site)
    assert site.job_id == 2
    assert len(site.agrees()) == 4


def test_a_job_that_is_not_over_is_refused_and_a_cancelled_one_is_finished_first(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    site.run(moody(), most=2)
    running = nightshift("delete", "1", "--output")
    assert (running.exit_code, running.stderr) == (
        2,
        "nightshift: job 1 is running: `nightshift cancel 1` ends it first\n",
    )
    with site.ledger.transaction() as connection:
        jobs.cancel(connection, 1)
    assert nightshift("delete", "1", "--output").exit_code == 0
    assert not (site.folder / "out").exists()


def test_a_directory_of_somebody_else_is_not_touched(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    finished(site)
    marker = site.folder / "out" / "_owner.json"
    own = marker.read_text()
    for content, sentence in (
        (own.replace('"identity": "', '"identity": "0'), "belongs to another job or ledger by now"),
        (None, "has no owner marker"),
    ):
        marker.unlink() if content is None else marker.write_text(content)
        before = files(site)
        said = nightshift("delete", "1", "--output")
        assert (said.exit_code, sentence in said.stderr) == (2, True)
        assert files(site) == before
    assert nightshift("delete", "1").exit_code == 0


def test_a_deletion_that_was_cut_off_goes_on_and_nothing_runs_the_job_meanwhile(
    site: Site, nightshift: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(site)
    cut_off(nightshift, monkeypatch)
    assert not (site.folder / "out").exists()
    for command in (["retry", "1", "--failed"], ["retry", "1", "--lost"], ["verify", "1"]):
        said = nightshift(*command)
        assert "job 1 is being deleted: `nightshift delete 1` continues" in said.stderr, command
    with pytest.raises(Exception, match="job 1 is being deleted"):
        site.submit()
    # Somebody else has the directory by now.
    (site.folder / "out").mkdir()
    (site.folder / "out" / "part-000000-a1.parquet").write_text("of another ledger")
    (site.folder / "out" / "_owner.json").write_text('{"ledger": "other", "identity": "other"}')
    assert nightshift("delete", "1").exit_code == 0
    assert files(site) == ["_owner.json", "part-000000-a1.parquet"]
    assert rows_of(site, 1) == {"audit_log": 2}


def test_whatever_would_open_a_job_again_is_refused_while_it_is_being_deleted(site: Site) -> None:
    """An append, a watch of its input, a retry: each of them opens a job by this one function."""
    finished(site)
    with site.ledger.transaction() as connection:
        deletions.begin(connection, site.job_id, output=False)
    with (
        pytest.raises(BadInput, match="job 1 is being deleted"),
        site.ledger.transaction() as connection,
    ):
        jobs.reopen(connection, site.job_id)
    assert site.job.state is JobState.COMPLETED


def test_a_deletion_that_another_command_has_ended_touches_nothing_of_the_next_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same spec makes parts of the same names in the same directory, and the marker is the same."""
    finished(site)
    files_of = deletion.files_of

    def slow(ledger: Ledger, job: Job) -> list[str]:
        """The files as they are, and then the other command comes to its end."""
        found = list(files_of(ledger, job))
        monkeypatch.setattr(deletion, "files_of", files_of)
        deletion.delete(ledger, job, Settings(), output=True)
        finished(site)
        return found

    monkeypatch.setattr(deletion, "files_of", slow)
    with pytest.raises(BadInput, match="job 1 is gone: it was deleted"):
        deletion.delete(site.ledger, site.job, Settings(), output=True)
    assert site.job_id == 2
    assert len(site.agrees()) == 4, "every part of the new job is there"


def test_an_output_that_is_to_go_after_all_is_looked_at_like_any_other(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    finished(site)
    with site.ledger.transaction() as connection:
        deletions.begin(connection, 1, output=False)
    (site.folder / "out" / "_owner.json").unlink()
    said = nightshift("delete", "1", "--output")
    assert (said.exit_code, "has no owner marker" in said.stderr) == (2, True)


@pytest.mark.parametrize(
    "move",
    [
        lambda ledger, job: deletion.delete(ledger, job, Settings(), output=False),
        job_moves.cancel,
        lambda ledger, job: job_settings.change(ledger, job, {"priority": "3"}),
        lambda ledger, job: retry(ledger, job, failed=True, dead=False, kind=None),
    ],
    ids=["delete", "cancel", "set", "retry"],
)
def test_a_job_that_somebody_deleted_meanwhile_is_one_sentence(
    site: Site, move: Callable[[Ledger, Job], object]
) -> None:
    finished(site)
    known = site.job
    deletion.delete(site.ledger, known, Settings(), output=False)
    with pytest.raises(BadInput, match="job 1 is gone"):
        move(site.ledger, known)
