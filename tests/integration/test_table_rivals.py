"""Several processes that commit to one table at once, and answers that are lost on the way: each row is in it once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import table_commits
from nightshift.common.states import JobState
from nightshift.producer.tables import commit
from nightshift.producer.tables.data_files import PartsOfTable
from nightshift.producer.tables.table import Change, CommitLost, Table
from tests.integration.test_retry import moody
from tests.support.lake import TableSite, everywhere, opened
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.slow

SHOUT = moody()


@pytest.fixture
def site(request: pytest.FixtureRequest, ledger: Ledger, tmp_path: Path) -> Iterator[TableSite]:
    with opened(request.param, request, ledger, tmp_path) as found:
        yield found


def prepared(site: TableSite) -> tuple[Table, Change]:
    """The table of the site, and the commit of all its parts, which nobody has made."""
    parts = PartsOfTable.of(site.job)
    with site.ledger.transaction() as connection:
        scope = table_commits.Scope(0, table_commits.LAST_SEQ)
        begun = table_commits.begin(connection, site.job_id, scope, None)
        assert begun is not None
        add, _ = table_commits.files(connection, begun)
    app = commit.app_of(site.ledger, site.job)
    return table_of(site), Change(app, begun.mark, parts.schema, add=parts.checked(add))


def table_of(site: TableSite) -> Table:
    assert site.job.spec.output.table is not None
    return commit.table_of(site.job.spec.output.table, site.settings)


@everywhere
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "there"])
def test_of_two_commits_to_the_version_that_both_have_seen_one_is_made(
    site: TableSite, is_new: bool
) -> None:
    if not is_new:
        site.start(10, name="old", files=[("o.parquet", 10)])
        site.work(SHOUT)
    site.start(20)
    site.run(SHOUT)
    table, change = prepared(site)
    rival = table_of(site)
    first, second = table.look(), rival.look()
    version = table.commit(first, change)
    with pytest.raises(CommitLost):
        rival.commit(second, change)
    seen = rival.look()
    assert (seen.version, rival.mark(seen, change.app)) == (version, change.mark)
    assert site.table_ids() == sorted(site.ids)
    assert site.finish() is JobState.COMPLETED
    assert site.table_ids() == sorted(site.ids)


@everywhere
def test_processes_that_finish_one_job_at_once_put_its_rows_there_once(site: TableSite) -> None:
    site.start(20)
    site.run(SHOUT)
    job = site.job
    with ThreadPoolExecutor(4) as threads:
        turns = [
            threads.submit(commit.commit_job, site.ledger, job, site.settings) for _ in range(4)
        ]
        for turn in turns:
            turn.result(300)
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 1)
    assert site.finish() is JobState.COMPLETED


@everywhere
def test_jobs_that_commit_at_once_are_all_in_the_table(site: TableSite) -> None:
    jobs = []
    for number in range(3):
        site.start(10, name=f"job{number}", files=[(f"f{number}.parquet", 10)])
        site.run(SHOUT)
        jobs.append(site.job)
    with ThreadPoolExecutor(3) as threads:
        turns = [threads.submit(commit.commit_job, site.ledger, job, site.settings) for job in jobs]
        for turn in turns:
            turn.result(300)
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "cut"),
    [("delta s3", 0), *(("iceberg s3 rest", cut) for cut in range(3))],
    indirect=["site"],
)
@pytest.mark.parametrize("verb", ["before", "after"])
def test_a_request_of_the_store_that_is_cut_doubles_no_row(
    site: TableSite, store: ObjectStore, verb: str, cut: int
) -> None:
    site.start(20)
    site.run(SHOUT)
    puts = iter(range(1000))
    store.rule = lambda operation: verb if operation == "PUT" and next(puts) == cut else None
    for _ in range(3):
        try:
            commit.commit_job(site.ledger, site.job, site.settings)
            break
        except Retryable:
            continue
    assert store.did["PUT", verb] == 1
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 1)


@pytest.mark.parametrize("site", ["iceberg rest"], indirect=True)
@pytest.mark.parametrize("is_made", [True, False], ids=["made", "not made"])
def test_a_catalog_that_does_not_say_whether_it_has_the_commit_is_asked_again(
    site: TableSite, is_made: bool
) -> None:
    assert site.rest is not None
    site.start(20)
    site.run(SHOUT)
    made = site.rest.catalog.commit_table

    def without_answer(*given: Any) -> Any:
        site.rest.catalog.commit_table = made  # type: ignore[union-attr, method-assign]
        if is_made:
            made(*given)
        raise RuntimeError("the answer is lost")

    site.rest.catalog.commit_table = without_answer  # type: ignore[method-assign]
    with pytest.raises(Retryable, match="did not say whether"):
        commit.commit_job(site.ledger, site.job, site.settings)
    assert site.state() == "open"
    assert site.finish() is JobState.COMPLETED
    assert (site.table_ids(), site.versions()) == (sorted(site.ids), 1)
