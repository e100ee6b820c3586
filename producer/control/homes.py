"""Gc of a home folder: the embedded ledger of a `nightshift run` whose jobs are all over."""

import shutil
from pathlib import Path

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import deletions
from nightshift.common.text import first_few
from nightshift.producer.control.answer import Answer
from nightshift.producer.embedded.home import home_lock

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
lie there too, stay."""


def refuse_needed(ledger: Ledger, home: Path, *, alone: bool) -> None:
    """BadInput where a `nightshift run` is running, or a job of the home is not closed: only the ledger knows its
    parts.
    """
    if not alone:
        raise BadInput(f"a `nightshift run` is running in {home} and needs its ledger")
    with ledger.transaction() as connection:
        unclosed = deletions.unclosed(connection)
    if unclosed:
        raise BadInput(
            f"jobs {first_few(unclosed)} in {home} are not closed: `nightshift run` in this folder "
            "continues them, and puts the files of the cancelled ones in their place"
        )


def remove(home: Path, *, sure: bool) -> Answer:
    """Says how much the ledger and the logs of a home take, and deletes them if `sure`. Outputs stay.

    The servers must be down. BadInput where another process holds the folder.
    """
    with home_lock(home):
        there = [home / name for name in OURS if (home / name).exists()]
        size = sum(_bytes(path) for path in there)
        if sure:
            for path in there:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    said = f"the ledger and the logs of its jobs, {size / 2**20:,.0f} MiB, "
    then = "can go; `nightshift gc --home --yes` deletes them"
    if sure:
        then = "are gone; outputs stay, and a job that runs again takes its own over with --adopt"
    facts = {"home": str(home), "bytes": size, "deleted": sure}
    return Answer("gc", str(home), then=said + then, facts=facts)


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files)
