"""The tables' version and the ledger's id: migrate, and refuse a database that does not fit this code."""

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import text

from nightshift.common.errors import SchemaMismatch
from nightshift.common.ledger import audit_log
from nightshift.common.ledger.connection import Connection, Ledger, lift_time_limit

if TYPE_CHECKING:
    from alembic.config import Config

SCHEMA = 1
"""The newest migration that this code knows, as a number."""

MIGRATION_LOCK = 0x6E69676874
"""Advisory lock held while migrating, so that two migrations do not run at once ('night')."""


def migrate(ledger: Ledger) -> int:
    """Migrate the tables to this code and return their version; leave newer tables as they are."""
    # Imported here alone: every other process starts a third of a second sooner without alembic.
    from alembic import command

    with ledger.transaction() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '10s'"))
        lift_time_limit(connection)
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        config = _config()
        config.attributes["connection"] = connection
        found = _found(connection)
        if found is not None and int(found) > SCHEMA:
            return int(found)
        command.upgrade(config, "head")
        if found != f"{SCHEMA:04}":
            changed = [found, f"{SCHEMA:04}"]
            audit_log.record(connection, "migrate", detail={"migration": changed})
        return SCHEMA


def check(ledger: Ledger) -> None:
    """Raises SchemaMismatch when the database is behind the code or declares itself too new."""
    with ledger.transaction() as connection:
        found = _found(connection)
        if found is None:
            raise SchemaMismatch(
                f"the database {ledger.place} has no Nightshift tables: run `nightshift migrate`"
            )
        if int(found) < SCHEMA:
            raise SchemaMismatch(
                f"the database {ledger.place} is at migration {found} and this code needs "
                f"{SCHEMA:04}: run `nightshift migrate`"
            )
        refuse_newer(connection.scalar(text("SELECT compatible_from FROM ledger_meta")))


def refuse_newer(compatible_from: int | None) -> None:
    """Raises SchemaMismatch when the tables want code that knows a later migration than this."""
    if compatible_from is None or compatible_from > SCHEMA:
        raise SchemaMismatch(
            f"the ledger wants code that knows migration {compatible_from}, this one knows "
            f"{SCHEMA:04}: upgrade nightshift-fleet"
        )


def ledger_id(connection: Connection) -> str:
    """Which ledger this is: a random UUID that a dump and its restore keep."""
    return str(connection.scalar(text("SELECT ledger_id FROM ledger_meta")))


def head() -> str:
    """The newest migration in the folder; a test compares it with SCHEMA."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def _found(connection: Connection) -> str | None:
    """Return the version of the tables, None without tables. SchemaMismatch for tables of a version before the first
    release, which numbered other migrations.
    """
    statement = text("SELECT to_regclass('schema_version'), to_regclass('nightshift_version')")
    there, unreleased = connection.execute(statement).one()
    if there is None and unreleased is not None:
        raise SchemaMismatch(
            "the tables of this ledger were created by a version before the first release and cannot be migrated: use an "
            "empty database, or another folder for `nightshift run`"
        )
    if there is None:
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM schema_version"))
    return found


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("nightshift.common") / "migrations"))
    config.set_main_option("path_separator", "os")
    return config
