"""`/v1/batches`: made, seen, listed, cancelled. Nothing here reads a whole file or starts a job."""

from starlette.routing import Route

from nightshift.common.ledger import audit_log
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.control.seen import NOTHING, Seen
from nightshift.producer.serve import access
from nightshift.producer.serve.calls import (
    JSON_OBJECT,
    Call,
    plans,
    route,
)
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import (
    api_batch_retry,
    api_batch_steps,
    api_batches,
    files,
)
from nightshift.producer.serve.ledger.api_batches import ApiBatch, ApiBatchStatus
from nightshift.producer.serve.v1 import create, early_refusals, objects, paging
from nightshift.producer.serve.v1.schemas import BatchList, BatchObject


def create_batch(call: Call) -> BatchObject:
    """Makes a batch of a file; a reaper reads the file."""
    new, retried = create.parsed(call), create.is_retry(call.headers)
    refused = early_refusals.refusal(call, new)
    batch = create.made(call.ledger, new, retried=retried, refused=refused)
    # From the row alone: what would fail now must not deny a batch that is there.
    return objects.batch(batch, objects.counts(batch, None))


def retrieve_batch(call: Call) -> BatchObject:
    """One batch."""
    with call.ledger.transaction() as connection:
        return _seen(connection, _get(connection, call))


def list_batches(call: Call) -> BatchList:
    """A page of batches, the newest first."""
    limit = paging.limit(call, default=20, most=100)
    with call.ledger.transaction() as connection:
        before = api_batches.LAST_SEQ
        if after := call.query.get("after"):
            known = api_batches.get(connection, call.caller.tenant, after)
            if known is None:
                raise ApiError(400, f"there is no batch {after[:100]!r}", param="after")
            before = known.seq
        found = api_batches.listed(connection, call.caller.tenant, limit=limit + 1, before=before)
        rows = [_seen(connection, batch) for batch in found[:limit]]
    return BatchList.of(rows, has_more=len(found) > limit)


def cancel_batch(call: Call, seen: Seen = NOTHING) -> BatchObject:
    """Cancels a batch; what is done of it is delivered. Stale where it is not as it was seen."""
    with call.ledger.transaction() as connection:
        found = api_batches.locked(connection, call.caller.tenant, call.path["id"])
        if found is None:
            raise not_found("batch", call.path["id"])
        if found.state in (ApiBatchStatus.VALIDATING, ApiBatchStatus.IN_PROGRESS):
            seen.check({"state": found.state})
            api_batch_steps.cancel(connection, found)
            now = _get(connection, call).state
            moved = {"state": [found.state, now]}
            audit_log.record(connection, "cancel", found.job_id, f"batch {found.id}", moved)
        elif found.state in (
            ApiBatchStatus.COMPLETED,
            ApiBatchStatus.FAILED,
            ApiBatchStatus.EXPIRED,
        ):
            seen.check({"state": found.state})
            raise ApiError(
                409,
                f"the batch is {found.state} and cannot be cancelled",
                param="id",
                code="batch_over",
                retried=False,
            )
        return _seen(connection, _get(connection, call))


def retry_batch(call: Call, seen: Seen = NOTHING) -> BatchObject:
    """Runs the rows that failed again; new files of results take the place of the old ones at the end. Stale
    where the batch is not as it was seen.
    """
    from nightshift.producer import retry  # loads Arrow, which most servers never need

    with call.ledger.transaction() as connection:
        found = _get(connection, call)
        again = create.is_retry(call.headers) or bool(seen.values)
        begun = again and found.state in GOES_ON
        cut_off = begun and api_batch_retry.goes_on(connection, found.id)
        if begun and not cut_off:
            return _seen(connection, found)  # the first try has come through
        job = jobs.get(connection, found.job_id)
        has_input = files.get(connection, found.tenant, found.input_file_id) is not None
        if cut_off and job is not None:
            pass  # the first try may have died in the middle: the rest of its rows is put back now
        elif why := never_again(found, job, has_input=has_input):
            seen.check({"state": found.state})
            raise ApiError(409, why, param="id", code="nothing_to_retry", retried=False)
    assert job is not None

    def allowed(connection: Connection) -> None:
        access.refuse_spent(connection, found.tenant)
        access.refuse_more_rows(connection, found.tenant, job.id, again=True)
        now = api_batches.locked(connection, found.tenant, found.id)
        if now is not None and not cut_off:
            seen.check({"state": now.state})

    settings = call.context.settings
    retry.retry(
        call.ledger, job, failed=True, dead=True, kind=None, settings=settings, allowed=allowed
    )
    with call.ledger.transaction() as connection:
        return _seen(connection, _get(connection, call))


def never_again(batch: ApiBatch, job: Job | None, *, has_input: bool) -> str | None:
    """Why a batch cannot be tried again, in one sentence; None where it can. A failed batch may have no
    failed rows: its results could not be written.
    """
    if batch.state not in (ApiBatchStatus.COMPLETED, ApiBatchStatus.FAILED):
        return f"the batch is {batch.state}: one that is completed or failed can be tried again"
    if job is None:
        return "the batch has no job, or its job was deleted: create a batch of the file again"
    if job.archived_at is not None:
        return "the rows of the batch are archived: create a batch of the file again"
    if not has_input:
        return (
            f"the file {batch.input_file_id} is deleted or expired: its rows cannot be read again"
        )
    if batch.state is ApiBatchStatus.COMPLETED and not batch.rows_failed:
        return "no row of the batch has failed"
    return None


def _get(connection: Connection, call: Call) -> ApiBatch:
    found = api_batches.get(connection, call.caller.tenant, call.path["id"])
    if found is None:
        raise not_found("batch", call.path["id"])
    return found


def _seen(connection: Connection, batch: ApiBatch) -> BatchObject:
    runs = batch.job_id is not None and not batch.state.over
    progress = jobs.progress(connection, batch.job_id) if runs and batch.job_id else None
    return objects.batch(batch, objects.counts(batch, progress))


GOES_ON = (ApiBatchStatus.IN_PROGRESS, ApiBatchStatus.FINALIZING)
"""States of a batch that was tried again and is not over."""

ROUTES: list[Route] = [
    route("POST", "/v1/batches", create_batch, takes=JSON_OBJECT),
    route("GET", "/v1/batches", list_batches, "viewer", query=("limit", "after")),
    route("GET", "/v1/batches/{id}", retrieve_batch, "viewer"),
    route("POST", "/v1/batches/{id}/cancel", cancel_batch),
    route("POST", "/v1/batches/{id}/retry", retry_batch, slow=plans),
]
