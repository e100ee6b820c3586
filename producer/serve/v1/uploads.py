"""`/v1/uploads`: a large file in parts, put together when the client says that all have come."""

import hashlib
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nightshift.common import storage
from nightshift.common.errors import NightshiftError, StorageUnavailable
from nightshift.common.ledger import audit_log
from nightshift.common.text import counted
from nightshift.common.validation import first_mistake
from nightshift.producer.serve import access, store_layout
from nightshift.producer.serve.calls import (
    JSON_OBJECT,
    Call,
    route,
    streaming,
)
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import files, ids, uploads
from nightshift.producer.serve.ledger.files import File
from nightshift.producer.serve.ledger.uploads import PartFile, Upload
from nightshift.producer.serve.v1 import create, objects
from nightshift.producer.serve.v1.files import (
    forgotten,
    lifetime,
    seen,
    sent_bytes,
)
from nightshift.producer.serve.v1.multipart import FormWithFile, Sink
from nightshift.producer.serve.writing import FileWriter

MOST_PART_BYTES = 64 * 2**20
"""Largest part, as in the hosted API."""

MOST_PARTS = 10_000

PIECE_BYTES = 1024 * 1024


class CreateUpload(BaseModel):
    """The body of a create."""

    model_config = ConfigDict(extra="ignore", strict=True)

    filename: str = Field(min_length=1, max_length=1000)
    purpose: str
    bytes: int = Field(ge=0)
    mime_type: str = Field(max_length=200)
    expires_after: create.ExpiresAfter | None = None


class CompleteUpload(BaseModel):
    """The body of a complete: the parts in their order, and a checksum of the whole if wanted."""

    model_config = ConfigDict(extra="ignore", strict=True)

    part_ids: list[str] = Field(min_length=1, max_length=MOST_PARTS)
    md5: str | None = None


def create_upload(call: Call) -> dict[str, Any]:
    """Begins an upload."""
    given = _body(call, CreateUpload)
    assert isinstance(given, CreateUpload)
    if given.purpose != "batch":
        raise ApiError(400, "purpose is not batch", param="purpose", code="invalid_purpose")
    most = call.context.settings.serve_max_upload_bytes
    if given.bytes > most:
        raise ApiError(400, f"the file has more than {counted(most, 'byte')}", param="bytes")
    store_layout.root(call.context.settings)
    with call.ledger.transaction() as connection:
        room = access.reserve_bytes(connection, call.caller, given.bytes, most)
        if room < given.bytes:
            said = f"this tenant may store {counted(room, 'byte')} more"
            raise access.SpentOut(said, code="storage_limit_exceeded")
        made = uploads.insert(
            connection,
            ids.new("upload_"),
            call.caller.tenant,
            purpose=given.purpose,
            filename=given.filename,
            mime_type=given.mime_type,
            size=given.bytes,
            expires_after=lifetime(call, given.expires_after),
        )
        detail = {"tenant": call.caller.tenant, "filename": made.filename, "bytes": made.bytes}
        audit_log.record(connection, "upload create", subject=f"upload {made.id}", detail=detail)
    return _object(made)


async def add_part(request: Request, call: Call) -> Response:
    """Takes the bytes of a part as they come."""
    upload_id, part_id = call.path["id"], ids.new("part_")
    uri = store_layout.part(call.context.settings, call.caller.tenant, part_id)
    await call.run(_pending, call.caller.tenant, upload_id)
    async with AsyncExitStack() as stack:
        threads = await stack.enter_async_context(call.context.uploads.turn(call.caller.tenant))
        stack.push_async_exit(partial(forgotten, call, uploads.forget_part, part_id))
        writer = await stack.enter_async_context(FileWriter(uri, MOST_PART_BYTES, threads))

        async def begin() -> Sink:
            writer.room = await call.run(_receive_part, call, upload_id, part_id, uri)
            await writer.open()
            return writer.write

        form = FormWithFile(request.headers, begin, name="data")
        await form.read(request.stream())
        if form.filename is None:
            raise ApiError(400, "the form has no data", param="data", code="missing_parameter")
        await writer.finish()
    made = await call.run(uploads.part_ready, part_id, form.size)
    if made is None:
        # The upload is over, and a sweep has come before the last bytes.
        await run_in_threadpool(storage.delete, uri)
        raise not_found("upload", upload_id)
    return JSONResponse(
        {
            "id": part_id,
            "object": "upload.part",
            "created_at": objects.seconds(made),
            "upload_id": upload_id,
        }
    )


def _receive_part(connection: Any, call: Call, upload_id: str, part_id: str, uri: str) -> int:
    """Notes that a part comes; the bytes that its tenant has room for. What an upload has said that it has
    is reserved already.
    """
    found = _pending(connection, call.caller.tenant, upload_id)
    count, size = uploads.parts_so_far(connection, upload_id)
    if count >= MOST_PARTS:
        raise ApiError(400, f"an upload has at most {MOST_PARTS:,} parts", param="id")
    room = access.reserve_bytes(
        connection,
        call.caller,
        sent_bytes(call.headers),
        MOST_PART_BYTES,
        files=0,
        unused=max(0, found.bytes - size),
    )
    uploads.receive_part(connection, part_id, upload_id, uri, room)
    return room


