"""Facts of a job, in one shape for terminals and pages: each is written once, and two renderers show all of them.

A wing contributes facts of its own, see `job_facts` in wings.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nightshift.common.formats import part_names
from nightshift.common.ledger import Connection
from nightshift.common.ledger.queries import job_pace
from nightshift.common.text import left_out_rows, money
from nightshift.producer import wings
from nightshift.producer.advice.here import Here
from nightshift.producer.views.cells import duration
from nightshift.producer.views.deadlines import with_deadlines
from nightshift.producer.views.fact import Contribution, Fact
from nightshift.producer.views.rates import (
    Values,
    answering,
    elapsed_seconds,
    overall_rate,
    saved,
    thoughts,
)
from nightshift.producer.views.standings import with_standings
from nightshift.producer.views.versions import with_versions

SPEED = ("rate", "engines")
"""Names of facts about how fast a job was."""


def contributed(connection: Connection, job_id: int, *, whole: bool) -> dict[str, Contribution]:
    """Return what wings know of a job, by the name of its object in `status --json`, with `whole` messages or with
    public ones.
    """
    found: dict[str, Contribution] = {}
    for of_wing in wings.offered("job_facts"):
        found |= of_wing(connection, job_id, whole)
    return found


def read(
    connection: Connection, job_id: int, here: Here, tenant: str | None = None
) -> dict[Any, Any]:
    """Return a row of job_progress with everything that views show of one job: its deadline, its standing, its versions,
    and what wings contribute.
    """
    (row,) = with_deadlines(connection, [job_pace.of(connection, job_id)])
    (row,) = with_standings(connection, [row], here, tenant)
    return {
        **with_versions(connection, row),
        **contributed(connection, job_id, whole=tenant is None),
    }


def of_job(row: Values) -> list[Fact]:
    """Return the facts in a row of `read`."""
    return [*_work(row), *_results(row), *_remarks(row)]


def named(facts: Sequence[Fact], *, without: Sequence[str]) -> list[Fact]:
    """Return the facts except those with these names."""
    return [each for each in facts if each.name not in without]


def _work(row: Values) -> Iterator[Fact]:
    if row["prompt_tokens"] or row["output_tokens"]:
        tokens = f"{row['prompt_tokens']:,} in, {row['output_tokens']:,} out{thoughts(row)}"
        yield Fact("tokens", tokens, meaning="of the rows that count")
    if found := answering(row):
        yield Fact("answers", found, meaning="what the first load of the model found")
    if shared := saved(row):
        yield Fact("saved", "; ".join(shared), meaning="what rows had in common")
    rate, seconds = overall_rate(row), elapsed_seconds(row)
    if rate is not None and seconds is not None:
        over = Fact("", seconds, "s").text
        text = f"{Fact('', rate, 'rows/s').text} over {over}"
        yield Fact("rate", text, meaning="over the time in which a batch was leased")
    if (row["engine_seconds"] or 0) >= 1:
        text = f"{duration(row['engine_seconds'])} at work"
        yield Fact("engines", text, meaning="time in which engines worked on rows of the job")
    if row["cost"] is not None:
        yield Fact("cost", cost(row, why=True), meaning="by the prices of the spec")
    if (deadline := row.get("deadline")) is not None:
        text = f"finish by {deadline.finish_by:%Y-%m-%d %H:%M}   {deadline.text}".rstrip()
        yield Fact("deadline", text, warns=deadline.text != "on time")


def _results(row: Values) -> Iterator[Fact]:
    yield Fact("output", row["output_uri"], meaning="where the parts are")
    for value in row.values():
        fact = getattr(value, "fact", None)
        if isinstance(fact, Fact):
            yield fact
    if row["archived_at"] is not None:
        place = part_names.archived(row["output_uri"], "")
        text = f"archived on {row['archived_at']:%Y-%m-%d} in {place}"
        yield Fact("batches", text, meaning="where batches, leases and errors of rows are")


def _remarks(row: Values) -> Iterator[Fact]:
    left_out = row.get("rows_left_out")
    for name, text in (
        ("reason", row["reason"]),
        ("remark", row["remark"]),
        ("ids", ids(row)),
        ("input", left_out_rows(left_out) if left_out else None),
    ):
        if text:
            yield Fact(name, text, warns=True)


def cost(row: Values, *, why: bool = False) -> str:
    """Return the cost of a job that has a price; an estimate is marked, with the reason if there is room."""
    if not row["cost_is_estimate"]:
        return money(row["cost"])
    reason = ": the server did not count all of its tokens" if why else ""
    return f"{money(row['cost'])} (estimate{reason})"


def ids(row: Values) -> str | None:
    """Return a remark about the ids of a job that is over; None if all differ, or nobody counted them."""
    found = row.get("id_counts")
    if found is None or found["different"] == found["rows"]:
        return None
    if found["different"] is None:
        return f"not counted; `nightshift verify {row['job']}` says how many differ"
    first, second = found["pair"]
    return (
        f"{found['different']:,} of {found['rows']:,} differ: {found['example']} stands in rows "
        f"{first:,} and {second:,}"
    )
