"""Error parts: which dead batches have none yet, and the commit of one that finish wrote."""

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.batches import row_errors
from nightshift.common.ledger.batches.records import Part
from nightshift.common.ledger.connection import Connection


def missing(connection: Connection, job_id: int, limit: int) -> list[RowMapping]:
    """Dead batches that have no error part of their own yet, with what says where they are.

    One that died in a retry of some rows still names its old part: rows outside `redo` keep
    their answer, and the error part carries them over.
    """
    found = connection.execute(
        text("""
            SELECT b.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows,
                   f.first_row
            FROM batches b JOIN input_files f USING (job_id, file_index)
            WHERE b.job_id = :id AND b.state = 'dead'
              AND (b.part_name IS NULL OR b.redo IS NOT NULL)
            ORDER BY b.id LIMIT :limit
        """),
        {"id": job_id, "limit": limit},
    )
    return list(found.mappings())


def name_part(connection: Connection, batch: RowMapping, part: Part) -> bool:
    """Names the error part of a dead batch; False when another reaper was faster."""
    named = connection.scalar(
        text("""
            UPDATE batches SET part_name = :name, part_bytes = :bytes, part_checksum = :checksum,
                   rows_failed = :rows_failed, prompt_tokens = :prompt_tokens,
                   output_tokens = :output_tokens, redo = NULL, redo_count = 0
            WHERE id = :id AND attempt = :attempt AND state = 'dead'
              AND (part_name IS NULL OR redo IS NOT NULL)
            RETURNING id
        """),
        {
            **part.facts,
            "id": batch["id"],
            "attempt": batch["attempt"],
            "rows_failed": len(part.errors),
        },
    )
    if named is None:
        return False
    row_errors.replace(connection, batch["job_id"], batch["id"], batch["rows"], part.errors)
    return True
