"""Files of the HTTP API: where their bytes are, whose they are, how long they live."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection


@dataclass(frozen=True, slots=True)
class File:
    """A file that clients see; `bytes` long, at `uri`; `seq` is its place in lists."""

    id: str
    seq: int
    tenant: str
    purpose: str
    filename: str
    bytes: int
    uri: str
    created_at: datetime
    expires_at: datetime | None


RECEIVE = text("""
    INSERT INTO api_files (id, tenant, uri, bytes) VALUES (:id, :tenant, :uri, :reserved)
""")
"""A file whose bytes are about to come; nobody sees it."""

TOUCH = text("UPDATE api_files SET touched_at = now() WHERE id = :id AND state = 'receiving'")
"""Says that the bytes of a file still come."""

READY = text("""
    UPDATE api_files SET state = 'ready', purpose = :purpose, filename = :filename, bytes = :bytes,
        created_at = now(), expires_at = now() + make_interval(secs => :expires_after)
    WHERE id = :id AND state = 'receiving'
    RETURNING id, seq, tenant, purpose, filename, bytes, uri, created_at, expires_at
""")
"""The bytes are all there: from now on the file is seen."""

GET = text("""
    SELECT id, seq, tenant, purpose, filename, bytes, uri, created_at, expires_at FROM api_files
    WHERE id = :id AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND state = 'ready'
      AND (expires_at IS NULL OR expires_at > now())
""")
"""A file of a tenant, or of any."""

PLACE = text("""
    SELECT seq FROM api_files WHERE id = :id AND tenant = :tenant AND state <> 'receiving'
""")
"""Where a list goes on, although the last file of its page is gone by now."""

LISTED = text("""
    SELECT id, seq, tenant, purpose, filename, bytes, uri, created_at, expires_at FROM api_files
    WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND state = 'ready'
      AND (expires_at IS NULL OR expires_at > now())
      AND (CAST(:purpose AS text) IS NULL OR purpose = :purpose)
      AND CASE WHEN :descending THEN seq < :after ELSE seq > :after END
    ORDER BY CASE WHEN :descending THEN -seq ELSE seq END
    LIMIT :limit
""")
"""A page of the files of a tenant, or of all, behind the place `after`."""

DELETE = text("""
    UPDATE api_files SET state = 'deleted', touched_at = '-infinity'
    WHERE id = :id AND tenant = :tenant AND state = 'ready'
""")
"""Nobody sees the file any more; a sweep removes its bytes, then its row."""

READERS = {
    "batch": """SELECT b.id FROM api_batches b WHERE b.input_file_id = {id}
        AND b.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')""",
    "job": """SELECT CAST(j.id AS text) FROM jobs j WHERE j.closed_at IS NULL
        AND strpos(CAST(j.spec -> 'input' -> 'uri' AS text), {id}) > 0""",
}
"""What may read a file, and the question for one that is open. An input that a page has uploaded has the
file's id in its name.
"""

READER = text(
    " UNION ALL ".join(
        f"(SELECT '{kind} ' || found.id FROM ({sql.format(id=':id')} LIMIT 1) AS found (id))"
        for kind, sql in READERS.items()
    )
    + " LIMIT 1"
)
"""An open batch or job that reads the file."""

TAKE_UNWANTED = text(f"""
    UPDATE api_files SET state = 'deleted', touched_at = now()
    WHERE id IN (
        SELECT id FROM api_files f
        WHERE (state = 'deleted' AND touched_at < now() - make_interval(secs => :again)
               OR state = 'receiving' AND touched_at < now() - make_interval(secs => :silent)
               OR state = 'ready' AND expires_at < now()
                  AND NOT EXISTS ({READERS["batch"].format(id="f.id")})
                  AND NOT (f.purpose = 'user_data' AND EXISTS ({READERS["job"].format(id="f.id")})))
        ORDER BY seq LIMIT :most FOR UPDATE SKIP LOCKED)
    RETURNING id, uri
""")
"""Files that nobody wants: deleted, expired, or received by a process that gave no sign for long."""

FORGET = text("DELETE FROM api_files WHERE id = :id AND state <> 'ready'")
"""The row of a file whose bytes are gone."""

ABANDON = text("""
    UPDATE api_files SET state = 'deleted', touched_at = '-infinity'
    WHERE id = ANY (CAST(:ids AS text[])) AND state = 'receiving'
""")
"""Files whose bytes never all came: a sweep removes what there is of them."""

