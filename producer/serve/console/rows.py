"""Rows of a job: those that came last, some by lot, one by its number, and those that failed."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows, live_parts
from nightshift.common.states import RowErrorKind
from nightshift.producer.serve.calls import reads
from nightshift.producer.serve.console import failures, render
from nightshift.producer.serve.console.page_calls import Visit, live, page

ROWS = 10
"""Rows that one look draws."""

PAGE_ROWS = 100
"""Failed rows of a page."""

GROUPS = 10
"""Groups of similar errors that the page shows, the largest."""


def show_rows(visit: Visit) -> Response:
    """Some rows, input beside output: the newest, any, or the one with a number."""
    job, which = visit.job(), visit.query("which") or "newest"
    seed, row = visit.number("seed", 0), visit.number("row", -1)
    if row >= 0 or which == "any":
        shown = _rows(visit.ledger, job, None if row < 0 else [row], seed, _own(visit, job))
        newest = None
    else:
        look = live_rows(visit)
        shown, newest = {}, render.safe(look())
    return visit.page(
        "rows.html",
        title=f"Rows of {job.spec.name}",
        job=job,
        seed=seed,
        row=row,
        newest=newest,
        shown=shown,
    )


def live_rows(visit: Visit) -> Callable[[], str]:
    """The rows that came last. Parts are read only once there are others."""
    job, ledger = visit.job(), visit.ledger
    own = _own(visit, job)
    seen: list[tuple[list[int], str]] = [([], "")]

    def look() -> str:
        with ledger.transaction() as connection:
            latest = live_parts.latest_rows(connection, job.id, ROWS)
        if latest != seen[0][0] or not seen[0][1]:
            seen[0] = (latest, _fragment(ledger, job, latest, own))
        return seen[0][1]

    return look


def _own(visit: Visit, job: Job) -> Sequence[str] | None:
    """The folders whose paths the looker reads in messages about the job; None for every path."""
    return None if visit.looker.sees_all else job.own


def _fragment(ledger: Ledger, job: Job, indices: list[int], own: Sequence[str] | None) -> str:
    return render.fragment("rows_live.html", **_rows(ledger, job, indices, 0, own))


def _rows(
    ledger: Ledger,
    job: Job,
    indices: list[int] | None,
    seed: int,
    own: Sequence[str] | None,
) -> dict[str, Any]:
    """Rows for the template: these, or some by lot."""
    from nightshift.producer.results.sample import Sample, chosen, sample  # loads Arrow

    try:
        by_lot = indices is None
        drawn = sample(ledger, job, ROWS, seed) if by_lot else chosen(ledger, job, indices or [])
        note = "" if drawn.problem is None else drawn.problem.public_message(own)
        return {"drawn": drawn, "note": note, "id": job.spec.input.id}
    except NightshiftError as error:
        return {"drawn": Sample(0, seed), "note": error.public_message(own), "id": None}


def show_failed(visit: Visit) -> Response:
    """Failed rows in groups, then one by one in dataset order; its address holds the filter."""
    from nightshift.producer import closed_jobs  # loads Arrow

    job, given = visit.job(), visit.query("kind")
    kind = given if given in list(RowErrorKind) else None
    text, after, group = visit.query("text"), visit.number("after", -1), visit.query("group")
    found, rows, note = failures.NO_FAILURES, list[Row](), ""
    try:
        with closed_jobs.readable(visit.ledger, job) as own, own.transaction() as connection:
            found = failures.of(connection, job.id, kind=kind, most=GROUPS)
            rows = failed_rows.first(
                connection,
                job.id,
                kind=kind,
                limit=PAGE_ROWS + 1,
                after=after,
                text_in=text,
                group=group,
            )
    except BadInput as error:
        note = error.public_message(_own(visit, job))
    return visit.page(
        "failed.html",
        title=f"Failed rows of {job.spec.name}",
        job=job,
        failures=found,
        rows=rows[:PAGE_ROWS],
        after=rows[PAGE_ROWS - 1]["row_index"] if len(rows) > PAGE_ROWS else None,
        kind=kind,
        text=text,
        group=group,
        note=note,
    )


ROUTES: list[Route] = [
    page("/jobs/{id}/rows", show_rows, slow=reads),
    live("/live/jobs/{id}/rows", live_rows),
    page("/jobs/{id}/failed", show_failed, slow=reads),
]
