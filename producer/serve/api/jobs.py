"""`/api/jobs`: a spec becomes a job; jobs are looked at and changed, as by the command line.

A caller sees the jobs of its own tenant; an operator sees every job, or those of `?tenant=`. What an
operator may submit is bounded by the settings of the server alone; a user is held to its tenant.

What loads Arrow is imported where it is used: Arrow takes as much memory as the rest of the server.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_pace, standings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState, Outcome, RowErrorKind, ShownState
from nightshift.producer.control import job_moves, job_settings
from nightshift.producer.control.answer import Answer
from nightshift.producer.explain import facts, reasons
from nightshift.producer.serve import access, downloads, submitting
from nightshift.producer.serve.api import fields
from nightshift.producer.serve.calls import (
    JSON_OBJECT,
    Call,
    plans,
    reads,
    route,
    streaming,
)
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import quotas, tenant_jobs
from nightshift.producer.serve.v1 import paging
from nightshift.producer.views import progress, rates
from nightshift.producer.views.deadlines import with_deadlines
from nightshift.producer.views.standings import board, without_places

MOST_LISTED = 1000


def create_job(call: Call) -> JSONResponse:
    """Submits a spec; the same spec over unchanged files gives the same job."""
    spec = parse_spec(call.json(), "the spec")
    settings, scope = call.context.settings, _scope(call)
    from nightshift.producer.results import past_end

    ending = call.context.slow.ending
    done = submitting.submit_for(call.ledger, settings, call.caller, spec, scope, ending=ending)
    with call.ledger.transaction() as connection:
        job = jobs.get(connection, done.job_id)
    # Whose answers are gone needs to know that nothing runs; the code of functions is with the workers.
    past = None if job is None or done.is_new else past_end.of(call.ledger, job, ())
    answer = {
        "job": done.job_id,
        "name": spec.name,
        "new": done.is_new,
        "status": str(done.state),
        "rows": done.rows,
        "batches": done.batches,
        "remarks": [*done.remarks, *(past.remarks if past else ())],
    }
    return JSONResponse(answer, 201 if done.is_new else 200)


def list_jobs(call: Call) -> dict[str, Any]:
    """A page of jobs, the newest first."""
    limit = paging.limit(call, default=20, most=MOST_LISTED)
    state = fields.one_of(call, "status", list(JobState))
    word = fields.one_of(call, "standing", list(ShownState))
    needs = fields.one_of(call, "needs_person", ["true", "false"]) == "true"
    before = fields.number(call, "after", digits=18) or standings.LAST
    scope, here = _scope(call), call.context.here()
    with call.ledger.transaction() as connection:
        wanted = standings.Filter(
            tenant=scope,
            state=None if state is None else JobState(state),
            word=None if word is None else ShownState(word),
            needs_person=needs,
        )
        known = board(connection, scope, here, scope)
        ids = known.newest(connection, wanted, limit=limit + 1, before=before)
        rows = with_deadlines(connection, job_pace.some(connection, ids[:limit]))
        rows = known.joined(connection, rows, here, scope)
        shown = without_places(connection, rows, scope)
    data = [rates.as_json(row) for row in shown]
    return {"object": "list", "data": data, "has_more": len(ids) > limit}


def retrieve_job(call: Call) -> dict[str, Any]:
    """What `nightshift status JOB --json` says."""
    with call.ledger.transaction() as connection:
        return progress.job_as_json(
            connection, _job(connection, call).id, call.context.here(), _scope(call)
        )


def explain_job(call: Call) -> dict[str, Any]:
    """What `nightshift explain JOB --json` says."""
    with call.ledger.transaction() as connection:
        job = _job(connection, call)
        known = facts.facts(connection, job, tenant=_scope(call), here=call.context.here())
        return facts.as_json(job, reasons.explain(known))


def job_history(call: Call) -> dict[str, Any]:
    """What `nightshift history JOB --json` says, of the newest leases."""
    from nightshift.producer.views import history

    limit = paging.limit(call, default=50, most=MOST_LISTED)
    outcome = fields.one_of(call, "outcome", [*Outcome, "running"])
    batch = fields.number(call, "batch")
    seen = history.history(
        call.ledger, _found(call), limit=limit, outcome=outcome, seq=batch, tenant=_scope(call)
    )
    return seen.as_json()


def job_errors(call: Call) -> dict[str, Any]:
    """What `nightshift errors JOB --json` says, of the first rows."""
    from nightshift.producer import closed_jobs

    limit = paging.limit(call, default=20, most=MOST_LISTED)
    kind = fields.one_of(call, "kind", list(RowErrorKind))
    job = _found(call)
    kinds, rows = closed_jobs.errors(call.ledger, job, kind=kind, limit=limit, tenant=_scope(call))
    return {"job": job.id, "kinds": kinds, "rows": [rates.plain(row) for row in rows]}


async def job_results(request: Request, call: Call) -> Response:
    """The rows of a job as `nightshift collect JOB` writes them, streamed: `format` is jsonl, csv or parquet; with
    `partial=true` of a job that is not over, too; with `sample=true` the first 1,000 of them.
    """
    return await downloads.transfer(request, call.context, call.caller, lambda: _found(call))


def pause_job(call: Call) -> dict[str, Any]:
    """No further claims."""
    return _answered(job_moves.pause(call.ledger, _found(call), call.context.here()))


def resume_job(call: Call) -> dict[str, Any]:
    """Resumes a paused job, with another `budget` where one is given."""
    budget = call.json().get("budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float)):
        raise ApiError(400, "budget must be a number", param="budget")
    return _answered(job_moves.resume(call.ledger, _found(call), budget, call.context.here()))


def cancel_job(call: Call) -> dict[str, Any]:
    """Ends a job for good."""
    return _answered(job_moves.cancel(call.ledger, _found(call)))


def retry_job(call: Call) -> dict[str, Any]:
    """Failed rows run again, all of them or those of one `kind`."""
    from nightshift.producer import retry

    kind = call.json().get("kind")
    if kind is not None and kind not in list(RowErrorKind):
        raise ApiError(400, f"kind is not one of {', '.join(RowErrorKind)}", param="kind")
    wanted = None if kind is None else RowErrorKind(kind)
    job = _found(call)
    allowed = access.may_reopen(call.caller, job)
    done = retry.retry(
        call.ledger,
        job,
        failed=True,
        dead=kind is None,
        kind=wanted,
        settings=call.context.settings,
        allowed=allowed,
    )
    figures = {"rows": done.rows, "batches": done.batches, "reopened": done.reopened}
    then = retry.summary(job, done, call.context.here())
    return _answered(Answer("retry", job.label, job.id, then=then, facts=figures))


def change_job(call: Call) -> dict[str, Any]:
    """Changes fields of a job, as `nightshift set` does; null takes a limit away."""
    given = call.json()
    if unknown := sorted(given.keys() - fields.CHANGEABLE):
        known = ", ".join(sorted(fields.CHANGEABLE))
        raise ApiError(400, f"{unknown[0][:50]!r} is not one of {known}", param=unknown[0][:50])
    if not given:
        raise ApiError(400, "the body names no field that changes")
    job = _found(call)
    wanted = {name: fields.as_written(name, value) for name, value in given.items()}
    allowed = access.may_change(call.caller)
    return _answered(job_settings.change(call.ledger, job, wanted, allowed=allowed))


def delete_job(call: Call) -> dict[str, Any]:
    """Deletes a job that is over, with `?output=true` also its files. Results in the store of the server go
    with their job.
    """
    from nightshift.producer.control import deletion

    job = _found(call)
    with call.ledger.transaction() as connection:
        in_store = quotas.keeps_results(connection, job.id)
    output = fields.one_of(call, "output", ["true", "false"]) == "true" or in_store
    done = deletion.delete(call.ledger, job, call.context.settings, output=output)
    return _answered(done)


def _answered(answer: Answer) -> dict[str, Any]:
    return dict(answer.as_json)


def _scope(call: Call) -> str | None:
    """The tenant whose jobs the caller sees; None for all."""
    if call.caller.role != "operator":
        return call.caller.tenant
    return call.query.get("tenant")


def _found(call: Call) -> Job:
    with call.ledger.transaction() as connection:
        return _job(connection, call)


def _job(connection: Connection, call: Call) -> Job:
    given = call.path["id"]
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
    found = tenant_jobs.get(connection, _scope(call), number)
    if found is None:
        raise not_found("job", given)
    return found


ROUTES: list[Route] = [
    route("POST", "/api/jobs", create_job, slow=plans, takes=JSON_OBJECT, statuses=(200, 201)),
    route(
        "GET",
        "/api/jobs",
        list_jobs,
        "viewer",
        query=("status", "standing", "needs_person", "limit", "after", "tenant"),
    ),
    route("GET", "/api/jobs/{id}", retrieve_job, "viewer"),
    route("PATCH", "/api/jobs/{id}", change_job, takes=JSON_OBJECT),
    route("DELETE", "/api/jobs/{id}", delete_job, slow=plans, query=("output",)),
    route("GET", "/api/jobs/{id}/explain", explain_job, "viewer"),
    route(
        "GET",
        "/api/jobs/{id}/history",
        job_history,
        "viewer",
        slow=reads,
        query=("limit", "outcome", "batch"),
    ),
    route(
        "GET", "/api/jobs/{id}/errors", job_errors, "viewer", slow=reads, query=("limit", "kind")
    ),
    streaming(
        "GET",
        "/api/jobs/{id}/results",
        job_results,
        "viewer",
        query=downloads.QUERY,
        binary=True,
    ),
    route("POST", "/api/jobs/{id}/pause", pause_job),
    route("POST", "/api/jobs/{id}/resume", resume_job),
    route("POST", "/api/jobs/{id}/cancel", cancel_job),
    route("POST", "/api/jobs/{id}/retry", retry_job, slow=plans),
]
