"""A planned file that changed: its batches run again over the new version."""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from sqlalchemy import text

from nightshift.common.descriptor import Locator, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.ledger.connection import Connection
from nightshift.common.text import counted, counted_batches, plural

FIND_FILE = text("""
    SELECT f.file_index, f.format, f.row_count, f.first_row, f.arranged,
           (SELECT count(*) FROM batches b
            WHERE b.job_id = f.job_id AND b.file_index = f.file_index AND b.state = 'leased'
           ) AS leased
    FROM input_files f WHERE f.job_id = :id AND f.uri = :uri
""")
"""One file of a job, and how many of its batches somebody works on."""

FORGET_ERRORS = text("""
    DELETE FROM row_errors e USING batches b
    WHERE e.job_id = :id AND e.batch_id = b.id AND b.job_id = :id AND b.file_index = :file_index
""")
"""Errors of rows of the old version."""

DIGEST = text("""
    SELECT encode(sha256(convert_to(coalesce(range_agg(piece), '{}')::text, 'UTF8')), 'hex')
    FROM (SELECT unnest(rows) AS piece FROM batches
          WHERE job_id = :id AND file_index = :file_index AND state <> 'split') AS live
""")
"""SHA-256 of the rows of a file that the job has: as text there may be many of them."""

PARTS = text("""
    SELECT part_name FROM batches
    WHERE job_id = :id AND file_index = :file_index AND part_name IS NOT NULL
""")
"""Parts with answers for the old version."""

OPEN_BATCHES = text("""
    WITH pieces AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:rows AS bigint[]), CAST(:offsets AS bigint[]),
                             CAST(:stops AS bigint[])) AS piece (row, byte_offset, stop)
    ), chosen AS MATERIALIZED (
        SELECT id, lower(rows) AS first, upper(rows) AS stop FROM batches
        WHERE job_id = :id AND file_index = :file_index AND state <> 'split'
        ORDER BY id FOR UPDATE
    ), placed AS (
        -- The bytes of every piece of the new version that holds a row of the batch.
        SELECT c.id, p.* FROM chosen c LEFT JOIN LATERAL (
            SELECT min(row) AS locator_row, min(byte_offset) AS byte_offset,
                   max(stop) - min(byte_offset) AS byte_length
            FROM (SELECT row, byte_offset, stop, lead(row) OVER (ORDER BY row) AS next_row
                  FROM pieces) AS q
            WHERE q.row < c.stop AND coalesce(q.next_row, c.stop) > c.first) AS p ON true
    )
    UPDATE batches b
    SET state = 'pending', failures = 0, losses = 0, not_before = NULL, owner = NULL,
        last_error = NULL, rank = NULL, redo = NULL, redo_count = 0, part_name = NULL,
        part_bytes = NULL, part_checksum = NULL, rows_failed = 0, prompt_tokens = 0,
        output_tokens = 0, locator_row = placed.locator_row, byte_offset = placed.byte_offset,
        byte_length = placed.byte_length
    FROM placed WHERE b.id = placed.id
""")
"""Makes every batch of a file pending as if it were new: same rows, other bytes."""

UPDATE_FILE = text("""
    UPDATE input_files SET size = :size, fingerprint = :fingerprint
    WHERE job_id = :id AND file_index = :file_index
""")
"""The facts of the new version."""


def _digest(rows: Iterable[tuple[int, int]], first_row: int) -> str:
    """SHA-256 of such rows as Postgres writes them."""
    found, separator = sha256(b"{"), b""
    for start, stop in rows:
        found.update(separator + f"[{first_row + start},{first_row + stop})".encode())
        separator = b","
    found.update(b"}")
    return found.hexdigest()


def reopen(
    connection: Connection,
    job_id: int,
    new: SourceFile,
    pieces: Sequence[Locator],
    taken: Iterable[tuple[int, int]] | None = None,
) -> list[str]:
    """Replaces a file by its new version, whose rows all run again; returns the names of its parts,
    which nobody needs after COMMIT. `pieces` are the bytes of a file of lines, with its first row at 0;
    none for another format. `taken` are the rows that match the condition of the job, as ranges in order, with
    the first row of the file at 0; None for a job without one. The caller holds the row of the job.

    BadInput where the new version has another number of rows or other rows that match, since each row of a
    job keeps its `row_index`, for an arranged job, and while a batch of the file is leased.
    """
    found = connection.execute(FIND_FILE, {"id": job_id, "uri": new.uri}).one()
    if found.arranged is not None:
        raise BadInput(
            f"the rows of {new.uri} are arranged (batch.arrange) and stand in batches with rows of all "
            "files: put the old file back, or submit a new job"
        )
    if found.row_count != new.rows:
        raise BadInput(
            f"{new.uri} has {counted(new.rows, 'row')} and had {found.row_count:,}: each row of a job keeps "
            "its row_index, so put the old file back and append the new one under another name, or "
            "submit a new job"
        )
    if found.leased:
        raise BadInput(
            f"{counted_batches(found.leased)} of {new.uri} {plural(found.leased, 'is', 'are')} being worked on: wait until they are over, "
            f"or `nightshift pause {job_id}` first"
        )
    file = {"id": job_id, "file_index": found.file_index}
    if taken is not None and connection.scalar(DIGEST, file) != _digest(taken, found.first_row):
        raise BadInput(
            f"other rows of {new.uri} match input.where than before: the batches of a job keep their rows, so "
            "put the old file back, or submit a new job"
        )
    old_parts = list(connection.scalars(PARTS, file))
    connection.execute(FORGET_ERRORS, file)
    connection.execute(
        OPEN_BATCHES,
        {
            **file,
            "rows": [found.first_row + piece.first_row for piece in pieces],
            "offsets": [piece.byte_offset for piece in pieces],
            "stops": [piece.byte_offset + piece.byte_length for piece in pieces],
        },
    )
    connection.execute(UPDATE_FILE, {**file, "size": new.size, "fingerprint": new.fingerprint})
    return old_parts
