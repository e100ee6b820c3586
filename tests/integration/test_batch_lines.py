"""Lines of a batch file that are wrong beside others, or ask for what no engine can give."""

from collections.abc import Iterable

import pytest
from sqlalchemy import text

from nightshift.common.ledger import Ledger
from nightshift.common.spec import STORED, JobSpec
from nightshift.producer.serve.api_batches import batch_file
from nightshift.producer.serve.api_batches.batch_file import FileFacts, Limits
from nightshift.producer.serve.ledger.api_batches import ApiBatchStatus
from tests.support.batch_site import ENDPOINT, Site, line

LIMITS = Limits(50_000, 1, 50_000)
ALIASES = {"small": "m", "tiny": "m"}


def read(site: Site, rows: Iterable[dict[str, object]], *, skip: bool) -> FileFacts:
    batch = site.batch(*rows)
    place = site.folder / f"{batch.id.removeprefix('batch_')}.jsonl"

    def lines() -> Iterable[tuple[int, bytes]]:
        return enumerate(place.read_bytes().splitlines(keepends=True), 1)

    def own(name: str) -> str:
        return ALIASES.get(name, name)

    return batch_file.read(lines, ENDPOINT, LIMITS, skip=skip, own_name=own)


@pytest.fixture
def site(ledger: Ledger, tmp_path: object) -> Site:
    return Site(ledger, tmp_path)  # type: ignore[arg-type]


ROWS = [
    line("a"),
    line("b", model="other"),
    line("a"),
    line("b", model="small"),
    {"custom_id": "c"},
    line("b"),
]
"""Repeats of a and b, a line of another model, whose id another line may have, and one that is no request."""


def test_with_skip_a_line_that_another_makes_wrong_does_not_run(site: Site) -> None:
    facts = read(site, ROWS, skip=True)
    assert facts.problems == []
    assert sorted(facts.skipped) == [1, 2, 5]
    assert "model is 'other'" in facts.skipped[1]
    assert "stands in line 1 already" in facts.skipped[2]
    assert "stands in line 4 already" in facts.skipped[5]


def test_without_skip_every_such_line_is_a_problem_of_the_file(site: Site) -> None:
    facts = read(site, ROWS, skip=False)
    assert facts.skipped == {}
    assert sorted((each.line, each.code) for each in facts.problems) == [
        (2, "mismatched_model"),
        (3, "duplicate_custom_id"),
        (4, "duplicate_custom_id"),
        (5, "missing_required_parameter"),
        (6, "duplicate_custom_id"),
    ]


def test_aliases_of_one_engine_are_one_model(site: Site) -> None:
    rows = [line("a", model="small"), line("b", model="m"), line("c", model="tiny")]
    facts = read(site, rows, skip=False)
    assert (facts.problems, facts.model) == ([], "small")


def test_so_many_lines_are_skipped_and_no_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "MOST_SKIPPED", 1)
    assert read(site, [line("a"), line("a")], skip=True).problems == []
    [problem] = read(site, [line("a"), line("a"), line("a")], skip=True).problems
    assert problem.code == "too_many_bad_lines"


def test_the_job_of_a_batch_knows_the_lines_that_do_not_run(site: Site) -> None:
    batch = site.batch(line("a"), line("a"), {"custom_id": "a"})
    site.sql("""UPDATE api_batches SET options = '{"on_bad_line": "skip"}'""")
    assert site.validate()
    assert site.seen(batch).state is ApiBatchStatus.IN_PROGRESS
    with site.ledger.transaction() as connection:
        data = connection.scalar(text("SELECT spec FROM jobs"))
    task = JobSpec.model_validate(data, context=STORED).task
    assert list(getattr(task, "skipped_rows", {})) == [1]


def test_a_line_that_asks_for_any_number_of_tokens_fails_no_batch(site: Site) -> None:
    numbers = [2**80, 10**4000, -(2**80)]
    batch = site.batch(*(line(str(at), max_tokens=each) for at, each in enumerate(numbers)))
    assert site.validate()
    assert site.seen(batch).state is ApiBatchStatus.IN_PROGRESS
