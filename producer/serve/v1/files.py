"""`/v1/files`: uploaded as a stream straight to the store, listed, deleted."""

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route

from nightshift.common import storage
from nightshift.common.errors import Retryable
from nightshift.common.ledger import audit_log
from nightshift.common.ledger.connection import Connection
from nightshift.common.validation import first_mistake
from nightshift.producer.serve import access, store_layout
from nightshift.producer.serve.calls import Call, route, streaming
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import files, ids
from nightshift.producer.serve.ledger.files import File
from nightshift.producer.serve.v1 import objects, paging
from nightshift.producer.serve.v1.create import ExpiresAfter
from nightshift.producer.serve.v1.multipart import FormWithFile, Sink
from nightshift.producer.serve.v1.schemas import FileDeleted, FileList, FileObject
from nightshift.producer.serve.writing import FileWriter

TOUCH_SECONDS = 60.0
"""Pause between two signs that the bytes of a file still come."""


async def create_file(request: Request, call: Call) -> FileObject:
    """Takes the bytes of a file as they come; the file is seen once all of them are stored."""

    def whole(form: FormWithFile) -> tuple[str, int]:
        purpose = form.fields.get("purpose")
        if purpose != "batch":
            raise ApiError(400, "purpose is not batch", param="purpose", code="invalid_purpose")
        return purpose, lifetime(call, _expires_after(form.fields))

    def place(file_id: str, _name: str) -> str:
        return store_layout.file(call.context.settings, call.caller.tenant, file_id)

    return objects.file(await received(request, call, place, whole))


async def received(
    request: Request,
    call: Call,
    place: Callable[[str, str], str],
    whole: Callable[[FormWithFile], tuple[str, int]],
) -> File:
    """Stores the file of a form as its bytes come, at the `place` for an id and the client's name of
    the file. At the end `whole` gives its purpose and the seconds that it lives, or refuses it.
    """
    file_id = ids.new("file-")
    async with AsyncExitStack() as stack:
        threads = await stack.enter_async_context(call.context.uploads.turn(call.caller.tenant))
        writer: FileWriter | None = None
        uri = ""

        async def begin() -> Sink:
            nonlocal writer, uri
            uri = place(file_id, form.filename or "")
            room = await call.run(_receive, call, file_id, uri)
            # From here on: what does not become a file reserves nothing.
            stack.push_async_exit(partial(_forgotten, call, file_id))
            writer = FileWriter(uri, call.context.settings.serve_max_file_bytes, threads, room=room)
            await stack.enter_async_context(writer)
            await writer.open()
            return _touching(call, file_id, writer)

        form = FormWithFile(request.headers, begin)
        await form.read(request.stream())
        if writer is None:
            raise ApiError(400, "the form has no file", param="file", code="missing_parameter")
        purpose, lives = whole(form)
        await writer.finish()
    made: File | None = await call.run(
        _seen,
        file_id,
        purpose=purpose,
        filename=form.filename,
        size=form.size,
        expires_after=lives,
    )
    if made is None:
        # The sweep has come before the last bytes, and would not come again.
        await run_in_threadpool(storage.delete, uri)
        raise ApiError(
            408, "the file came too slowly: nothing of it came for an hour", param="file"
        )
    return made


def _receive(connection: Connection, call: Call, file_id: str, uri: str) -> int | None:
    """Record that a file comes; return the bytes that its tenant has room for, None for any number."""
    most = call.context.settings.serve_max_file_bytes
    room = access.reserve_bytes(connection, call.caller, _sent_bytes(call.headers), most)
    files.receive(connection, file_id, call.caller.tenant, uri, room)
    return room


async def _forgotten(
    call: Call, file_id: str, kind: type[BaseException] | None, *_: object
) -> None:
    """Delete the row of a file that did not come whole, and so what it has reserved; if the ledger does not answer,
    a sweep does so later.
    """
    if kind is not None:
        with suppress(Retryable):
            await call.run(files.forget, file_id)


def _sent_bytes(headers: Mapping[str, str]) -> int | None:
    """The bytes that a request says it has; None where it does not say."""
    given = headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else None


