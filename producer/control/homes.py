"""Gc of a home folder: the embedded ledger of a `nightshift run` whose jobs are all over."""

import shutil
from pathlib import Path

from nightshift.common.errors import BadInput
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.jobs import deletions
from nightshift.common.settings import Settings
from nightshift.common.text import first_few
from nightshift.producer.connect import refuse_no_ledger
from nightshift.producer.control.answer import Answer
from nightshift.producer.embedded.home import HomeInUse, home_lock
from nightshift.producer.embedded.postgres import EmbeddedPostgres

OURS = (
    "postgres",
    "postgres.new",
    "processes",
    "database_url",
    "supervisors",
    "holder",
    "ending",
    "readers",
    "postgres.port",
    "redis.port",
    "redis.conf",
    "redis.password",
    "initdb.log",
    "postgres.log",
    "redis.log",
    "reaper.log",
    "worker.log",
)
"""What `nightshift run` keeps in its home folder. Outputs and staged tables of the Python API, which may
lie there too, stay. The lock stays as well: a command may wait for it."""

OWN_SECONDS = 5.0
"""How long the folder may be in use before nothing is collected."""


def collect(settings: Settings, *, sure: bool) -> Answer:
    """Says how much the ledger and the logs of the home take, and deletes them if `sure`. Outputs stay.

    This process owns the folder from the look at the jobs to the last deletion, so no command can submit a job in
    between. Raises BadInput if another command uses the folder, or if a job is not closed: only the
    ledger knows its parts.
    """
    home = settings.home.absolute()
    refuse_no_ledger(home)
    try:
        with home_lock(home, seconds=OWN_SECONDS):
            refuse_no_ledger(home)
            _refuse_needed(settings, home)
            there = [home / name for name in OURS if (home / name).exists()]
            size = sum(_bytes(path) for path in there)
            if sure:
                reached(Moment.DELETING)
                for path in there:
                    if path.is_dir():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
    except HomeInUse as error:
        raise BadInput(f"{home} cannot go: {error}") from error
    said = f"the ledger and the logs of its jobs, {size / 2**20:,.0f} MiB, "
    then = "can go; `nightshift gc --home --yes` deletes them"
    if sure:
        then = "are gone; outputs stay, and a job that runs again takes its own over with --adopt"
    facts = {"home": str(home), "bytes": size, "deleted": sure}
    return Answer("gc", str(home), then=said + then, facts=facts)


def _refuse_needed(settings: Settings, home: Path) -> None:
    """Raise BadInput if a job of the home is not closed."""
    postgres = EmbeddedPostgres()
    ledger = Ledger(postgres.start(home), connections=1, answer_seconds=settings.answer_seconds)
    try:
        schema.check(ledger)
        with ledger.transaction() as connection:
            unclosed = deletions.unclosed(connection)
    finally:
        ledger.close()
        postgres.stop()
    if unclosed:
        raise BadInput(
            f"jobs {first_few(unclosed)} in {home} are not closed: `nightshift run` in this folder "
            "continues them, and puts the files of the cancelled ones in their place"
        )


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files)
