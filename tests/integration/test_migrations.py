"""The first step makes the core and each wing on it; later steps migrate a ledger with its rows, whole or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from nightshift import common
from nightshift.common.errors import SchemaMismatch
from nightshift.common.ledger import Ledger, schema
from tests.support.catalog import objects
from tests.support.world import World

MIGRATIONS = Path(common.__file__).parent / "migrations"
FIRST = MIGRATIONS / "first"
WINGS = sorted(path.stem for path in FIRST.glob("*.sql") if path.stem != "core")

LATER_STEP = """
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN wish text NOT NULL DEFAULT 'none'")
    op.execute({statement!r})
"""
"""A step of a release to come."""


@pytest.fixture
def empty(fresh_database: Callable[..., str]) -> str:
    """The URL of a database without tables."""
    return fresh_database(migrated=False)


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Adds a second step, with this statement, to the steps that the code knows."""
    copy = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    real = schema._config

    def config() -> object:
        made = real()
        made.set_main_option("script_location", str(copy))
        return made

    def add(statement: str) -> None:
        (copy / "versions" / "0002_later.py").write_text(LATER_STEP.format(statement=statement))
        monkeypatch.setattr(schema, "_config", config)
        monkeypatch.setattr(schema, "SCHEMA", 2)

    return add


def run(url: str, *names: str) -> None:
    with psycopg.connect(url) as connection:
        for name in names:
            connection.execute((FIRST / f"{name}.sql").read_bytes())


def test_the_core_needs_no_wing(empty: str) -> None:
    run(empty, "core")
    with psycopg.connect(empty) as connection:
        views = connection.execute(
            "SELECT viewname FROM pg_views WHERE schemaname = 'public'"
        ).fetchall()
        assert {"job_progress", "pool_demand", "worker_status", "failed_rows"} < {
            v for (v,) in views
        }
        for (view,) in views:
            assert connection.execute(f"SELECT * FROM {view}".encode()).fetchall() == []


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_needs_the_core_alone(empty: str, wing: str) -> None:
    run(empty, "core")
    core = objects(empty)
    run(empty, wing)
    both = objects(empty)
    assert both.items() >= core.items(), "a wing changes nothing of the core"
    assert len(both) > len(core)


def test_the_first_step_runs_every_file(empty: str, fresh_database: Callable[..., str]) -> None:
    run(empty, "core", *WINGS)
    migrated = objects(fresh_database())
    assert objects(empty).items() <= migrated.items()
    extra = {
        name for name in migrated.keys() - objects(empty).keys() if "schema_version" not in name
    }
    assert extra == set()


def test_a_later_step_keeps_the_rows_and_older_tables_are_refused_until_it_ran(
    world: World, steps: Callable[[str], None]
) -> None:
    job_id = world.job(2, 2)
    steps("UPDATE ledger_meta SET compatible_from = 2")
    with pytest.raises(
        SchemaMismatch, match="at migration 0001 and this code needs 0002: run `nightshift migrate`"
    ):
        schema.check(world.ledger)
    assert schema.migrate(world.ledger) == 2
    schema.check(world.ledger)
    assert schema.migrate(world.ledger) == 2
    assert [tuple(row) for row in world.ask("SELECT id, wish FROM jobs")] == [(job_id, "none")]
    [change] = world.ask("SELECT detail FROM audit_log WHERE action = 'migrate' AND id > 1")
    assert change.detail == {"migration": ["0001", "0002"]}


def test_tables_of_a_version_before_the_first_release_are_refused(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE TABLE nightshift_version (version_num text)")
        connection.execute("INSERT INTO nightshift_version VALUES ('0046')")
    ledger = Ledger(empty, connections=1)
    try:
        for act in (schema.check, schema.migrate):
            with pytest.raises(SchemaMismatch, match=r"before the first release.*an empty"):
                act(ledger)
    finally:
        ledger.close()


def test_a_step_that_fails_leaves_the_ledger_as_it_was(
    world: World, steps: Callable[[str], None]
) -> None:
    before = objects(world.ledger.url)
    steps("SELECT 1 / 0")
    with pytest.raises(Exception, match="division by zero"):
        schema.migrate(world.ledger)
    assert objects(world.ledger.url) == before
    assert world.ask("SELECT version_num FROM schema_version")[0].version_num == "0001"
