"""Tables that a later release migrated, before or while code of this one works with them."""

import subprocess
from pathlib import Path

import psycopg
import pytest

from nightshift.common.ledger.schema import SCHEMA
from tests.support.fleet import wait_until
from tests.support.rig import Rig

pytestmark = pytest.mark.slow

REFUSED = 2

LATER = [f"{SCHEMA + step:04}" for step in (1, 2, 3)]
"""Migrations of releases to come."""

UNFIT = (
    f"wants code that knows migration {int(LATER[2])}, this one knows {SCHEMA:04}: "
    "upgrade nightshift-fleet"
)

ENTRIES = (
    ("nightshift.worker.cli",),
    ("nightshift.producer.cli", "reaper"),
    ("nightshift.producer.cli", "status"),
)
"""Every way into the ledger: a worker, a reaper, a command."""


def change(rig: Rig, *statements: str) -> None:
    with psycopg.connect(rig.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def move_tables(rig: Rig, version: str, compatible_from: int = 1) -> None:
    """What the migration of a later release leaves behind."""
    change(
        rig,
        f"UPDATE schema_version SET version_num = '{version}'",
        f"UPDATE ledger_meta SET compatible_from = {compatible_from}",
    )


def add_columns(rig: Rig, name: str) -> None:
    tables = ("jobs", "batches", "attempts", "row_errors", "workers", "job_counters")
    added = f"ADD COLUMN {name} text NOT NULL DEFAULT 'new'"
    change(rig, *(f"ALTER TABLE {table} {added}" for table in tables))


def log_of(rig: Rig, process: subprocess.Popen[bytes]) -> str:
    (path,) = rig.folder.glob(f"*.{rig.processes.index(process)}.log")
    return Path(path).read_text()


def refused(rig: Rig, sentence: str) -> None:
    """Each of them ends with that one sentence, and nobody has claimed anything."""
    claimed = "SELECT count(*) FROM attempts"
    before = rig.value(claimed)
    started = [rig.start(*entry) for entry in ENTRIES]
    for process in started:
        assert process.wait(120) == REFUSED, log_of(rig, process)
        (said,) = log_of(rig, process).splitlines()
        assert said.startswith("nightshift"), said
        assert sentence in said
    assert rig.value(claimed) == before


def test_a_fleet_goes_on_with_newer_tables_until_they_say_that_it_must_not(rig: Rig) -> None:
    add_columns(rig, "later")
    move_tables(rig, LATER[0])
    rig.let(5)
    ids = rig.submit("ahead", 400)
    fleet = [rig.reaper(), rig.worker()]
    rig.wait_rows("ahead", 1)
    add_columns(rig, "still_later")
    move_tables(rig, LATER[1])
    assert rig.rows_done("ahead") < 400
    rig.let()
    said = rig.command("migrate")
    assert said.returncode == 0, said.stderr
    assert f"at migration {LATER[1]}, newer than the {SCHEMA:04} of this code" in said.stdout
    rig.finished("ahead", ids)

    rig.let(20)
    ids = rig.submit("stopped", 600)
    rig.wait_rows("stopped", 20)
    move_tables(rig, LATER[2], compatible_from=int(LATER[2]))
    for process in fleet:
        assert process.wait(120) == REFUSED, log_of(rig, process)
        assert log_of(rig, process).splitlines()[-1].endswith(UNFIT)
    held = "SELECT count(*) FROM batches WHERE state = 'leased'"
    wait_until(lambda: rig.value(held) == 0, what="the end of every lease")
    assert 0 < rig.rows_done("stopped") < 600

    refused(rig, UNFIT)
    move_tables(rig, "0000")
    refused(rig, f"is at migration 0000 and this code needs {SCHEMA:04}: run `nightshift migrate`")

    move_tables(rig, f"{SCHEMA:04}")
    rig.let()
    rig.reaper()
    rig.worker()
    rig.finished("stopped", ids)
    assert rig.charges() == (0, 0)
