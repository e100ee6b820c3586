"""Pages of the OpenAI API: its batches, one batch with its errors and files, and every file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.errors import StorageUnavailable
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.producer.control.seen import Stale
from nightshift.producer.serve.calls import plans, reads
from nightshift.producer.serve.console import error_lines, render
from nightshift.producer.serve.console.error_lines import Head
from nightshift.producer.serve.console.failures import NO_FAILURES, Failures, Kinds
from nightshift.producer.serve.console.mending import refusal, seen
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    live,
    page,
    seen_at,
)
from nightshift.producer.serve.downloads import attachment
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import api_batches as batches
from nightshift.producer.serve.ledger import files
from nightshift.producer.serve.ledger.api_batches import ApiBatch, ApiBatchStatus
from nightshift.producer.serve.ledger.files import File
from nightshift.producer.serve.v1 import batches as api_batches
from nightshift.producer.serve.v1 import files as api_files
from nightshift.producer.serve.v1 import objects
from nightshift.producer.serve.v1.content import file_content

log = structlog.get_logger(__name__)

PAGE = 50

PURPOSES = ("batch", "batch_output")


@dataclass(frozen=True, slots=True)
class Shown:
    """A batch with its rows now, and the speed of its job, None where that does not run."""

    batch: ApiBatch
    counts: dict[str, int]
    rate: float | None
    left: float | None


def list_batches(visit: Visit) -> Response:
    """The page; its address holds the place in the list."""
    look = live_batches(visit)
    before = visit.number("before", batches.LAST_SEQ)
    query = f"before={before}" if before != batches.LAST_SEQ else ""
    return visit.page("batches.html", title="API batches", query=query, live=render.safe(look()))


def live_batches(visit: Visit) -> Callable[[], str]:
    """The rows of the page."""
    ledger, tenant = visit.ledger, visit.looker.scope
    before = visit.number("before", batches.LAST_SEQ)

    def look() -> str:
        with ledger.transaction() as connection:
            found = batches.listed(connection, tenant, limit=PAGE + 1, before=before)
            shown = _shown(connection, found[:PAGE])
        after = found[PAGE - 1].seq if len(found) > PAGE else None
        return render.fragment(
            "batches_live.html", shown=shown, after=after, everyone=tenant is None
        )

    return look


def show_batch(visit: Visit, status: int = 200, message: str | None = None) -> Response:
    """The page of one batch; with a `message` where a change was refused."""
    batch = _batch(visit)
    look = live_batch(visit)
    head, note = _head(visit, batch)
    return visit.page(
        "batch.html",
        status,
        message,
        title=f"API batch {batch.id}",
        batch=batch,
        live=render.safe(look()),
        head=head,
        note=note,
        by_cause=head is not None and not _known_groups(visit, batch),
    )


def _head(visit: Visit, batch: ApiBatch) -> tuple[Head | None, str]:
    """The beginning of the file of errors of a batch that is over, None where there is none; and why the file
    cannot be read.
    """
    if batch.error_file_id is None or not batch.state.over:
        return None, ""
    with visit.ledger.transaction() as connection:
        file = files.get(connection, visit.looker.scope, batch.error_file_id)
    if file is None:
        return None, ""
    try:
        return error_lines.head(file), ""
    except (FileNotFoundError, StorageUnavailable) as error:
        log.warning("error_file_unreadable", batch=batch.id, error=str(error))
        return None, "The file of errors cannot be read now."


def _known_groups(visit: Visit, batch: ApiBatch) -> bool:
    """Whether the live part says why rows failed; the ledger tells it until the job is archived or deleted."""
    with visit.ledger.transaction() as connection:
        failures = _failures(connection, visit.request.app.state.kinds, batch, batch.rows_failed)
    return bool(failures.groups)


def _failures(connection: Connection, kinds: Kinds, batch: ApiBatch, failed: int) -> Failures:
    if batch.job_id is None:
        return NO_FAILURES
    return kinds.of(connection, {"job": batch.job_id, "rows_failed": failed})


def live_batch(visit: Visit) -> Callable[[], str]:
    """What changes while the batch runs."""
    id, ledger, tenant = _batch(visit).id, visit.ledger, visit.looker.scope
    acts, kinds = visit.looker.acts, visit.request.app.state.kinds

    def look() -> str:
        seen = _seen(ledger, kinds, tenant, id)
        if seen is None:
            return render.fragment("gone.html", kind="batch", place="/batches")
        return render.fragment("batch_live.html", acts=acts, **seen)

    return look


def _seen(ledger: Ledger, kinds: Kinds, tenant: str | None, id: str) -> dict[str, Any] | None:
    """What the page shows of a batch now; None where the batch is gone."""
    with ledger.transaction() as connection:
        batch = batches.get(connection, tenant, id)
        if batch is None:
            return None
        (shown,) = _shown(connection, [batch])
        named = {
            "Requests": batch.input_file_id,
            "Answers": batch.output_file_id if batch.state.over else None,
            "Errors": batch.error_file_id if batch.state.over else None,
        }
        there: dict[str, File | None] = {
            kind: files.get(connection, tenant, file_id)
            for kind, file_id in named.items()
            if file_id is not None
        }
        failures = _failures(connection, kinds, batch, shown.counts["failed"])
        job = jobs.get(connection, batch.job_id)
    return {
        "shown": shown,
        "failures": failures,
        "unanswered": batch.rows_unanswered,
        "files": there,
        "may_cancel": batch.state in (ApiBatchStatus.VALIDATING, ApiBatchStatus.IN_PROGRESS),
        "may_retry": api_batches.never_again(batch, job, has_input=there["Requests"] is not None)
        is None,
    }


def move_batch(visit: Visit) -> Response:
    """Cancels the batch, or runs its failed rows again. Where it is no longer as the page showed it, the answer
    is the page of now, and says so.
    """
    batch, do = _batch(visit), visit.field("do")
    moves = {"cancel": api_batches.cancel_batch, "retry": api_batches.retry_batch}
    if do not in moves:
        raise ApiError(400, "do is not one of cancel and retry", param="do")
    try:
        moves[do](visit.call(batch.tenant), seen(visit))
    except Stale as stale:
        subject = f"batch {batch.id}"
        with visit.ledger.transaction() as connection:
            changes = audit_log.of_subject(connection, subject, visit.looker.scope)
        return show_batch(visit, 409, refusal(subject, stale, changes))
    return seen_at(f"/batches/{batch.id}")


def list_files(visit: Visit) -> Response:
    """Files that clients have sent, and files of results."""
    purpose = visit.query("purpose")
    purpose = purpose if purpose in PURPOSES else None
    with visit.ledger.transaction() as connection:
        found = files.listed(
            connection,
            visit.looker.scope,
            limit=PAGE + 1,
            purpose=purpose,
            after=visit.number("before", files.LAST_SEQ),
        )
    after = found[PAGE - 1].seq if len(found) > PAGE else None
    return visit.page(
        "files.html",
        title="Files",
        files=found[:PAGE],
        after=after,
        purpose=purpose,
        purposes=PURPOSES,
    )


def download_file(visit: Visit) -> Response:
    """The bytes of a file, as an attachment: a browser never shows them as a page."""
    file = _file(visit)
    answer = file_content(visit.call(file.tenant))
    answer.headers["content-disposition"] = attachment(file.filename)
    for name, value in render.HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def delete_file(visit: Visit) -> Response:
    """Deletes the file; one that an open batch reads stays."""
    api_files.delete_file(visit.call(_file(visit).tenant))
    return seen_at("/files")


def _shown(connection: Connection, found: list[ApiBatch]) -> list[Shown]:
    running = [each.job_id for each in found if each.job_id is not None and not each.state.over]
    rows = {row["job"]: row for row in job_pace.some(connection, running)} if running else {}
    shown = []
    for batch in found:
        row = None if batch.job_id is None else rows.get(batch.job_id)
        shown.append(
            Shown(
                batch,
                objects.counts(batch, row),
                None if row is None else row["rows_per_second"],
                None if row is None else row["eta_seconds"],
            )
        )
    return shown


def _batch(visit: Visit) -> ApiBatch:
    id = visit.request.path_params["id"]
    with visit.ledger.transaction() as connection:
        found = batches.get(connection, visit.looker.scope, id)
    if found is None:
        raise not_found("batch", id)
    return found


def _file(visit: Visit) -> File:
    id = visit.request.path_params["id"]
    with visit.ledger.transaction() as connection:
        found = files.get(connection, visit.looker.scope, id)
    if found is None:
        raise not_found("file", id)
    return found


ROUTES: list[Route] = [
    page("/batches", list_batches),
    live("/live/batches", live_batches),
    page("/batches/{id}", show_batch, slow=reads),
    live("/live/batches/{id}", live_batch),
    action("/batches/{id}", move_batch, slow=plans),
    page("/files", list_files),
    page("/files/{id}", download_file),
    action("/files/{id}/delete", delete_file),
]
