"""`/v1/batches`: made, seen, listed, cancelled. Nothing here reads a file or starts a job."""

import hashlib
import re
from typing import Any

from starlette.routing import Route

from nightshift.common.ledger import jobs
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.gateway import batch_steps, batches, files, ids
from nightshift.common.ledger.gateway.batches import Batch, BatchStatus, NewBatch
from nightshift.common.spec.tasks.requests import ENDPOINTS
from nightshift.producer.gateway.calls import JSON_OBJECT, Call, route
from nightshift.producer.gateway.errors import ApiError, not_found
from nightshift.producer.gateway.v1 import objects, paging
from nightshift.producer.gateway.v1.schemas import BatchList, BatchObject

WINDOW = re.compile(r"([1-9][0-9]{0,4})([mhd])")
UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86400}
LONGEST_WINDOW_SECONDS = 30 * 86400


def create_batch(call: Call) -> dict[str, Any]:
    """Makes a batch of a file; a reaper reads the file."""
    given = call.json()
    new = NewBatch(
        id=ids.new("batch_"),
        tenant=call.caller.tenant,
        endpoint=_endpoint(given),
        input_file_id=_text(given, "input_file_id"),
        completion_window=_text(given, "completion_window"),
        window_seconds=_window_seconds(given),
        metadata=given.get("metadata"),
        output_expires_seconds=(given.get("output_expires_after") or {}).get("seconds"),
        options=given.get("nightshift") or {},
        created_by=call.caller.name,
        request_hash=hashlib.sha256(call.body).digest(),
        idempotency_key=call.headers.get("idempotency-key"),
    )
    with call.ledger.transaction() as connection:
        file = files.get(connection, new.tenant, new.input_file_id)
        if file is None or file.purpose != "batch":
            raise ApiError(
                400,
                f"there is no file {new.input_file_id[:100]!r} of purpose batch",
                param="input_file_id",
                code="invalid_input_file_id",
            )
        made = batches.insert(connection, new)
        assert made is not None
        return _seen(connection, made)


def retrieve_batch(call: Call) -> dict[str, Any]:
    """One batch."""
    with call.ledger.transaction() as connection:
        return _seen(connection, _get(connection, call))


def list_batches(call: Call) -> dict[str, Any]:
    """A page of batches, the newest first."""
    limit = paging.limit(call, default=20, most=100)
    with call.ledger.transaction() as connection:
        before = batches.LAST_SEQ
        if after := call.query.get("after"):
            known = batches.get(connection, call.caller.tenant, after)
            if known is None:
                raise ApiError(400, f"there is no batch {after[:100]!r}", param="after")
            before = known.seq
        found = batches.listed(connection, call.caller.tenant, limit=limit + 1, before=before)
        rows = [_seen(connection, batch) for batch in found[:limit]]
    return objects.page(rows, has_more=len(found) > limit)


def cancel_batch(call: Call) -> dict[str, Any]:
    """Cancels a batch; what is done of it is delivered."""
    with call.ledger.transaction() as connection:
        found = batches.locked(connection, call.caller.tenant, call.path["id"])
        if found is None:
            raise not_found("batch", call.path["id"])
        if found.state in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            batch_steps.cancel(connection, found)
        elif found.state in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED):
            raise ApiError(
                409,
                f"the batch is {found.state} and cannot be cancelled",
                param="id",
                code="batch_over",
                retried=False,
            )
        return _seen(connection, _get(connection, call))


def _get(connection: Connection, call: Call) -> Batch:
    found = batches.get(connection, call.caller.tenant, call.path["id"])
    if found is None:
        raise not_found("batch", call.path["id"])
    return found


def _seen(connection: Connection, batch: Batch) -> dict[str, Any]:
    runs = batch.job_id is not None and not batch.state.over
    progress = jobs.progress(connection, batch.job_id) if runs and batch.job_id else None
    return objects.batch(batch, objects.counts(batch, progress))


def _endpoint(given: dict[str, Any]) -> str:
    endpoint = _text(given, "endpoint")
    if endpoint not in ENDPOINTS:
        raise ApiError(
            400,
            f"the endpoint {endpoint[:100]!r} is none of {', '.join(ENDPOINTS)}",
            param="endpoint",
            code="invalid_endpoint",
        )
    return endpoint


def _window_seconds(given: dict[str, Any]) -> float:
    window = _text(given, "completion_window")
    found = WINDOW.fullmatch(window)
    seconds = int(found[1]) * UNIT_SECONDS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW_SECONDS:
        raise ApiError(
            400,
            f"completion_window is {window[:50]!r}, and it is a number of minutes, hours or days up "
            "to 30d, such as 24h",
            param="completion_window",
            code="invalid_completion_window",
        )
    return float(seconds)


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError(400, f"{name} is missing or no text", param=name, code="missing_parameter")
    return value


ROUTES: list[Route] = [
    route("POST", "/v1/batches", create_batch, answers=BatchObject, takes=JSON_OBJECT),
    route(
        "GET", "/v1/batches", list_batches, "viewer", answers=BatchList, query=("limit", "after")
    ),
    route("GET", "/v1/batches/{id}", retrieve_batch, "viewer", answers=BatchObject),
    route("POST", "/v1/batches/{id}/cancel", cancel_batch, answers=BatchObject),
]
