"""What the first commits decide for a job: a pause for too many failed rows, its output schema."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs.states import pause

JUDGE_AFTER_ROWS = 200
"""Rows that must be over before a job's share of failed rows is judged."""


def judge_failures(connection: Connection, job_id: int) -> bool:
    """Pauses a running job whose share of failed rows is above its limit; True if it did."""
    share = connection.execute(
        text("""
            SELECT sum(c.rows_failed) - j.judged_failed AS failed,
                   sum(c.rows_done + c.rows_failed) - j.judged_done - j.judged_failed AS over,
                   j.max_failed_fraction AS allowed
            FROM jobs j JOIN job_counters c ON c.job_id = j.id
            WHERE j.id = :id AND j.state = 'running' GROUP BY j.id
        """),
        {"id": job_id},
    ).one_or_none()
    if share is None or share.over < JUDGE_AFTER_ROWS:
        return False
    if share.failed <= share.allowed * float(share.over):
        return False
    pause(
        connection,
        job_id,
        f"{share.failed} of the last {share.over} rows failed, more than "
        f"limits.max_failed_fraction {share.allowed:g} allows: see `nightshift errors {job_id}`, "
        f"then `nightshift resume {job_id}`",
    )
    return True


def fix_output_schema(connection: Connection, job_id: int, schema: bytes) -> bytes:
    """Sets the output schema if none is set (compare-and-set); returns the one that holds."""
    held = connection.scalar(
        text("""
            UPDATE jobs SET output_schema = coalesce(output_schema, :schema) WHERE id = :id
            RETURNING output_schema
        """),
        {"id": job_id, "schema": schema},
    )
    return bytes(held)
