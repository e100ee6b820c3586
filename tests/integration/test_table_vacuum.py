"""What a user's own vacuum of a Delta table takes from jobs whose parts lie below its root."""

from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.states import JobState
from tests.integration.test_retry import moody
from tests.support.lake import TableSite

pytestmark = pytest.mark.slow

SHOUT = moody()


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> TableSite:
    return TableSite(ledger, tmp_path)


def vacuumed(site: TableSite, *, full: bool) -> list[str]:
    """Removes all that a vacuum without days to wait removes; returns what it was."""
    return site.delta.vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=full
    )


def begun(site: TableSite, output: str) -> None:
    """A table, and beside it the parts of a job that is not over."""
    site.start(10, name="old", files=[("o.parquet", 10)], output=f"{site.uri}/_jobs/old")
    site.work(SHOUT)
    site.start(20, output=f"{site.uri}/{output}")
    site.run(SHOUT)


def test_a_vacuum_that_asks_the_log_leaves_a_job_that_runs_alone(site: TableSite) -> None:
    begun(site, "moody")
    assert vacuumed(site, full=False) == []
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


def test_a_full_vacuum_takes_the_parts_of_a_job_that_runs_and_nothing_of_it_is_committed(
    site: TableSite,
) -> None:
    begun(site, "moody")
    gone = vacuumed(site, full=True)
    assert sum(name.startswith("moody/part-") for name in gone) == 2
    assert "moody/_owner.json" in gone
    assert site.finish() is JobState.FAILED
    assert len(site.table_ids()) == 10


def test_a_full_vacuum_leaves_folders_alone_that_begin_with_an_underscore(site: TableSite) -> None:
    begun(site, "_jobs/moody")
    assert vacuumed(site, full=True) == []
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("output", ["moody", "_jobs/moody"])
def test_a_vacuum_takes_replaced_parts_unless_they_lie_below_an_underscore(
    site: TableSite, full: bool, output: str
) -> None:
    site.start(20, output=f"{site.uri}/{output}")
    site.work(moody(3))
    first = site.files()
    site.retry()
    assert site.work(SHOUT) is JobState.COMPLETED
    gone = {name.rpartition("/")[2] for name in vacuumed(site, full=full)}
    assert gone & (first | site.files()) == (first if output == "moody" else set())
    assert site.table_ids() == sorted(site.ids)
