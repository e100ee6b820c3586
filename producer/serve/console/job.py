"""The page of one job: how far, how fast, why it stands, what failed, where it ran, and its rows."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common import provenance
from nightshift.common.allocation.demand import MOST_PRIORITY
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_facts, live_parts
from nightshift.common.public_text import shown_path
from nightshift.common.spec.changes import NONE
from nightshift.common.states import RowErrorKind
from nightshift.common.text import map_leaves
from nightshift.producer.advice.here import Here
from nightshift.producer.control import job_moves, job_settings
from nightshift.producer.control.seen import Seen, Stale
from nightshift.producer.serve import access
from nightshift.producer.serve.api.fields import CHANGEABLE
from nightshift.producer.serve.calls import plans
from nightshift.producer.serve.console import job_pictures, render, results
from nightshift.producer.serve.console.failures import Kinds
from nightshift.producer.serve.console.helping import helped, settings_of
from nightshift.producer.serve.console.jobs import MOVES
from nightshift.producer.serve.console.mending import WAS, refusal, seen
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    live,
    page,
    seen_at,
)
from nightshift.producer.serve.console.pictures import answers
from nightshift.producer.serve.console.wording import model_name
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import api_batches, tenants
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.views import facts, leases
from nightshift.producer.views.fact import Fact

ATTEMPTS = 25
"""Leases that the page shows, the newest."""

OF_ORIGIN = 200
"""Leases whose engines and code the page names, the newest."""

ELSEWHERE = ("tokens", "saved", "rate", "cost", "deadline", "output", "reason")
"""Facts that the page has in places of their own."""

MOST_FILES = 5
"""Input files that the page names."""


def show_job(
    visit: Visit,
    status: int = 200,
    message: str | None = None,
    typed: Mapping[str, str] | None = None,
) -> Response:
    """The page; with a `message` where a change was refused, and what somebody has `typed` for it."""
    job = visit.job()
    if (batch := visit.query("batch")) is not None:
        return seen_at(f"/jobs/{job.id}/batches/{render.quoted(batch)}")
    spec = job.spec.model_dump(mode="json", exclude_unset=True)
    shown = _places(visit, job)
    look = live_job(visit)
    with visit.ledger.transaction() as connection:
        now = settings_of(connection, job)
        tenant = _bounds(connection, visit)
        pools = job_facts.pools(connection, job.engine_key)
    allowed = pools if tenant is None or tenant.pools is None else tenant.pools
    return visit.page(
        "job.html",
        status,
        message,
        title=job.spec.name,
        job=job,
        spec=yaml.safe_dump(
            map_leaves(spec, lambda leaf: shown(leaf) if isinstance(leaf, str) else leaf),
            sort_keys=False,
            allow_unicode=True,
        ),
        origin=_origin(visit.ledger, job, visit.request.app.state.model_names.aliases(), shown),
        results=results.offered(visit.ledger, job),
        live=render.safe(look()),
        now=now,
        typed={**now, **(typed or {})},
        is_open=typed is not None,
        pools=sorted({*allowed, job.spec.pool}),
        most_priority=MOST_PRIORITY if tenant is None else tenant.max_priority,
        pictures=render.safe(job_pictures.drawn(visit.ledger, job.id)),
    )


def _bounds(connection: Connection, visit: Visit) -> Tenant | None:
    """The tenant whose limits hold for the looker; None for an operator."""
    scope = visit.looker.scope
    return None if scope is None else tenants.get(connection, scope)


def _places(visit: Visit, job: Job) -> Callable[[str], str]:
    """How the looker reads a place of the job: as it is, or by its last name if its tenant did not name the place."""
    if visit.looker.sees_all or job.own is None or job.roots is not None:
        return str
    return lambda place: shown_path(place, ())


def _origin(
    ledger: Ledger, job: Job, aliases: Mapping[str, str], shown: Callable[[str], str]
) -> list[Fact]:
    """Where the rows of the job come from, and what answers them."""
    with ledger.transaction() as connection:
        sources = jobs.files(connection, job.id)
        revision = live_parts.revision(connection, job.id)
        made = job_facts.recent(connection, job.id, OF_ORIGIN)
    model = provenance.model_of(job.spec)
    name = model_name(model, aliases)
    engines = sorted({f"{each['engine']} {each['engine_version']}" for each in made})
    code = sorted({each["code_version"] for each in made if each["code_version"]})
    more = f" and {len(sources) - MOST_FILES:,} more" if len(sources) > MOST_FILES else ""
    found = {
        "Model": name,
        "Loaded from": "" if model == name else shown(model),
        "Revision": revision or "",
        "Engine": ", ".join(engines),
        "Code of the workers": ", ".join(code),
        "Input": ", ".join(shown(source.uri) for source in sources[:MOST_FILES]) + more,
        "Rows of the input": f"{sum(source.rows or 0 for source in sources):,}",
        "Output": shown(job.output_uri),
        "Identity": job.identity[:16],
    }
    return [Fact(name, value) for name, value in found.items() if value]


def live_job(visit: Visit) -> Callable[[], str]:
    """What changes while the job runs. It has no pictures: the page loads them when there are new ones."""
    job, ledger, acts, scope = visit.job(), visit.ledger, visit.looker.acts, visit.looker.scope
    state = visit.request.app.state
    trails, kinds, here = state.trails, state.kinds, visit.context.here

    def look() -> str:
        seen = _seen(ledger, kinds, here(), job.id, scope, acts=acts)
        if seen is None:
            return render.fragment("gone.html", kind="job", place="/")
        found = answers.drawings(state.answers.of(ledger, seen["row"]))
        return render.fragment(
            "job_live.html", acts=acts, trail=trails.note(seen["row"]), answers=found, **seen
        )

    return look


def _seen(
    ledger: Ledger, kinds: Kinds, here: Here, job_id: int, tenant: str | None, *, acts: bool
) -> dict[str, Any] | None:
    """What the page shows of a job now; None where the job is gone."""
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
        if job is None:
            return None
        row = facts.read(connection, job.id, here, tenant)
        return {
            "row": row,
            "facts": facts.named(facts.of_job(row), without=ELSEWHERE),
            "reasons": helped(connection, job, here, tenant, acts=acts),
            "failures": kinds.of(connection, row),
            "attempts": leases.seen(
                connection, job.id, job_facts.recent(connection, job.id, ATTEMPTS), tenant
            ),
            "drawn": job_pictures.version(row["started_at"], job.closed_at, time.time()),
            "batch": api_batches.of_job(connection, job.id),
            "changes": audit_log.of_job(connection, job.id, tenant)[::-1],
        }


def _changed(visit: Visit, change: Callable[[Job, Seen], object]) -> Response:
    """Changes the job of the address, and leads to its page. Where it is no longer as the form's page showed it,
    or the change is refused, the answer is the page of now, and says so.
    """
    job = visit.job()
    try:
        change(job, seen(visit))
    except Stale as stale:
        with visit.ledger.transaction() as connection:
            changes = audit_log.of_job(connection, job.id, visit.looker.scope)
        return show_job(visit, 409, refusal(job.label, stale, changes))
    except (ApiError, BadInput) as error:
        return show_job(visit, *visit.told(error), _typed(visit))
    return seen_at(f"/jobs/{job.id}")


def _typed(visit: Visit) -> dict[str, str] | None:
    """What the form of fields had; None for another form."""
    given = {name: values[0] for name, values in visit.form.items() if name in CHANGEABLE}
    return given or None


def move_job(visit: Visit) -> Response:
    """Pauses, resumes or cancels the job; resumes with another budget where the form has one."""
    do, budget = (visit.field(name) for name in ("do", "budget"))
    if do not in MOVES:
        raise ApiError(400, "do is not one of pause, resume and cancel", param="do")
    if do == "resume" and budget:
        amount = _amount(budget)
        return _changed(
            visit, lambda job, seen: job_moves.resume(visit.ledger, job, amount, seen=seen)
        )
    return _changed(visit, lambda job, seen: MOVES[do](visit.ledger, job, seen=seen))


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ApiError(400, f"budget is {text[:50]!r}, and no amount", param="budget") from error


def set_job(visit: Visit) -> Response:
    """Changes the fields of the job that the form has with another value than its page showed."""
    wanted = {
        name: visit.field(name) or NONE
        for name in sorted(CHANGEABLE)
        if name in visit.form and (visit.field(name) or NONE) != visit.field(f"{WAS}{name}")
    }
    allowed = access.may_change(visit.looker.caller)
    return _changed(
        visit,
        lambda job, seen: job_settings.change(
            visit.ledger, job, wanted, seen=seen, allowed=allowed
        ),
    )


def load_job(visit: Visit) -> Response:
    """Lets machines that could not load the engine of the job try again at once."""
    return _changed(visit, lambda job, seen: job_moves.load_again(visit.ledger, job, seen=seen))


def retry_job(visit: Visit) -> Response:
    """Runs the rows that failed again: all of them, those of one kind, or those of one group of messages."""
    from nightshift.producer import retry  # loads Arrow

    kind, group = visit.field("kind"), visit.field("group") or None
    if kind and kind not in list(RowErrorKind):
        raise ApiError(400, f"there is no kind of error {kind[:50]!r}", param="kind")
    wanted = RowErrorKind(kind) if kind else None

    def change(job: Job, seen: Seen) -> None:
        retry.retry(
            visit.ledger,
            job,
            failed=True,
            dead=wanted is None and group is None,
            kind=wanted,
            group=group,
            allowed=access.may_reopen(visit.looker.caller, job),
            agreed=seen.check,
        )

    return _changed(visit, change)


ROUTES: list[Route] = [
    page("/jobs/{id}", show_job),
    live("/live/jobs/{id}", live_job),
    action("/jobs/{id}/move", move_job),
    action("/jobs/{id}/set", set_job),
    action("/jobs/{id}/retry", retry_job, slow=plans),
    action("/jobs/{id}/load", load_job),
]
