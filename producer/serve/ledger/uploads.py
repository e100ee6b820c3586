"""Uploads in parts: an upload, its parts, and the file that they become."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

LIFE_SECONDS = 3600.0
"""An upload that is not completed by then has expired."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload; `bytes` is what its file will have."""

    id: str
    state: str
    purpose: str
    filename: str
    mime_type: str
    bytes: int
    expires_after_seconds: int | None
    file_id: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part whose bytes are all at its place."""

    id: str
    bytes: int
    uri: str
    created_at: datetime


COLUMNS = """
    id, CASE WHEN state = 'pending' AND expires_at < now() THEN 'expired' ELSE state END AS state,
    purpose, filename, mime_type, bytes, expires_after_seconds, file_id, created_at, expires_at
"""

INSERT = text(
    """
    INSERT INTO api_uploads (id, tenant, purpose, filename, mime_type, bytes,
                             expires_after_seconds, expires_at)
    VALUES (:id, :tenant, :purpose, :filename, :mime_type, :bytes, :expires_after,
            now() + make_interval(secs => :life))
    RETURNING """
    + COLUMNS
)
"""One upload."""

LOCKED = text(
    "SELECT " + COLUMNS + " FROM api_uploads WHERE id = :id AND tenant = :tenant FOR UPDATE"
)
"""An upload of a tenant, which nobody else changes until the end of the transaction."""

PARTS = text("""
    SELECT id, bytes, uri, created_at FROM api_upload_parts
    WHERE upload_id = :id AND state = 'ready' AND id = ANY (CAST(:parts AS text[]))
""")
"""Some parts of an upload."""

TAKE_UNWANTED = text("""
    UPDATE api_upload_parts SET touched_at = now() WHERE id IN (
        SELECT p.id FROM api_upload_parts p JOIN api_uploads u ON u.id = p.upload_id
        WHERE (u.state <> 'pending' OR u.expires_at < now()) AND p.touched_at < now() - interval '1 minute'
        ORDER BY p.id LIMIT :most FOR UPDATE OF p SKIP LOCKED)
    RETURNING id, uri
""")
"""Parts of uploads that are over: their bytes stand in the file, or nobody wants them."""


FORGET = text("""
    DELETE FROM api_uploads WHERE id IN (
        SELECT id FROM api_uploads u WHERE expires_at < now() - make_interval(days => :days)
          AND NOT EXISTS (SELECT FROM api_upload_parts p WHERE p.upload_id = u.id)
        LIMIT :most)
""")
"""Uploads that are over for long, and whose parts are gone."""


def insert(
    connection: Connection,
    id: str,
    tenant: str,
    *,
    purpose: str,
    filename: str,
    mime_type: str,
    size: int,
    expires_after: int | None,
) -> Upload:
    """Begins an upload of `size` bytes."""
    given = {
        "id": id,
        "tenant": tenant,
        "purpose": purpose,
        "filename": filename,
        "mime_type": mime_type,
        "bytes": size,
        "expires_after": expires_after,
        "life": LIFE_SECONDS,
    }
    return Upload(**connection.execute(INSERT, given).mappings().one())


def locked(connection: Connection, tenant: str, id: str) -> Upload | None:
    """The upload, which nobody else changes until the end of the transaction."""
    row = connection.execute(LOCKED, {"id": id, "tenant": tenant}).mappings().one_or_none()
    return None if row is None else Upload(**row)


def keep(connection: Connection, id: str) -> None:
    """A pending upload that is being put together does not expire meanwhile."""
    statement = text("""
        UPDATE api_uploads SET expires_at = greatest(expires_at, now() + make_interval(secs => :life))
        WHERE id = :id AND state = 'pending'
    """)
    connection.execute(statement, {"id": id, "life": LIFE_SECONDS})


def receive_part(
    connection: Connection, id: str, upload_id: str, uri: str, reserved: int | None = None
) -> None:
    """Notes that the bytes of a part come to `uri`, at most `reserved` of them."""
    statement = text("""
        INSERT INTO api_upload_parts (id, upload_id, uri, bytes)
        VALUES (:id, :upload_id, :uri, :reserved)
    """)
    given = {"id": id, "upload_id": upload_id, "uri": uri, "reserved": reserved}
    connection.execute(statement, given)


def parts_so_far(connection: Connection, upload_id: str) -> tuple[int, int]:
    """Parts of an upload, those that come in included, and their bytes."""
    statement = text("""
        SELECT count(*) AS parts, coalesce(sum(bytes), 0)::bigint AS bytes FROM api_upload_parts
        WHERE upload_id = :id
    """)
    row = connection.execute(statement, {"id": upload_id}).one()
    return row.parts, row.bytes


def part_ready(connection: Connection, id: str, size: int) -> datetime | None:
    """The `size` bytes of a part are all there; None where the part is gone."""
    statement = text("""
        UPDATE api_upload_parts SET state = 'ready', bytes = :size WHERE id = :id
        RETURNING created_at
    """)
    found: datetime | None = connection.scalar(statement, {"id": id, "size": size})
    return found


def parts(connection: Connection, upload_id: str, ids: Sequence[str]) -> dict[str, PartFile]:
    """Those of some parts that the upload has, by id."""
    found = connection.execute(PARTS, {"id": upload_id, "parts": list(ids)}).mappings()
    return {row["id"]: PartFile(**row) for row in found}


def end(connection: Connection, id: str, state: str, file_id: str | None = None) -> bool:
    """Completes or cancels a pending upload; False where it is not pending any more."""
    statement = text("""
        UPDATE api_uploads SET state = :state, file_id = :file_id
        WHERE id = :id AND state = 'pending'
    """)
    given = {"id": id, "state": state, "file_id": file_id}
    return connection.execute(statement, given).rowcount == 1


def take_unwanted(connection: Connection, most: int) -> list[tuple[str, str]]:
    """Takes at most `most` parts whose bytes are to go, by id and place."""
    return [(row.id, row.uri) for row in connection.execute(TAKE_UNWANTED, {"most": most})]


def forget_part(connection: Connection, id: str) -> None:
    """The bytes of a part are gone, and its row goes."""
    connection.execute(text("DELETE FROM api_upload_parts WHERE id = :id"), {"id": id})


def forget(connection: Connection, days: int, most: int) -> int:
    """Deletes at most `most` uploads that ended so many days ago; returns how many. Their files stay."""
    return connection.execute(FORGET, {"days": days, "most": most}).rowcount
