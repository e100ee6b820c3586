"""Closed jobs leave the ledger for files beside their output, and are read from there, not changed."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from nightshift.common import storage
from nightshift.common.errors import BadInput, LedgerUnavailable
from nightshift.common.ledger.batches import retries
from nightshift.common.ledger.jobs import archives, jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer import closed_jobs, wings
from nightshift.producer.archive import retention, table_files
from nightshift.producer.reaper import loop
from nightshift.producer.results.collect import collect
from nightshift.producer.submit.submit import submit
from tests.integration.test_retry import Site, agreed, moody, nightshift, site
from tests.support.fleet import function_spec, wait_until, write_rows

pytestmark = pytest.mark.slow

__all__ = ["nightshift", "site"]

DAYS = Settings(retention_days=30)
ORDERS = {
    "batches": "id",
    "attempts": "batch_id, attempt",
    "row_errors": "job_id, row_index",
}
Rows = dict[str, list[Any]]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "PAGE_ROWS", 2)


@pytest.fixture
def old(site: Site) -> Site:
    """A job of six batches that has been closed for longer than others stay: row errors of two
    kinds, a retry, and messages with what CSV and COPY find hard."""
    site.submit(rows=60)
    assert site.work(moody(7, strange=[3])) is JobState.COMPLETED
    site.retry()
    assert site.work(moody(7, strange=[3])) is JobState.COMPLETED
    hard = 'a "b",\n\\.\n\\N \\x ü'
    change(site, "UPDATE attempts SET error = $$" + hard + "$$ WHERE attempt = 1")
    change(site, "UPDATE attempts SET error = '' WHERE batch_id = 2")
    age(site)
    return site


def change(site: Site, statement: str) -> None:
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(statement)


def age(site: Site) -> None:
    """Whatever was done with the job was done 31 days ago."""
    change(site, "UPDATE jobs SET closed_at = closed_at - interval '31 days'")
    change(site, "UPDATE job_archives SET needed_at = now() - interval '31 days'")


def give_up_hold(site: Site) -> None:
    change(site, "UPDATE holds SET until = '-infinity'")


def rows(site: Site) -> Rows:
    return {
        table: site.ask(f"SELECT t::text FROM {table} t ORDER BY {order}")
        for table, order in ORDERS.items()
    }


def archive(site: Site, settings: Settings = DAYS) -> str | None:
    retention.archive_due(site.ledger, settings, threading.Event())
    return state(site)


def state(site: Site) -> str | None:
    found = site.ask("SELECT state FROM job_archives")
    return found[0].state if found else None


def files(site: Site) -> list[Path]:
    return sorted((site.folder / "out" / "_ledger").glob("*"))


def gone(site: Site) -> bool:
    return not any(rows(site).values())


def test_an_old_job_leaves_for_files_that_duckdb_reads_and_each_row_still_counts_once(
    old: Site, nightshift: Callable[..., Result]
) -> None:
    before, progress = rows(old), old.ask("SELECT * FROM job_progress")[0]
    told = nightshift("errors", str(old.job_id)).output
    age(old)
    assert archive(old) == "archived"
    assert gone(old)
    now = old.ask("SELECT * FROM job_progress")[0]
    assert now.archived_at is not None
    assert {**now._mapping, "archived_at": None} == dict(progress._mapping)

    out = old.folder / "out"
    [counted] = duckdb.sql(
        f"SELECT count(*), count(DISTINCT id) FROM '{out}/**/*.parquet'"
    ).fetchall()
    assert counted == (60, 60)
    for table, kept in before.items():
        query = f"SELECT count(*) FROM read_parquet('{out}/_ledger/{table}-*.archive')"
        assert duckdb.sql(query).fetchall() == [(len(kept),)]
    query = f"SELECT sum(row_count), min(part_name) FROM read_parquet('{out}/_ledger/batches-*')"
    [(total, name)] = duckdb.sql(query).fetchall()
    assert total == 60
    assert name.startswith("part-000000")
    assert len(old.output()) == 60

    assert nightshift("errors", str(old.job_id)).output == told
    few = nightshift("errors", str(old.job_id), "--kind", "bad_type", "-n", "2").output
    assert few.count("bad_type") >= 2
    assert "archived" in nightshift("status", str(old.job_id)).output
    assert gone(old)


def seen(site: Site) -> Rows:
    """The rows of the job as those see them who read it, archived or not."""
    with (
        closed_jobs.readable(site.ledger, site.job) as own,
        own.transaction() as connection,
    ):
        return {
            table: list(
                connection.exec_driver_sql(f"SELECT t::text FROM {table} t ORDER BY {order}")
            )
            for table, order in ORDERS.items()
        }


def collected(site: Site) -> list[dict[str, Any]]:
    target = site.folder / "collected.parquet"
    collect(site.ledger, site.job, str(target), force=True)
    found: list[dict[str, Any]] = pq.read_table(target).to_pylist()
    return found


def test_an_archived_job_is_read_as_it_was_and_nothing_comes_back(
    old: Site, nightshift: Callable[..., Result]
) -> None:
    before = rows(old)
    assert old.agrees().keys()
    age(old)
    commands = {
        "errors": ("errors", "1", "-n", "100"),
        "history": ("history", "1", "-n", "100"),
        "sample": ("sample", "1", "-n", "5", "--json"),
        "failed": ("sample", "1", "-n", "3", "--errors", "--json"),
        "verify": ("verify", "1"),
    }
    told = {name: nightshift(*command).output for name, command in commands.items()}
    whole = collected(old)
    age(old)
    assert archive(old) == "archived"
    assert seen(old) == before
    assert {name: nightshift(*command).output for name, command in commands.items()} == told
    assert collected(old) == whole
    done = nightshift("collect", "1", "--manifest", "--to", "parts.csv")
    assert done.exit_code == 0, done.output
    assert gone(old)
    assert state(old) == "archived"


@pytest.mark.parametrize(
    "command", [("retry", "--failed"), ("retry", "--dead"), ("retry", "--lost", "--yes")]
)
def test_an_archived_job_is_not_changed(
    old: Site, nightshift: Callable[..., Result], command: tuple[str, ...]
) -> None:
    assert archive(old) == "archived"
    verb, *flags = command
    done = nightshift(verb, "1", *flags)
    assert done.exit_code == 2, done.output
    assert (
        "job 1 was archived (NIGHTSHIFT_RETENTION_DAYS) and cannot be changed: submit its spec with --new "
        "and another output directory"
    ) in " ".join(done.output.split())
    assert gone(old)


def test_who_reads_an_archived_job_cannot_write_and_is_named(old: Site) -> None:
    assert archive(old) == "archived"
    with closed_jobs.readable(old.ledger, old.job) as own:
        with own.transaction() as connection:
            [session] = old.ask(
                "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE '%archive%'"
            )
            assert session.application_name == "nightshift (archive)"
            assert connection.exec_driver_sql("SELECT count(*) FROM batches").scalar() == 6
        with closed_jobs.readable(own, old.job) as inner:
            assert inner is own, "the rows are loaded once"
        with (
            pytest.raises(LedgerUnavailable, match="read-only transaction"),
            own.transaction() as connection,
        ):
            connection.exec_driver_sql("UPDATE jobs SET priority = 1")
    assert old.ask("SELECT count(*) FROM batches") == [(0,)]
    assert not old.ask("SELECT FROM pg_class WHERE relpersistence = 't' AND relname = 'batches'")


def test_a_file_that_is_not_what_was_written_costs_no_row(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = rows(old), storage.write_owned

    torn_at = []

    def torn(uri: str, *given: Any, **more: Any) -> Any:
        torn_at.append(int(Path(uri).stem.partition("-")[2]))
        written = real(uri, *given, **more)
        if "/attempts-" in uri:
            data = bytearray(Path(uri).read_bytes())
            data[len(data) // 2] ^= 1
            Path(uri).write_bytes(data)
        return written

    monkeypatch.setattr(storage, "write_owned", torn)
    assert archive(old) == "kept"
    assert torn_at != []
    assert rows(old) == before
    monkeypatch.undo()
    # Left alone for an hour, so that others have their turn.
    assert archive(old) == "kept"
    give_up_hold(old)
    assert archive(old) == "archived"
    [again] = {path.stem.partition("-")[2] for path in files(old)}
    assert int(again) > max(torn_at), "no name is used again"
    assert {path.name.partition("-")[0] for path in files(old)} == set(archives.TABLES)


def test_an_archive_that_is_gone_is_named_and_not_taken_for_an_empty_job(
    old: Site, nightshift: Callable[..., Result]
) -> None:
    archive(old)
    lost = next(path for path in files(old) if path.name.startswith("row_errors"))
    lost.rename(old.folder / "away")
    for command in (
        ("verify",),
        ("history",),
        ("sample",),
        ("errors",),
        ("collect", "--to", "x.parquet"),
    ):
        done = nightshift(command[0], str(old.job_id), *command[1:])
        assert done.exit_code == 2, done.output
        assert "is gone" in " ".join(done.output.split())
    with pytest.raises(BadInput, match="was archived"), old.ledger.transaction() as connection:
        retries.retry(connection, old.job_id, failed=True, dead=True)
    (old.folder / "away").rename(lost)
    assert len(seen(old)["row_errors"]) == 12


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_jobs_that_did_not_complete_are_archived_and_read_as_well(site: Site, end: str) -> None:
    site.submit()
    source = site.folder / "in" / "a.parquet"
    if end == "cancelled":
        with site.ledger.transaction() as connection:
            jobs.cancel(connection, site.job_id)
        site.finish()
    else:
        source.rename(site.folder / "away.parquet")
        site.work(moody())
    before, failed = rows(site), site.agrees()
    assert len(failed) == (40 if end == "failed" else 0)
    age(site)
    assert archive(site) == "archived"
    assert gone(site)
    assert seen(site) == before
    with closed_jobs.readable(site.ledger, site.job) as own:
        assert agreed(own, site.job, site.folder) == failed


def test_an_archive_lies_in_an_object_store_beside_its_output(
    site: Site, client: Any, fresh: str
) -> None:
    write_rows(site.folder / "in", [("a.parquet", 40)])
    spec = function_spec("moody", site.folder / "in", site.folder / "out", batch={"rows": 10})
    spec["output"]["uri"] = f"s3://{fresh}/out"
    site.job_id = submit(site.ledger, parse_spec(spec, "test"), Settings()).job_id
    assert site.work(moody(7)) is JobState.COMPLETED
    before = rows(site)
    age(site)
    assert archive(site) == "archived"
    assert gone(site)
    assert len(client.ls(f"{fresh}/out/_ledger")) == len(archives.TABLES)
    assert seen(site) == before


def stay(site: Site) -> None:
    before = rows(site)
    archive(site)
    assert rows(site) == before
    assert files(site) == []


def test_a_job_stays_that_was_closed_lately_or_runs_again_and_all_stay_by_default(
    old: Site,
) -> None:
    assert archive(old, Settings()) is None
    change(old, "UPDATE jobs SET closed_at = now() - interval '29 days'")
    stay(old)
    age(old)
    old.retry()
    age(old)
    stay(old)


def test_a_job_stays_whose_output_is_not_there_or_whose_finish_was_given_up(old: Site) -> None:
    manifest = old.folder / "out" / "_manifest.json"
    manifest.rename(old.folder / "manifest")
    stay(old)
    (old.folder / "manifest").rename(manifest)
    give_up_hold(old)
    change(
        old,
        "UPDATE batches SET state = 'dead', redo = rows, redo_count = row_count, rows_failed = 0"
        " WHERE id = (SELECT min(id) FROM batches)",
    )
    stay(old)


def test_a_reaper_archives_beside_its_rounds(
    old: Site, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RETENTION_SECONDS", 0.05)
    stop = threading.Event()
    settings = Settings(database_url=database_url, retention_days=30)
    reaper = threading.Thread(
        target=loop.run, args=(old.ledger, settings, stop), kwargs={"delete": lambda _: None}
    )
    reaper.start()
    try:
        wait_until(lambda: state(old) == "archived", what="the archive")
    finally:
        stop.set()
        reaper.join()
    assert gone(old)


def test_without_the_wing_whoever_needs_the_rows_of_an_archived_job_is_told_so(
    old: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive(old) == "archived"
    monkeypatch.setattr(wings, "offered", lambda _: [])
    with pytest.raises(BadInput, match="are in its archive, which nightshift reads with"):
        closed_jobs.errors(old.ledger, old.job, kind=None, limit=9)
