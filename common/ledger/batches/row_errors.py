"""Row errors of parts: those of a new part replace those that its rows had."""

from collections.abc import Sequence

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.connection import Connection
from nightshift.common.row_errors import RowError

CLEAR = text("""
    DELETE FROM row_errors e WHERE e.job_id = :job_id
    AND e.row_index BETWEEN :low AND :high AND CAST(:rows AS int8multirange) @> e.row_index
""")
"""The errors of some rows of a job; low and high let Postgres use the primary key."""

INSERT = text("""
    INSERT INTO row_errors (job_id, row_index, batch_id, row_id, kind, message)
    SELECT * FROM unnest(CAST(:job_id AS bigint[]), CAST(:row_index AS bigint[]),
                         CAST(:batch_id AS bigint[]), CAST(:row_id AS text[]),
                         CAST(:kind AS text[]), CAST(:message AS text[]))
""")
"""Errors of any number of rows, jobs and batches."""


def replace(
    connection: Connection,
    job_id: int,
    batch_id: int,
    rows: RowRanges,
    errors: Sequence[RowError],
) -> None:
    """Makes `errors` the only errors of the rows."""
    connection.execute(
        CLEAR,
        {
            "job_id": job_id,
            "rows": rows,
            "low": rows.ranges[0][0],
            "high": rows.ranges[-1][1] - 1,
        },
    )
    insert(connection, [(job_id, batch_id, error) for error in errors])


def insert(connection: Connection, errors: Sequence[tuple[int, int, RowError]]) -> None:
    """Adds (job, batch, error) of rows that have no error in the ledger yet."""
    if not errors:
        return
    connection.execute(
        INSERT,
        {
            "job_id": [job_id for job_id, _, _ in errors],
            "row_index": [error.row_index for _, _, error in errors],
            "batch_id": [batch_id for _, batch_id, _ in errors],
            "row_id": [error.row_id for _, _, error in errors],
            "kind": [error.kind.value for _, _, error in errors],
            "message": [error.message for _, _, error in errors],
        },
    )
