"""What KEDA is told: the query of k8s/components/keda against a real ledger."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.ledger.jobs import jobs
from tests.support.world import World

ROOT = Path(__file__).parents[2]
ROLE = "keda_nightshift"


def query(pool: str) -> str:
    """The query, with the pool that is put in from the Deployment."""
    text = (ROOT / "k8s" / "components" / "keda" / "scaled-object.yaml").read_text()
    scaled = next(yaml.safe_load_all(text))
    said: str = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert len(re.findall(r"'[^']*'", said)) == 1
    return re.sub(r"'[^']*'", f"'{pool}'", said)


def grants() -> list[str]:
    """The statements that the page gives for KEDA's role."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    [block] = [
        block for block in re.findall(r"```sql\n(.*?)```", page, re.S) if "CREATE ROLE" in block
    ]
    return [line for line in block.split(";") if line.strip()]


@pytest.fixture
def keda(world: World, database_url: str, postgres_url: str) -> Iterator[Callable[[str], float]]:
    """What KEDA gets to see, signed in as the role that the page makes."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"DROP ROLE IF EXISTS {ROLE}")
        for statement in grants():
            connection.execute(statement.replace("DATABASE nightshift ", f"DATABASE {name} "))

    def asked(pool: str = "default") -> float:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(f"SET ROLE {ROLE}")
            rows = connection.execute(query(pool)).fetchall()
        assert len(rows) == 1
        assert isinstance(rows[0][0], float)
        return float(rows[0][0])

    yield asked
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {ROLE}")
        connection.execute(f"DROP ROLE {ROLE}")


def ready(world: World, name: str, job_id: int, window_rows: int) -> None:
    """A living child that has the engine of this job."""
    child = Child(name, "s", "default", 0, "here", 1, world.specs[job_id].engine_key)
    with world.ledger.transaction() as connection:
        workers.register(connection, child)
        workers.ready(connection, child, workers.LoadedEngine("function", "1", window_rows))


def test_without_work_no_pod_is_wanted(world: World, keda: Callable[[str], float]) -> None:
    assert keda("default") == 0


def test_waiting_work_wakes_the_pool_before_any_worker_has_been_seen(
    world: World, keda: Callable[[str], float]
) -> None:
    world.job(1)
    assert keda("default") == 1
    assert keda("another") == 0


def test_a_slot_is_wanted_for_each_window_of_rows_that_are_open(
    world: World, keda: Callable[[str], float]
) -> None:
    job_id = world.job(*[100] * 10)
    assert keda("default") == 4  # 1,000 rows, 256 at a time
    ready(world, "w", job_id, 500)
    assert keda("default") == 2


def test_a_job_that_may_use_few_workers_wants_no_more(
    world: World, keda: Callable[[str], float]
) -> None:
    world.job(*[1000] * 20, limits={"max_parallel": 3})
    assert keda("default") == 3


def test_workers_that_hold_all_the_work_are_wanted_until_it_is_done(
    world: World, keda: Callable[[str], float]
) -> None:
    """The rows of four leased batches would fill one window, but four workers hold them."""
    job_id = world.job(10, 10, 10, 10)
    leases = []
    for name in ("a", "b", "c", "d"):
        ready(world, name, job_id, 256)
        world.admit(job_id, 1)
        leases += world.claim(job_id, owner=name, most=1)
    assert len(leases) == 4
    assert keda("default") == 4
    for left, lease in zip((3, 2, 1, 0), leases, strict=True):
        world.commit(lease)
        assert keda("default") == left


def test_a_paused_job_wants_only_those_that_hold_its_batches(
    world: World, keda: Callable[[str], float]
) -> None:
    job_id = world.job(*[300] * 8)
    ready(world, "a", job_id, 256)
    lease = world.lease(job_id, owner="a")
    world.run(jobs.pause, job_id, "by hand")
    assert keda("default") == 1
    world.commit(lease)
    assert keda("default") == 0
    world.run(jobs.resume, job_id)
    assert keda("default") > 1


def test_engines_of_one_pool_are_added_up(world: World, keda: Callable[[str], float]) -> None:
    """One engine has three busy workers and little left, the other only waits."""
    first = world.job(10, 10, 10)
    world.job(*[256] * 5, name="other", engine={"backend": "function", "callable": "rules:other"})
    for name in ("a", "b", "c"):
        ready(world, name, first, 256)
        world.admit(first, 1)
        world.claim(first, owner=name, most=1)
    assert keda("default") == 3 + 5


def test_a_worker_that_died_is_not_busy(world: World, keda: Callable[[str], float]) -> None:
    job_id = world.job(10, 10)
    for name in ("a", "b"):
        ready(world, name, job_id, 256)
        world.admit(job_id, 1)
        world.claim(job_id, owner=name, most=1)
    assert keda("default") == 2
    with world.ledger.transaction() as connection:
        workers.end(connection, "a", died="it died")
    assert keda("default") == 1
    with world.ledger.transaction() as connection:
        assert leasing.release_owner(connection, "b") == 1


def test_the_role_reads_the_view_and_nothing_else(
    world: World, keda: Callable[[str], float], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relkind IN ('r', 'v', 'm') ORDER BY relname"
        ).fetchall()
        readable = [
            name
            for (name,) in tables
            if connection.execute(
                "SELECT has_table_privilege(%s, %s, 'SELECT')", (ROLE, name)
            ).fetchone()
            == (True,)
        ]
        assert len(tables) > 10
        assert readable == ["pool_demand"]
        connection.execute(f"SET ROLE {ROLE}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM jobs")
