"""The charts of a job, which its page reloads periodically, and the page of one batch."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_facts, job_leases, job_pace
from nightshift.common.ledger.queries.job_leases import Leases
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.page_calls import Visit, page
from nightshift.producer.serve.console.pictures import forecast, lanes, rate, series, tokens
from nightshift.producer.serve.console.pictures.bars import LOAD, Bar, Lanes, Place
from nightshift.producer.serve.console.pictures.forecast import Fan
from nightshift.producer.serve.console.pictures.scales import Span
from nightshift.producer.serve.errors import not_found
from nightshift.producer.views import leases

MOST_RUNNING = 500
"""Maximum number of current leases that are drawn."""

MOST_LEASES = 200
"""Leases of one batch that its page shows."""

RELOAD_SECONDS, SLOW_RELOAD_SECONDS, SLOW_AFTER_SECONDS = 10.0, 60.0, 3600.0
"""How often the page of an open job reloads its charts: the second value once the job has run for the third."""


def show_pictures(visit: Visit) -> Response:
    """The pictures alone, as a piece of the page."""
    return HTMLResponse(drawn(visit.ledger, visit.job().id), headers=render.HEADERS)


def version(began: datetime | None, closed: datetime | None, now: float) -> str:
    """Return the version of a job's charts, which changes when its page should reload them: periodically until the job
    is `closed`, and then once. `now` is in seconds since 1970.
    """
    if closed is not None:
        return closed.isoformat()
    is_slow = began is not None and now - began.timestamp() > SLOW_AFTER_SECONDS
    return f"{now // (SLOW_RELOAD_SECONDS if is_slow else RELOAD_SECONDS):.0f}"


def drawn(ledger: Ledger, job_id: int) -> str:
    """The pictures as HTML."""
    with ledger.transaction() as connection:
        if jobs.is_archived(connection, job_id):
            return render.fragment("job_pictures.html", job=job_id, pictures=None, is_away=True)
        times = job_leases.times(connection, job_id)
        leases = job_leases.ended(connection, job_id)
        (row,) = job_pace.some(connection, [job_id])
        timeline = _lanes(leases)
        running = {} if times["closed"] else _running(connection, job_id, times, timeline)
    is_over = times["closed"] is not None
    now = times["closed"] if is_over else times["now"]
    points = series.points(leases.sample, leases.stride, times["began"], now)
    rows = rate.Rows(row["rows_total"], row["rows_done"], row["rows_failed"])
    fan = None if is_over else forecast.fan(job_pace.pace(row), now)
    past = Span(points[0].at, points[-1].at)
    finish_by = times["finish_by"]
    ahead = _ahead(past, fan, finish_by, is_over)
    spent = tokens.Totals(row["prompt_tokens"], row["output_tokens"])
    return render.fragment(
        "job_pictures.html",
        job=job_id,
        stride=leases.stride,
        pictures={
            "rate": rate.draw(points, ahead, now, fan, finish_by, rows),
            "lanes": lanes.draw(timeline, running, past),
            "tokens": tokens.draw(points, past, spent),
        },
    )


def _lanes(leases: Leases) -> Lanes:
    every = {(each["batch_id"], each["attempt"]): each for each in leases.unsuccessful}
    every |= {(each["batch_id"], each["attempt"]): each for each in leases.sample}
    return Lanes.of(every.values(), is_sampled=leases.stride > 1)


def _ahead(past: Span, fan: Fan | None, finish_by: float | None, is_over: bool) -> Span:
    """The time that the rates show: up to the end of the forecast and to the deadline, but no more ahead than there is
    behind.
    """
    ends = [past.end]
    if fan is not None:
        ends.append(fan.end if fan.slow_end is None else fan.slow_end)
    if finish_by is not None and not is_over:
        ends.append(finish_by)
    # A little more than the last of them, so that the line of a deadline is no edge.
    end = past.end + 1.03 * (max(ends) - past.end)
    return Span(past.begin, min(end, past.end + past.seconds))


def _running(
    connection: Connection, job_id: int, times: Mapping[Any, Any], timeline: Lanes
) -> Mapping[Place, list[Bar]]:
    """Return the bars of current leases and engine loads, by host and slot."""
    now = times["now"]
    found: dict[Place, list[Bar]] = {}
    for row in job_leases.running(connection, job_id, MOST_RUNNING):
        place = timeline.place(row["host"] or row["worker"], row["slot"])
        bar = Bar(lanes.RUNNING, row["claimed"], now, 1, row["rows"], 0, row["seq"])
        found.setdefault(place, []).append(bar)
    for row in job_leases.loading(connection, job_id):
        place = timeline.place(row["host"], row["slot"])
        found.setdefault(place, []).append(Bar(LOAD, row["started"], now))
    return found


def show_batch(visit: Visit) -> Response:
    """The page of one batch: what became of its leases."""
    job, given = visit.job(), visit.request.path_params["seq"]
    seq = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else -1
    with visit.ledger.transaction() as connection:
        rows = job_facts.of_batch(connection, job.id, seq, MOST_LEASES) if seq >= 0 else []
        found = leases.seen(connection, job.id, rows, visit.looker.scope)
        is_away = not found and jobs.is_archived(connection, job.id)
    if not found and not is_away:
        raise not_found("batch", given)
    return visit.page(
        "job_batch.html",
        title=f"Batch {given} of {job.spec.name}",
        job=job,
        seq=given,
        leases=found,
        is_away=is_away,
    )


ROUTES: list[Route] = [
    page("/jobs/{id}/pictures", show_pictures),
    page("/jobs/{id}/batches/{seq}", show_batch),
]
