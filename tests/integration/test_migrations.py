"""The first step makes what the 22 steps before it made; a ledger of then goes on, an older one is refused.

`support/ledger_0022` was made by those steps and by the code of their time: `objects.json` says what they
made; `data.sql` is a ledger with a job whose worker was asked to stop in the middle, and with a watched one
that nobody had begun; `in` and `out` are their files.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command

from nightshift.common.errors import SchemaMismatch
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.jobs import jobs, watches
from nightshift.common.states import JobState
from nightshift.producer.verify.verify import verify
from tests.integration.test_retry import Site, moody
from tests.support.catalog import objects

THEN = Path(__file__).parent.parent / "support" / "ledger_0022"


@pytest.fixture
def first(fresh_database: Callable[..., str]) -> Iterator[Ledger]:
    """A ledger at the first step."""
    ledger = Ledger(fresh_database(migrated=False))
    with ledger.transaction() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.upgrade(config, f"{schema.FIRST:04}")
    yield ledger
    ledger.close()


def test_the_first_step_makes_what_the_steps_of_before_made(first: Ledger) -> None:
    before, now = json.loads((THEN / "objects.json").read_text()), objects(first.url)
    assert before.keys() == now.keys()
    assert {name: said for name, said in now.items() if before[name] != said} == {}
    assert len(now) > 1000


def test_a_ledger_of_then_goes_on_with_its_unfinished_jobs(first: Ledger, tmp_path: Path) -> None:
    for folder in ("in", "out"):
        shutil.copytree(THEN / folder, tmp_path / folder)
    data = (THEN / "data.sql").read_text().replace("/FOLDER", str(tmp_path))
    with psycopg.connect(first.url) as connection:
        # The counters are rows of their own.
        connection.execute("SET nightshift.bringing_back = 'on'")
        connection.execute("DELETE FROM ledger_meta; DELETE FROM nightshift_version")
        connection.execute(data.encode())
        for uri, fingerprint in connection.execute("SELECT uri, fingerprint FROM input_files"):
            os.utime(uri, ns=(int(fingerprint), int(fingerprint)))
    with pytest.raises(SchemaMismatch, match=r"at migration 0022 .*: run `nightshift migrate`"):
        schema.check(first)
    assert schema.migrate(first) == schema.SCHEMA
    schema.check(first)

    site = Site(first, tmp_path, job_id=1)
    with first.transaction() as connection:
        assert jobs.progress(connection, 1)["rows_done"] == 16
        assert watches.is_watched(connection, 2)
    assert site.work(moody()) is JobState.COMPLETED
    assert verify(first, site.job) == []
    answers = [row["loud"] for row in site.output()]
    assert answers == [f"TEXT {number}" for number in range(40)]
    # Those of before stay as they were.
    for part in (THEN / "out").glob("part-*"):
        assert (tmp_path / "out" / part.name).read_bytes() == part.read_bytes()


@pytest.mark.parametrize("meet", [schema.check, schema.migrate], ids=["check", "migrate"])
def test_a_ledger_from_before_the_first_step_is_refused_and_left_as_it_is(
    first: Ledger, meet: Callable[[Ledger], object]
) -> None:
    with first.transaction() as connection:
        connection.exec_driver_sql("UPDATE nightshift_version SET version_num = '0021'")
    before = objects(first.url)
    with pytest.raises(SchemaMismatch) as refused:
        meet(first)
    assert str(refused.value).endswith(
        "is at migration 0021, and this code migrates from 0022 or later: migrate it with an earlier "
        "release first, or take another database or home folder"
    )
    assert objects(first.url) == before
