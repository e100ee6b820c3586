"""The page of one job: how far, how fast, why it stands, what failed, where it ran, and its rows."""

from collections.abc import Callable, Hashable
from typing import Any

import yaml
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.control import audit_log
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import failed_rows, job_facts, job_pace
from nightshift.common.states import RowErrorKind
from nightshift.producer.console import render
from nightshift.producer.console.jobs import MOVES
from nightshift.producer.console.visits import Visit, action, live, page, seen_at
from nightshift.producer.explain import facts, reasons
from nightshift.producer.gateway import access
from nightshift.producer.gateway.errors import ApiError
from nightshift.producer.views.deadlines import with_deadlines

ATTEMPTS = 25
"""Leases that the page shows, the newest."""

ROWS = 10
"""Rows that one look at the rows draws."""


def show_job(visit: Visit) -> Response:
    """The page."""
    job = visit.job()
    spec = job.spec.model_dump(mode="json", exclude_unset=True)
    _, look = live_job(visit)
    return visit.page(
        "job.html",
        title=job.spec.name,
        job=job,
        spec=yaml.safe_dump(spec, sort_keys=False, allow_unicode=True),
        live=render.safe(look()),
    )


def live_job(visit: Visit) -> tuple[Hashable, Callable[[], str]]:
    """What changes while the job runs."""
    job, ledger, acts, scope = visit.job(), visit.ledger, visit.looker.acts, visit.looker.scope
    trails = visit.request.app.state.trails

    def look() -> str:
        seen = _seen(ledger, job, scope)
        return render.fragment("job_live.html", acts=acts, trail=trails.note(seen["row"]), **seen)

    return job.id, look


def _seen(ledger: Ledger, job: Job, tenant: str | None) -> dict[str, Any]:
    with ledger.transaction() as connection:
        (row,) = with_deadlines(connection, job_pace.some(connection, [job.id]))
        return {
            "row": row,
            "reasons": reasons.explain(facts.facts(connection, job, tenant=tenant)),
            "kinds": failed_rows.count_by_kind(connection, job.id),
            "attempts": job_facts.attempts(
                connection, job.id, limit=ATTEMPTS, outcome=None, seq=None
            ),
            "changes": audit_log.of_job(connection, job.id)[::-1],
        }


def show_rows(visit: Visit) -> Response:
    """Some rows, input beside output: any, or those that failed."""
    from nightshift.producer.results.sample import Sample, sample

    job, failed = visit.job(), visit.query("failed") is not None
    seed = visit.number("seed", 0)
    try:
        drawn, note = sample(visit.ledger, job, ROWS, seed, errors_only=failed), ""
    except BadInput as error:
        drawn, note = Sample(0, seed, failed), str(error)
    return visit.page(
        "rows.html",
        title=f"Rows of {job.spec.name}",
        job=job,
        drawn=drawn,
        failed=failed,
        note=note or drawn.note,
    )


def move_job(visit: Visit) -> Response:
    """Pauses, resumes or cancels the job."""
    job, do = visit.job(), (visit.form.get("do") or [""])[0]
    if do not in MOVES:
        raise ApiError(400, "do is none of pause, resume and cancel", param="do")
    MOVES[do](visit.ledger, job)
    return seen_at(f"/jobs/{job.id}")


def retry_job(visit: Visit) -> Response:
    """Runs the rows that failed again: all of them, or those of one kind."""
    from nightshift.producer import retry  # loads Arrow

    job, kind = visit.job(), (visit.form.get("kind") or [""])[0]
    if kind and kind not in list(RowErrorKind):
        raise ApiError(400, f"there is no kind of error {kind[:50]!r}", param="kind")
    wanted = RowErrorKind(kind) if kind else None
    allowed = access.may_reopen(visit.looker.caller, job)
    retry.retry(visit.ledger, job, failed=True, dead=wanted is None, kind=wanted, allowed=allowed)
    return seen_at(f"/jobs/{job.id}")


ROUTES: list[Route] = [
    page("/jobs/{id}", show_job),
    live("/live/jobs/{id}", live_job),
    page("/jobs/{id}/rows", show_rows),
    action("/jobs/{id}/move", move_job),
    action("/jobs/{id}/retry", retry_job),
]
