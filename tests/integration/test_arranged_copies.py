"""Sorted copies that are gone: when they are made again, and what names them."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.states import JobState
from nightshift.producer import retry
from nightshift.producer.verify.verify import checks
from tests.integration.test_arranged_jobs import Arranged
from tests.integration.test_growth import Grown
from tests.integration.test_retry import moody

pytestmark = pytest.mark.slow


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
    assert site.retry() == 3
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_no_copy_is_made_for_a_retry_of_no_rows(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    site.work(moody())
    lose(site)
    assert site.retry() == 0
    assert not site.copies


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz", "a.csv.gz"])
def test_a_retry_makes_every_copy_of_the_input_again_that_is_gone(
    ledger: Ledger, tmp_path: Path, name: str
) -> None:
    """One copy is of a file that is gone, too, which keeps nobody else's rows."""
    site = Grown(ledger, tmp_path)
    for stem in "ab":
        write_streamed(tmp_path / "in" / name.replace("a", stem, 1), stem)
    site.submit_again()
    assert site.work(moody(3)) is JobState.COMPLETED
    shutil.rmtree(tmp_path / "out" / "_input")
    (tmp_path / "in" / name).unlink()
    assert site.retry() == 4
    assert site.work(moody()) is JobState.FAILED
    assert {row: kind for row, (kind, _) in site.agrees().items()} == {
        3: "batch_dead",
        13: "batch_dead",
    }


def write_streamed(place: Path, stem: str) -> None:
    """Rows as a file that can only be read from its front."""
    place.parent.mkdir(exist_ok=True)
    rows = [(f"{stem}-{n}", f'say "{stem}-{n}"') for n in range(15)]
    if ".csv" in place.name:
        quoted = (f"""{row_id},"{text.replace('"', '""')}"\n""" for row_id, text in rows)
        content = "".join(["id,text\n", *quoted])
    else:
        content = "".join(json.dumps({"id": row_id, "text": text}) + "\n" for row_id, text in rows)
    pack = gzip.compress if place.suffix == ".gz" else bytes
    place.write_bytes(pack(content.encode()))


def test_a_retry_of_a_job_that_failed_early_makes_the_copy_for_rows_that_never_ran(
    site: Arranged,
) -> None:
    site.submit_files(("a.parquet", 25))
    fail(site)
    lose(site)
    assert site.retry() == 0
    assert len(site.copies) == 1
    assert site.work(moody()) is JobState.COMPLETED


def test_a_retry_that_is_not_allowed_makes_no_copy(site: Arranged) -> None:
    """Sorting is slow: what refuses a retry is asked first."""
    site.submit_files(("a.parquet", 25))
    site.work(moody(3))
    lose(site)

    def refused(_: object) -> None:
        raise BadInput("this tenant has spent its money")

    with pytest.raises(BadInput, match="spent its money"):
        retry.retry(site.ledger, site.job, failed=True, dead=True, kind=None, allowed=refused)
    assert not site.copies


def test_an_append_to_a_job_that_failed_makes_its_copy_again(site: Arranged) -> None:
    """An append opens the job, and the rows that had not run go on."""
    site.submit_files(("a.parquet", 25))
    fail(site)
    lose(site)
    site.come(("b.parquet", 5))
    assert site.append().appended.reopened
    assert len(site.copies) == 2
    assert site.work(moody()) is JobState.COMPLETED


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
        "25 ids equal those of the input, 25 of them in its sorted copy; no id stands in two rows",
    )
