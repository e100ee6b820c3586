"""examples/pools: each job on its own workers, and no more of it at once than it allows."""

from collections.abc import Callable

import psycopg
import pyarrow.dataset as ds
import pytest

from tests.support.example import Example
from tests.support.fleet import wait_until

pytestmark = pytest.mark.slow

ROWS = 40


def test_each_job_stays_in_its_pool_and_within_its_limit(
    example: Callable[[str], Example], database_url: str, redis_url: str
) -> None:
    pools = example("pools")
    pools.environment |= {
        "NIGHTSHIFT_DATABASE_URL": database_url,
        "NIGHTSHIFT_BROKER_URL": redis_url,
        "NIGHTSHIFT_ALLOWED_MODULES": "rules",
        "NIGHTSHIFT_CALLABLE_PATHS": str(pools.folder),
    }
    pools.nightshift("submit", "heavy.yaml")
    pools.nightshift("submit", "light.yaml")
    pools.reaper()
    small = pools.worker("--pool", "small")
    with psycopg.connect(database_url, autocommit=True) as connection:

        def asked(query: str) -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        light = "SELECT rows_done FROM job_progress WHERE name = 'light'"
        wait_until(lambda: asked(light) == ROWS, what="the light job")
        assert asked("SELECT batches_leased + rows_done FROM job_progress WHERE name='heavy'") == 0

        pools.worker("--pool", "large", "--slots", "2")
        held = "SELECT batches_queued + batches_leased FROM job_progress WHERE name = 'heavy'"
        most = 0

        def heavy_is_done() -> bool:
            nonlocal most
            most = max(most, asked(held))
            return asked("SELECT rows_done FROM job_progress WHERE name = 'heavy'") == ROWS

        wait_until(heavy_is_done, what="the heavy job")
        assert 1 <= most <= 2
        wrong = """
            SELECT count(*) FROM attempts JOIN batches ON batches.id = attempts.batch_id
            JOIN jobs ON jobs.id = batches.job_id JOIN workers ON workers.id = attempts.worker_id
            WHERE workers.pool <> jobs.pool
        """
        assert asked(wrong) == 0
    assert small.poll() is None
    for name in ("heavy", "light"):
        pools.nightshift("wait", name)
        pools.nightshift("verify", name)
        assert ds.dataset(pools.folder / name, format="parquet").count_rows() == ROWS