LOCKED = text("SELECT true FROM api_files WHERE id = :id AND state = 'ready' FOR SHARE")
"""A file that nobody deletes before the end of the transaction."""

AGAIN_SECONDS = 60.0
"""A file whose bytes could not be removed is tried again after this time."""

LAST_SEQ = 2**63 - 1


def receive(
    connection: Connection, id: str, tenant: str, uri: str, reserved: int | None = None
) -> None:
    """Notes that the bytes of a new file come to `uri`, at most `reserved` of them, which count as stored
    until the file is `ready`; until then nobody sees the file.
    """
    connection.execute(RECEIVE, {"id": id, "tenant": tenant, "uri": uri, "reserved": reserved})


def touch(connection: Connection, id: str) -> None:
    """Says that the bytes of a file still come, so that nobody sweeps them away."""
    connection.execute(TOUCH, {"id": id})


def ready(
    connection: Connection,
    id: str,
    *,
    purpose: str,
    filename: str,
    size: int,
    expires_after: float | None,
) -> File | None:
    """The `size` bytes of a file are all at its place: the file is seen from this commit on, for `expires_after`
    seconds. None where it is not being received any more.
    """
    given = {"id": id, "purpose": purpose, "filename": filename, "bytes": size}
    found = connection.execute(READY, {**given, "expires_after": expires_after}).mappings()
    row = found.one_or_none()
    return None if row is None else File(**row)


def reader(connection: Connection, id: str) -> str | None:
    """An open batch or job that reads the file, such as "batch batch_7"; None where nothing does."""
    found: str | None = connection.scalar(READER, {"id": id})
    return found


def keep(connection: Connection, id: str) -> bool:
    """Holds off whoever deletes the file until the end of the transaction; False where it is deleted."""
    return bool(connection.scalar(LOCKED, {"id": id}))


def lock(connection: Connection, id: str) -> None:
    """Waits for every transaction that keeps the file, so that what it stores is seen from here on."""
    connection.execute(text("SELECT FROM api_files WHERE id = :id FOR UPDATE"), {"id": id})


def abandon(connection: Connection, ids: Sequence[str]) -> None:
    """The bytes of files that were on their way never come."""
    connection.execute(ABANDON, {"ids": list(ids)})


def delete(connection: Connection, tenant: str, id: str) -> bool:
    """Nobody sees the file any more; False where the tenant has no such file."""
    return connection.execute(DELETE, {"id": id, "tenant": tenant}).rowcount == 1


def take_unwanted(
    connection: Connection, most: int, silent_seconds: float
) -> Sequence[tuple[str, str]]:
    """Takes at most `most` files whose bytes are to go, by id and place. Those that are being received
    count once nobody has touched them for `silent_seconds`; from now on `ready` refuses them.
    """
    given = {"most": most, "silent": silent_seconds, "again": AGAIN_SECONDS}
    return [(row.id, row.uri) for row in connection.execute(TAKE_UNWANTED, given)]


def forget(connection: Connection, id: str) -> None:
    """The bytes of a file are gone, and its row goes."""
    connection.execute(FORGET, {"id": id})


def get(connection: Connection, tenant: str | None, id: str) -> File | None:
    """A file that the tenant sees; any with `tenant` None."""
    row = connection.execute(GET, {"id": id, "tenant": tenant}).mappings().one_or_none()
    return None if row is None else File(**row)


def place(connection: Connection, tenant: str, id: str) -> int | None:
    """The place in lists of a file of the tenant, also of one that was deleted a moment ago."""
    found: int | None = connection.scalar(PLACE, {"id": id, "tenant": tenant})
    return found


def listed(
    connection: Connection,
    tenant: str | None,
    *,
    limit: int,
    purpose: str | None = None,
    descending: bool = True,
    after: int | None = None,
) -> Sequence[File]:
    """At most `limit` files of a tenant, of all with `tenant` None, in the order of their making, behind
    the place `after`.
    """
    if after is None:
        after = LAST_SEQ if descending else 0
    given = {"tenant": tenant, "limit": limit, "purpose": purpose}
    found = connection.execute(LISTED, {**given, "descending": descending, "after": after})
    return [File(**row) for row in found.mappings()]
