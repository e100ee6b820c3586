"""The live parts of a job: which part holds which rows, in dataset order."""

from collections.abc import Sequence

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.connection import Connection, Row


def roots(connection: Connection, job_id: int) -> int:
    """How many root batches the job has; they are numbered by `seq` from 0."""
    return int(
        connection.scalar(
            text("SELECT coalesce(max(seq) + 1, 0) FROM batches WHERE job_id = :id"),
            {"id": job_id},
        )
        or 0
    )


def parts_between(connection: Connection, job_id: int, first: int, stop: int) -> list[Row]:
    """The live parts of the roots `first` <= seq < `stop` in dataset order, with where their rows
    came from (for `batches.descriptor`). Rows in `redo` run again: their lines do not count.

    In pages, because the client takes longer to decode a million of them than a transaction may
    stay idle.
    """
    statement = text("""
        SELECT b.seq, b.id AS batch, b.attempt, b.owner AS worker, b.state, b.rows,
               b.row_count, b.redo, b.redo_count, b.part_name,
               b.part_bytes, b.part_checksum, b.rows_failed, b.prompt_tokens, b.output_tokens,
               b.locator_row, b.byte_offset, b.byte_length, f.uri, f.format, f.size,
               f.fingerprint, f.row_count AS file_rows, f.first_row
        FROM batches b JOIN input_files f USING (job_id, file_index)
        WHERE b.job_id = :id AND b.seq >= :first AND b.seq < :stop
          AND b.part_name IS NOT NULL AND b.state <> 'split'
        ORDER BY b.seq, lower(b.rows)
    """)
    found = connection.execute(statement, {"id": job_id, "first": first, "stop": stop})
    return list(found.mappings())


def part_names_between(
    connection: Connection, job_id: int, first: int, stop: int
) -> list[tuple[str, int]]:
    """Name and batch alone of the same parts, in no order: a tenth of the work."""
    statement = text("""
        SELECT part_name, id FROM batches
        WHERE job_id = :id AND seq >= :first AND seq < :stop
          AND part_name IS NOT NULL AND state <> 'split'
    """)
    found = connection.execute(statement, {"id": job_id, "first": first, "stop": stop})
    return [(name, batch) for name, batch in found]


def parts_holding(connection: Connection, job_id: int, indices: Sequence[int]) -> list[Row]:
    """The live parts that hold these rows, each row with its part and what
    `batches.descriptor` wants, by row index.
    """
    statement = text("""
        SELECT row_index, b.id, b.part_name, b.rows, b.locator_row, b.byte_offset,
               b.byte_length, f.uri, f.format, f.size, f.fingerprint,
               f.row_count AS file_rows, f.first_row
        FROM batches b
        JOIN unnest(CAST(:indices AS bigint[])) AS row_index ON b.rows @> row_index
        JOIN input_files f USING (job_id, file_index)
        WHERE b.job_id = :id AND b.part_name IS NOT NULL AND b.state <> 'split'
        ORDER BY b.seq, b.id, row_index
    """)
    return list(connection.execute(statement, {"id": job_id, "indices": list(indices)}).mappings())


def part_is_live(connection: Connection, job_id: int, part_name: str) -> bool:
    """Whether the ledger names this part now; a retry or a split may have replaced it."""
    statement = text("""
        SELECT EXISTS (SELECT FROM batches WHERE job_id = :id AND part_name = :name
                       AND state <> 'split')
    """)
    return bool(connection.scalar(statement, {"id": job_id, "name": part_name}))


def finished_rows(connection: Connection, job_id: int) -> RowRanges:
    """The rows that have a line that counts; one range when the job is finished."""
    statement = text("""
        SELECT coalesce(range_agg(piece), '{}') AS rows FROM (
            SELECT unnest(rows - coalesce(redo, '{}')) AS piece FROM batches
            WHERE job_id = :id AND part_name IS NOT NULL AND state <> 'split'
        ) AS live
    """)
    found: RowRanges = connection.execute(statement, {"id": job_id}).scalar_one()
    return found