def complete_upload(call: Call) -> dict[str, Any]:
    """Puts the parts together into a file."""
    given = _body(call, CompleteUpload)
    assert isinstance(given, CompleteUpload)
    tenant, upload_id = call.caller.tenant, call.path["id"]
    file_id = ids.new("file-")
    uri = store_layout.file(call.context.settings, tenant, file_id)
    with call.ledger.transaction() as connection:
        if create.is_retry(call.headers) and (known := _completed(connection, tenant, upload_id)):
            return known
        found = _pending(connection, tenant, upload_id)
        parts = _ordered(uploads.parts(connection, upload_id, given.part_ids), given.part_ids)
        total = sum(part.bytes for part in parts)
        if total != found.bytes:
            raise ApiError(
                400,
                f"the parts have {counted(total, 'byte')}, and the upload {found.bytes:,}",
                param="bytes",
            )
        files.receive(connection, file_id, tenant, uri)
        uploads.keep(connection, upload_id)
    try:
        checksum = join(call, upload_id, file_id, uri, parts)
    except (NightshiftError, OSError):
        # Another try may have completed the upload, and a sweep has its parts.
        with call.ledger.transaction() as connection:
            if known := _completed(connection, tenant, upload_id):
                return known
        raise
    if given.md5 is not None and given.md5.lower() != checksum:
        raise ApiError(400, f"md5 of the file is {checksum}", param="md5", code="checksum_mismatch")
    with call.ledger.transaction() as connection:
        if not uploads.end(connection, upload_id, "completed", file_id):
            if known := _completed(connection, tenant, upload_id):
                return known  # another try was faster; what this one has written is swept
            raise ApiError(400, "the upload is not pending any more", param="id")
        file = seen(
            connection,
            file_id,
            purpose=found.purpose,
            filename=found.filename,
            size=total,
            expires_after=found.expires_after_seconds,
        )
        if file is None:
            raise StorageUnavailable(f"a sweep has taken {file_id}, which came too slowly")
        done = uploads.locked(connection, tenant, upload_id)
    assert done is not None
    return _object(done, file)


def cancel_upload(call: Call) -> dict[str, Any]:
    """Ends an upload; its parts go."""
    with call.ledger.transaction() as connection:
        _pending(connection, call.caller.tenant, call.path["id"])
        uploads.end(connection, call.path["id"], "cancelled")
        subject, detail = f"upload {call.path['id']}", {"tenant": call.caller.tenant}
        audit_log.record(connection, "upload cancel", subject=subject, detail=detail)
        found = uploads.locked(connection, call.caller.tenant, call.path["id"])
    assert found is not None
    return _object(found)


def join(call: Call, upload_id: str, file_id: str, uri: str, parts: list[PartFile]) -> str:
    """Writes the bytes of the parts one behind the other; returns their MD5, as clients send it."""
    digest = hashlib.md5(usedforsecurity=False)

    def fill(sink: BinaryIO) -> None:
        for part in parts:
            with storage.open_input(part.uri, sequential=True) as handle:
                while piece := handle.read(PIECE_BYTES):
                    digest.update(piece)
                    sink.write(piece)
            with call.ledger.transaction() as connection:
                files.touch(connection, file_id)
                uploads.keep(connection, upload_id)

    storage.write_streamed(uri, fill)
    return digest.hexdigest()


def _pending(connection: Any, tenant: str, id: str) -> Upload:
    """The upload while parts may come; ApiError otherwise."""
    found = uploads.locked(connection, tenant, id)
    if found is None:
        raise not_found("upload", id)
    if found.state != "pending":
        raise ApiError(400, f"the upload is {found.state}", param="id", code="upload_over")
    return found


def _completed(connection: Any, tenant: str, id: str) -> dict[str, Any] | None:
    """The upload with its file, where an earlier try of the same request has completed it."""
    found = uploads.locked(connection, tenant, id)
    if found is None or found.file_id is None:
        return None
    return _object(found, files.get(connection, tenant, found.file_id))


def _ordered(found: dict[str, PartFile], wanted: list[str]) -> list[PartFile]:
    for place, id in enumerate(wanted):
        if id not in found or id in wanted[:place]:
            raise ApiError(
                400, f"there is no part {id[:100]!r}, or it comes twice", param="part_ids"
            )
    return [found[id] for id in wanted]


def _body(call: Call, shape: type[BaseModel]) -> BaseModel:
    try:
        return shape.model_validate(call.json())
    except ValidationError as error:
        place, why = first_mistake(error)
        raise ApiError(400, f"{place[:200]}: {why}", param=place[:200]) from error


def _object(upload: Upload, file: File | None = None) -> dict[str, Any]:
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": objects.seconds(upload.created_at),
        "expires_at": objects.seconds(upload.expires_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.state,
        "file": None if file is None else objects.file(file),
    }


PART_FORM: dict[str, Any] = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "required": ["data"],
            "properties": {"data": {"type": "string", "format": "binary"}},
        }
    }
}
"""The body of a part."""

ROUTES: list[Route] = [
    route("POST", "/v1/uploads", create_upload, takes=JSON_OBJECT),
    streaming("POST", "/v1/uploads/{id}/parts", add_part, takes=PART_FORM),
    route(
        "POST",
        "/v1/uploads/{id}/complete",
        complete_upload,
        takes=JSON_OBJECT,
        slow=lambda context: context.joins,
    ),
    route("POST", "/v1/uploads/{id}/cancel", cancel_upload),
]
