"""Which rows of a job were sent to an engine, of those without an outcome."""

from collections.abc import Iterator

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.connection import Connection

UNFINISHED = text("""
    SELECT b.rows, a.unsent FROM attempts a JOIN batches b ON b.id = a.batch_id
    WHERE a.job_id = :job_id AND a.outcome IS DISTINCT FROM 'done'
""")
"""The attempts that left rows of their batches without an outcome."""


def sent(connection: Connection, job_id: int) -> Iterator[RowRanges]:
    """Rows that attempts may have sent to their engines, without those of finished batches: one piece for each attempt.
    A row that is in no piece and has no outcome was never sent. Attempts whose child died count as if all their rows
    had been sent.
    """
    for rows, unsent in connection.execute(UNFINISHED, {"job_id": job_id}):
        yield rows if unsent is None else rows.minus(unsent)
