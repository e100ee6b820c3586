"""The pictures of a job, which its page loads anew when a reaper has looked, and the page of one batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from nightshift.common.ledger import Connection, Ledger, Row
from nightshift.common.ledger.jobs import jobs, pictures
from nightshift.common.ledger.queries import job_facts, job_pace
from nightshift.producer.pictures.lanes import LOAD, Bar, Lanes, Place
from nightshift.producer.pictures.series import Point
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.page_calls import Visit, page
from nightshift.producer.serve.console.pictures import dataset_map, forecast, lanes, rate, tokens
from nightshift.producer.serve.console.pictures.forecast import Fan
from nightshift.producer.serve.console.pictures.scales import Span
from nightshift.producer.serve.errors import not_found

MOST_RECENT = 500
"""Leases that ended since the last look and are drawn, and leases that run now."""

MOST_LEASES = 200
"""Leases of one batch that its page shows."""


def show_pictures(visit: Visit) -> Response:
    """The pictures alone, as a piece of the page."""
    return HTMLResponse(drawn(visit.ledger, visit.job().id), headers=render.HEADERS)


def drawn(ledger: Ledger, job_id: int) -> str:
    """The pictures as HTML."""
    with ledger.transaction() as connection:
        kept = pictures.shown(connection, job_id)
        if kept["told_at"] is None:
            return render.fragment(
                "job_pictures.html",
                job=job_id,
                pictures=None,
                is_away=jobs.is_archived(connection, job_id),
                is_due=kept["is_due"],
            )
        (row,) = job_pace.some(connection, [job_id])
        recent, running = _work(connection, job_id, kept)
    points = _points(kept)
    now = points[-1].at if kept["closed"] is not None else max(kept["now"], points[-1].at)
    left = row["rows_total"] - row["rows_done"] - row["rows_failed"]
    is_over = kept["closed"] is not None
    now_rate = None if is_over else row["rows_per_second"]
    fan = forecast.fan(points, now, left, None if now_rate is None else float(now_rate))
    past = Span(points[0].at, now)
    finish_by = kept["finish_by"]
    cells = kept["map"]
    return render.fragment(
        "job_pictures.html",
        job=job_id,
        pictures={
            "rate": rate.draw(points, _ahead(past, fan, finish_by, is_over), now, fan, finish_by),
            "lanes": lanes.draw(Lanes.of_json(kept["lanes"]).plus(recent), running, past),
            "tokens": tokens.draw(points, past),
            "map": dataset_map.draw(cells["width"], cells["cells"]),
        },
    )


def _points(kept: Row) -> list[Point]:
    """The series, from the begin of the job on: a short job may be over before its first look."""
    points = [Point(*point) for point in kept["series"]]
    if kept["began"] < points[0].at and any(points[0][2:]):
        points.insert(0, Point(kept["began"], points[0].total, *[0] * 6))
    return points


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


def _work(
    connection: Connection, job_id: int, kept: Row
) -> tuple[Sequence[Row], Mapping[Place, list[Bar]]]:
    """What ended since the last look, and what runs and loads now, by place."""
    now, by_host = kept["now"], bool(kept["lanes"] and kept["lanes"]["by_host"])
    if kept["closed"] is not None:
        return [], {}
    recent = pictures.ended(connection, job_id, kept["seen_until"] or 0.0, now + 1, MOST_RECENT)
    found: dict[Place, list[Bar]] = {}

    def note(row: Mapping[Any, Any], bar: Bar) -> None:
        place = row["host"] or row["worker"], None if by_host else row["slot"]
        found.setdefault(place, []).append(bar)

    for row in pictures.running(connection, job_id, MOST_RECENT):
        bar = Bar(lanes.RUNNING, row["claimed"], now, 1, row["rows"], 0, row["seq"])
        note(row, bar)
    for row in pictures.loading(connection, job_id):
        note({**row, "worker": ""}, Bar(LOAD, row["started"], now))
    return recent, found


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
