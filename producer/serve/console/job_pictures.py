"""The pictures of a job, which its page loads anew from time to time, and the page of one batch."""

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

MOST_RUNNING = 500
"""Leases that run now and are drawn."""

MOST_LEASES = 200
"""Leases of one batch that its page shows."""

REDRAWN_SECONDS, REDRAWN_LATER_SECONDS, LATER_SECONDS = 10.0, 60.0, 3600.0
"""How often the pictures of an open job are loaded anew, also of one that has run for LATER_SECONDS."""


def show_pictures(visit: Visit) -> Response:
    """The pictures alone, as a piece of the page."""
    return HTMLResponse(drawn(visit.ledger, visit.job().id), headers=render.HEADERS)


def version(began: datetime | None, closed: datetime | None, now: float) -> str:
    """Return another word when the page of a job that `began` should load its pictures anew: from time to time until
    the job is `closed`, and then once more. `now` is in seconds since 1970.
    """
    if closed is not None:
        return closed.isoformat()
    is_long = began is not None and now - began.timestamp() > LATER_SECONDS
    return f"{now // (REDRAWN_LATER_SECONDS if is_long else REDRAWN_SECONDS):.0f}"


def drawn(ledger: Ledger, job_id: int) -> str:
    """The pictures as HTML."""
    with ledger.transaction() as connection:
        if jobs.is_archived(connection, job_id):
            return render.fragment("job_pictures.html", job=job_id, pictures=None, is_away=True)
        times = job_leases.times(connection, job_id)
        leases = job_leases.ended(connection, job_id)
        (row,) = job_pace.some(connection, [job_id])
        lanes_of_ended = _lanes(leases)
        running = {} if times["closed"] else _running(connection, job_id, times, lanes_of_ended)
    is_over = times["closed"] is not None
    now = times["closed"] if is_over else times["now"]
    points = series.points(leases.spread, leases.step, times["began"], now)
    rows = rate.Rows(row["rows_total"], row["rows_done"], row["rows_failed"])
    now_rate = None if is_over else row["rows_per_second"]
    fan = forecast.fan(
        points,
        now,
        rows.total - rows.done - rows.failed,
        None if now_rate is None else float(now_rate),
    )
    past = Span(points[0].at, points[-1].at)
    finish_by = times["finish_by"]
    ahead = _ahead(past, fan, finish_by, is_over)
    spent = tokens.Totals(row["prompt_tokens"], row["output_tokens"])
    return render.fragment(
        "job_pictures.html",
        job=job_id,
        step=leases.step,
        pictures={
            "rate": rate.draw(points, ahead, now, fan, finish_by, rows),
            "lanes": lanes.draw(lanes_of_ended, running, past),
            "tokens": tokens.draw(points, past, spent),
        },
    )


def _lanes(leases: Leases) -> Lanes:
    every = {(each["batch_id"], each["attempt"]): each for each in leases.unhappy}
    every |= {(each["batch_id"], each["attempt"]): each for each in leases.spread}
    return Lanes.of(every.values(), is_thinned=leases.step > 1)


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
    connection: Connection, job_id: int, times: Mapping[Any, Any], ended: Lanes
) -> Mapping[Place, list[Bar]]:
    """What runs and loads now, by place."""
    now = times["now"]
    found: dict[Place, list[Bar]] = {}
    for row in job_leases.running(connection, job_id, MOST_RUNNING):
        place = ended.place(row["host"] or row["worker"], row["slot"])
        bar = Bar(lanes.RUNNING, row["claimed"], now, 1, row["rows"], 0, row["seq"])
        found.setdefault(place, []).append(bar)
    for row in job_leases.loading(connection, job_id):
        place = ended.place(row["host"], row["slot"])
        found.setdefault(place, []).append(Bar(LOAD, row["started"], now))
    return found


def show_batch(visit: Visit) -> Response:
    """The page of one batch: what became of its leases."""
    job, given = visit.job(), visit.request.path_params["seq"]
    seq = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else -1
    with visit.ledger.transaction() as connection:
        leases = job_facts.of_batch(connection, job.id, seq, MOST_LEASES) if seq >= 0 else []
        is_away = not leases and jobs.is_archived(connection, job.id)
    if not leases and not is_away:
        raise not_found("batch", given)
    return visit.page(
        "job_batch.html",
        title=f"Batch {given} of {job.spec.name}",
        job=job,
        seq=given,
        leases=leases,
        is_away=is_away,
    )


ROUTES: list[Route] = [
    page("/jobs/{id}/pictures", show_pictures),
    page("/jobs/{id}/batches/{seq}", show_batch),
]
