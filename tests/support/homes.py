"""A migrated embedded Postgres, made once a run and copied by every process and test of it."""

import fcntl
import os
import subprocess
from pathlib import Path

import psycopg

TEMPLATE = "nightshift_template"
"""A second migrated database in each copy, which nobody connects to, for CREATE DATABASE."""

shared: Path | None = None
"""The folder that all processes of the run share; set when it begins."""


def furnish(home: Path) -> None:
    """Gives a home folder its Postgres, unless it has one."""
    assert shared is not None
    if (home / "postgres").exists():
        return
    made = shared / "home" / "postgres"
    with (shared / "home.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(shared / "new-home").rename(shared / "home")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    # With its owner, since Postgres runs as that one.
    subprocess.run(["cp", "-a", "--reflink=auto", made, home / "postgres"], check=True)


def _make(home: Path) -> Path:
    from nightshift.common.ledger import Ledger, schema
    from nightshift.producer.embedded.postgres import EmbeddedPostgres

    server = EmbeddedPostgres()
    url = server.start(home)
    try:
        ledger = Ledger(url)
        schema.migrate(ledger)
        ledger.close()
        with psycopg.connect(
            url.replace("/nightshift", "/postgres"), autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE nightshift")
            # Nothing here outlives the machine, and no plan shall hang on when statistics were
            # taken; `make test-hammer` wants to see slow syncs and both.
            if "TESTS_SYNC" not in os.environ:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("ALTER SYSTEM SET autovacuum = off")
    finally:
        server.stop()
    return home
