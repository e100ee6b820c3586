"""The page of one job: how far, how fast, why it stands, what failed, where it ran, and its rows."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common import provenance
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows, job_facts, job_pace, live_parts
from nightshift.common.states import RowErrorKind
from nightshift.producer.advice.here import Here
from nightshift.producer.control import job_moves
from nightshift.producer.explain import facts, reasons
from nightshift.producer.serve import access
from nightshift.producer.serve.calls import plans
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.jobs import MOVES
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    live,
    page,
    seen_at,
)
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import api_batches
from nightshift.producer.views.deadlines import with_deadlines
from nightshift.producer.views.in_table import with_table

ATTEMPTS = 25
"""Leases that the page shows, the newest."""

ON_TIMELINE = 200
"""Leases that the timeline draws, the newest."""

COUNT_SECONDS, MOST_COUNTED = 5.0, 1000

MOST_FILES = 5
"""Input files that the page names."""


class Kinds:
    """How many rows of a job failed how, counted anew once their number has changed, and not more often
    than COUNT_SECONDS: of a million failed rows a count takes a while.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[int, tuple[float, int, dict[str, int]]] = OrderedDict()

    def of(self, connection: Connection, row: Mapping[str, Any]) -> dict[str, int]:
        """The counts of a job, by its row of job_progress."""
        job, failed, now = row["job"], row["rows_failed"], time.monotonic()
        counted_at, known, counts = self._counts.get(job, (0.0, 0, {}))
        if failed != known and (not counts or now - counted_at > COUNT_SECONDS):
            counts = failed_rows.count_by_kind(connection, job) if failed else {}
            self._counts[job] = (now, failed, counts)
            while len(self._counts) > MOST_COUNTED:
                self._counts.popitem(last=False)
        return counts


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
        origin=_origin(visit.ledger, job),
        live=render.safe(look()),
    )


def _origin(ledger: Ledger, job: Job) -> dict[str, str]:
    """Where the rows of the job come from, and what answers them."""
    with ledger.transaction() as connection:
        sources = jobs.files(connection, job.id)
        revision = live_parts.revision(connection, job.id)
        made = job_facts.recent(connection, job.id, ON_TIMELINE)
    engines = sorted({f"{each['engine']} {each['engine_version']}" for each in made})
    code = sorted({each["code_version"] for each in made if each["code_version"]})
    more = f" and {len(sources) - MOST_FILES:,} more" if len(sources) > MOST_FILES else ""
    found = {
        "Model": provenance.model_of(job.spec),
        "Revision": revision or "",
        "Engine": ", ".join(engines),
        "Code of the workers": ", ".join(code),
        "Input": ", ".join(source.uri for source in sources[:MOST_FILES]) + more,
        "Rows of the input": f"{sum(source.rows or 0 for source in sources):,}",
        "Output": job.output_uri,
        "Identity": job.identity[:16],
    }
    return {name: value for name, value in found.items() if value}


def live_job(visit: Visit) -> tuple[Hashable, Callable[[], str]]:
    """What changes while the job runs."""
    job, ledger, acts, scope = visit.job(), visit.ledger, visit.looker.acts, visit.looker.scope
    state = visit.request.app.state
    trails, kinds, here = state.trails, state.kinds, visit.context.here

    def look() -> str:
        seen = _seen(ledger, kinds, here(), job.id, scope)
        if seen is None:
            return render.fragment("gone.html", kind="job", place="/")
        return render.fragment("job_live.html", acts=acts, trail=trails.note(seen["row"]), **seen)

    return job.id, look


def _seen(
    ledger: Ledger, kinds: Kinds, here: Here, job_id: int, tenant: str | None
) -> dict[str, Any] | None:
    """What the page shows of a job now; None where the job is gone."""
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
        if job is None:
            return None
        (row,) = with_deadlines(connection, job_pace.some(connection, [job.id]))
        row = with_table(connection, row)
        return {
            "row": row,
            "reasons": reasons.explain(facts.facts(connection, job, tenant=tenant, here=here)),
            "kinds": kinds.of(connection, row),
            "attempts": job_facts.recent(connection, job.id, ON_TIMELINE),
            "shown": ATTEMPTS,
            "now": datetime.now(UTC),
            "batch": api_batches.of_job(connection, job.id),
            "changes": audit_log.of_job(connection, job.id, tenant)[::-1],
        }


def move_job(visit: Visit) -> Response:
    """Pauses, resumes or cancels the job."""
    job, do = visit.job(), (visit.form.get("do") or [""])[0]
    if do not in MOVES:
        raise ApiError(400, "do is not one of pause, resume and cancel", param="do")
    MOVES[do](visit.ledger, job)
    return seen_at(f"/jobs/{job.id}")


def load_job(visit: Visit) -> Response:
    """Lets machines that could not load the engine of the job try again at once."""
    job = visit.job()
    job_moves.load_again(visit.ledger, job)
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
    action("/jobs/{id}/move", move_job),
    action("/jobs/{id}/retry", retry_job, slow=plans),
    action("/jobs/{id}/load", load_job),
]
