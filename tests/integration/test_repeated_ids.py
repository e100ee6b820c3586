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
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.results import id_counts
from nightshift.producer.submit import append_command
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from nightshift.producer.verify.verify import checks, verify
from nightshift.producer.views import facts
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


def summary(site: Site) -> dict[str, Any]:
    with site.ledger.transaction() as connection:
        return job_pace.of(connection, site.job_id)


def submitted(site: Site, form: str = "parquet", **options: Any) -> Submitted:
    source = {"uri": str(site.folder / "in"), "id": "id", **options}
    data = function_spec(
        "moody", site.folder / "in", site.folder / "out", batch={"rows": 10}, input=source
    )
    data["output"]["format"] = form
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
        "11 ids equal those of the input; no id stands in two rows; 1 row has no id"
    )


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_job_with_a_part_that_cannot_be_read_ends_and_says_that_nobody_counted(
    ledger: Ledger, tmp_path: Path, form: str
) -> None:
    site = Site(ledger, tmp_path)
    write(site, "a.jsonl", [f"k-{number}" for number in range(30)])
    submitted(site, form)
    site.run(moody())
    part = min((tmp_path / "out").rglob("part-*"))
    part.write_bytes(b"no part" * 20)
    assert site.finish() is JobState.COMPLETED
    said = "not counted; `nightshift verify 1` says how many differ"
    assert facts.ids(summary(site)) == said
    found = verify(site.ledger, site.job)
    assert part.name in " ".join(one.message for one in found)


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


def taken(site: Site, *names: str) -> append_command.Taken:
    uris = [str(site.folder / "in" / name) for name in names]
    return append_command.take(site.ledger, site.job, uris, Settings())


def test_the_ids_of_appended_files_must_differ_from_those_of_every_generation(site: Site) -> None:
    write(site, "a.jsonl", [f"k-{number}" for number in range(12)])
    submitted(site, unique_id=True)
    write(site, "b.jsonl", [f"k-{number}" for number in range(12, 15)])
    assert taken(site, "b.jsonl").appended.rows == 3
    assert site.work(moody()) is JobState.COMPLETED
    for number, repeated in enumerate(("k-3", "k-14", "n-1")):
        write(site, f"c{number}.jsonl", ["n-1", repeated])
        with pytest.raises(BadInput, match=f"the id '{repeated}' stands in two rows of the input"):
            taken(site, f"c{number}.jsonl")
    write(site, "d.jsonl", ["n-2"])
    assert taken(site, "d.jsonl").appended.rows == 1
    assert site.work(moody()) is JobState.COMPLETED


def test_ids_of_a_file_that_is_gone_are_those_of_its_answers(site: Site) -> None:
    path = write(site, "a.parquet", [f"k-{number}" for number in range(12)])
    submitted(site, unique_id=True)
    assert site.work(moody()) is JobState.COMPLETED
    path.unlink()
    write(site, "b.parquet", ["n-1", "k-11"])
    with pytest.raises(BadInput, match="the id 'k-11' stands in two rows of the input, 11 and 13"):
        taken(site, "b.parquet")
    write(site, "c.parquet", ["n-1"])
    assert taken(site, "c.parquet").appended.rows == 1
    assert site.work(moody()) is JobState.COMPLETED


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_the_end_of_a_job_counts_its_ids_and_the_summary_says_which_repeats(
    site: Site, form: str
) -> None:
    write(site, "a.jsonl", [f"k-{number % 10}" for number in range(30)])
    submitted(site, form=form)
    assert summary(site)["id_counts"] is None
    assert site.work(moody()) is JobState.COMPLETED
    said = "10 of 30 differ: 'k-0' stands in rows 0 and 10"
    assert facts.ids(summary(site)) == said
    write(site, "b.jsonl", ["k-0", "n-1"])
    taken(site, "b.jsonl")
    assert site.work(moody()) is JobState.COMPLETED
    assert facts.ids(summary(site)) == said.replace("10 of 30", "11 of 32")


def test_ids_that_differ_are_no_matter_and_too_many_are_not_counted_at_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(site, "a.jsonl", [f"k-{number}" for number in range(12)])
    submitted(site)
    assert site.work(moody()) is JobState.COMPLETED
    assert facts.ids(summary(site)) is None
    monkeypatch.setattr(id_counts, "MOST_ROWS", 11)
    write(site, "b.jsonl", ["n-1"])
    taken(site, "b.jsonl")
    assert site.work(moody()) is JobState.COMPLETED
    said = facts.ids(summary(site))
    assert said == "not counted; `nightshift verify 1` says how many differ"