def _seen(connection: Connection, file_id: str, **facts: Any) -> File | None:
    """`files.ready` of a file that a client has sent, which the audit log names."""
    found = files.ready(connection, file_id, **facts)
    if found is not None:
        detail = {
            "tenant": found.tenant,
            "filename": found.filename,
            "purpose": found.purpose,
            "bytes": found.bytes,
        }
        audit_log.record(connection, "file upload", subject=f"file {file_id}", detail=detail)
    return found


def _touching(call: Call, file_id: str, writer: FileWriter) -> Sink:
    """Writes pieces, and says now and then that they still come."""
    touched_at = time.monotonic()

    async def take(data: bytes) -> None:
        nonlocal touched_at
        await writer.write(data)
        if time.monotonic() - touched_at > TOUCH_SECONDS:
            await call.run(files.touch, file_id)
            touched_at = time.monotonic()

    return take


def lifetime(call: Call, given: ExpiresAfter | None) -> int:
    """The seconds that an uploaded file lives: as long as the client says, and no longer than the
    operator does.
    """
    longest = call.context.settings.serve_file_days * 86_400
    return longest if given is None else min(given.seconds, longest)


def _expires_after(fields: Mapping[str, str]) -> ExpiresAfter | None:
    """What the fields of a form say of the life of its file."""
    given = {
        name: fields[field]
        for name in ExpiresAfter.model_fields
        if (field := f"expires_after[{name}]") in fields
    }
    try:
        return ExpiresAfter.model_validate_strings(given) if given else None
    except ValidationError as error:
        said = f"expires_after: {first_mistake(error)[1]}"
        raise ApiError(400, said, param="expires_after", code="invalid_value") from error


def list_files(call: Call) -> FileList:
    """A page of files."""
    limit = paging.limit(call, default=10_000, most=10_000)
    descending = paging.descending(call)
    tenant, place = call.caller.tenant, None
    with call.ledger.transaction() as connection:
        if after := call.query.get("after"):
            place = files.place(connection, tenant, after)
            if place is None:
                raise ApiError(400, f"there is no file {after[:100]!r}", param="after")
        found = files.listed(
            connection,
            tenant,
            limit=limit + 1,
            purpose=call.query.get("purpose"),
            descending=descending,
            after=place,
        )
    return FileList.of([objects.file(row) for row in found[:limit]], has_more=len(found) > limit)


def retrieve_file(call: Call) -> FileObject:
    """One file."""
    return objects.file(_get(call))


def delete_file(call: Call) -> FileDeleted:
    """Deletes a file; one that an open batch reads stays."""
    tenant, id = call.caller.tenant, call.path["id"]
    with call.ledger.transaction() as connection:
        if files.get(connection, tenant, id) is None:
            raise not_found("file", id)
        files.lock(connection, id)
        reader = files.reader(connection, id)
        if reader is not None:
            raise ApiError(
                409,
                f"the {reader} reads the file: cancel that first, or wait for its end",
                param="id",
                code="file_in_use",
                retried=False,
            )
        if files.delete(connection, tenant, id):
            detail = {"tenant": tenant}
            audit_log.record(connection, "file delete", subject=f"file {id}", detail=detail)
    return FileDeleted(id=id, deleted=True)


def _get(call: Call) -> File:
    with call.ledger.transaction() as connection:
        found = files.get(connection, call.caller.tenant, call.path["id"])
    if found is None:
        raise not_found("file", call.path["id"])
    return found


LIST_QUERY = ("purpose", "limit", "order", "after")

FORM: dict[str, Any] = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "required": ["file", "purpose"],
            "properties": {
                "file": {"type": "string", "format": "binary"},
                "purpose": {"type": "string", "enum": ["batch"]},
                "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                "expires_after[seconds]": {"type": "integer"},
            },
        }
    }
}
"""The body of an upload."""

ROUTES: list[Route] = [
    streaming("POST", "/v1/files", create_file, takes=FORM),
    route("GET", "/v1/files", list_files, "viewer", query=LIST_QUERY),
    route("GET", "/v1/files/{id}", retrieve_file, "viewer"),
    route("DELETE", "/v1/files/{id}", delete_file),
]
