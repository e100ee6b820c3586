"""An id that stands in two rows: counted by verify, refused at submit where the spec asks for it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from nightshift.producer.verify.verify import checks, verify
from tests.integration.test_retry import Site, moody
from tests.support.fleet import function_spec


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Iterator[Site]:
    found = Site(ledger, tmp_path)
    yield found
    if found.job_id:
        assert verify(found.ledger, found.job) == []


def write(site: Site, name: str, ids: Sequence[str | None]) -> Path:
    """A file with these ids, whose format its name says."""
    path = site.folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    rows = [{"id": each, "text": f"say {each}"} for each in ids]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        path.write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def submitted(site: Site, **options: Any) -> Submitted:
    source = {"uri": str(site.folder / "in"), "id": "id", **options}
    data = function_spec(
        "moody", site.folder / "in", site.folder / "out", batch={"rows": 10}, input=source
    )
    done = submit(site.ledger, parse_spec(data, "test"), Settings())
    site.job_id = done.job_id
    return done


def said_of_ids(site: Site) -> str:
    (found,) = (each for each in checks(site.ledger, site.job) if each.name == "ids")
    return found.summary


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_verify_counts_the_ids_that_differ_and_names_one_that_does_not(
    site: Site, form: str
) -> None:
    write(site, f"a.{form}", [f"k-{number % 10}" for number in range(30)])
    submitted(site)
    assert site.work(moody()) is JobState.COMPLETED
    assert said_of_ids(site) == (
        "30 ids equal those of the input; 10 of 30 differ: 'k-0' stands in rows 0 and 10, and 20 rows "
        "repeat the id of an earlier one"
    )


def test_verify_says_of_ids_that_differ_that_no_id_stands_in_two_rows(site: Site) -> None:
    write(site, "a.jsonl", [*(f"k-{number}" for number in range(10)), None])
    submitted(site)
    assert site.work(moody()) is JobState.COMPLETED
    assert said_of_ids(site) == (
        "11 ids equal those of the input; no id stands in two rows; 1 rows have no id"
    )


@pytest.mark.parametrize("name", ["b.jsonl", "b.parquet", "b.csv"])
def test_unique_id_refuses_input_in_which_an_id_stands_in_two_rows(site: Site, name: str) -> None:
    write(site, "a.jsonl", [f"k-{number}" for number in range(25)])
    write(site, name, ["n-1", "k-7", "k-8"])
    with pytest.raises(BadInput) as refused:
        submitted(site, unique_id=True)
    assert str(refused.value) == (
        "input.unique_id: the id 'k-7' stands in two rows of the input, 7 and 26, and 2 rows repeat the "
        "id of an earlier one: give each row an id of its own, or leave unique_id out"
    )
    assert submitted(site).is_new


def test_unique_id_takes_rows_without_an_id_and_is_no_part_of_the_identity(site: Site) -> None:
    write(site, "a.jsonl", [*(f"k-{number}" for number in range(25)), None, None])
    first = submitted(site, unique_id=True)
    again = submitted(site)
    assert (first.is_new, again.is_new, again.job_id) == (True, False, first.job_id)
    assert [kept.message(1) for kept in again.kept] == [
        "job 1 keeps input.unique_id True, not False: it is fixed at the first submit"
    ]
    assert site.work(moody()) is JobState.COMPLETED


def test_rows_beyond_the_limit_are_not_looked_at(site: Site) -> None:
    write(site, "a.parquet", [*(f"k-{number}" for number in range(25)), "k-1"])
    assert submitted(site, unique_id=True, limit=25).rows == 25
