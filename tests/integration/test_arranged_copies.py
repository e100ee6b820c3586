"""Sorted copies that are gone: when they are made again, and what names them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.states import JobState
from nightshift.producer.control import lost_parts
from nightshift.producer.verify.verify import checks
from tests.integration.test_arranged_jobs import Arranged
from tests.integration.test_retry import moody


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Arranged:
    return Arranged(ledger, tmp_path)


def lose(site: Arranged) -> None:
    for copy in site.copies:
        copy.unlink()


def cancel(site: Arranged) -> None:
    site.ask(f"UPDATE jobs SET state = 'cancelled' WHERE id = {site.job_id} RETURNING id")


def fail(site: Arranged) -> None:
    site.ask(f"UPDATE jobs SET state = 'failed' WHERE id = {site.job_id} RETURNING id")


@pytest.mark.parametrize(
    ("failing", "then", "again"),
    [
        ((), None, False),
        ((3,), None, False),
        (range(10), None, True),  # no row has an answer: `nightshift run` runs them again
        ((3,), fail, True),
        ((3,), cancel, False),
    ],
)
def test_a_second_submit_sorts_again_only_what_may_be_read_again(
    site: Arranged, failing: tuple[int, ...], then: Callable[[Arranged], None] | None, again: bool
) -> None:
    site.submit_files(("a.parquet", 25))
    assert site.work(moody(*failing)) is JobState.COMPLETED
    if then is not None:
        then(site)
    lose(site)
    assert not site.submit_again().is_new
    assert bool(site.copies) == again


def test_a_second_submit_makes_the_copy_of_an_open_job_again(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    lose(site)
    site.submit_again()
    assert len(site.copies) == 1


def test_rows_of_a_completed_job_run_again_without_its_copy(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    site.work(moody(3))
    lose(site)
    lost_parts.restore_for_retry(site.ledger, site.job)
    assert site.retry() == 3
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_no_copy_is_made_for_a_retry_of_no_rows(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    site.work(moody())
    lose(site)
    lost_parts.restore_for_retry(site.ledger, site.job)
    assert not site.copies


def test_columns_of_the_input_name_the_copy_that_is_gone(site: Arranged) -> None:
    site.submit_files(("a.jsonl", 25))
    site.work(moody())
    (copy,) = site.copies
    lose(site)
    with pytest.raises(BadInput, match=rf"{copy.name}, the sorted copy of its rows, is gone"):
        site.collected(inputs=["text"])


def test_verify_says_that_it_compares_with_the_sorted_copy(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    site.work(moody())
    (ids,) = (check for check in checks(site.ledger, site.job) if check.name == "ids")
    assert (ids.problems, ids.summary) == (
        [],
        "25 ids equal those of the input, 25 of them in its sorted copy",
    )
