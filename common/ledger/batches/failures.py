"""Failures: a batch that failed waits or is dead, and a dead batch gets an error part."""

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.batches import commits
from nightshift.common.ledger.batches.records import Lease, Part
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import messages

FAIL = text("""
    WITH failed AS (
        UPDATE batches
        SET failures = failures + 1, last_error = :error, lease_expires_at = NULL,
            state = CASE WHEN :permanent OR failures + 1 >= :max_attempts
                         THEN 'dead' ELSE 'pending' END,
            not_before = CASE WHEN :permanent OR failures + 1 >= :max_attempts THEN NULL
                              ELSE now() + make_interval(
                                  secs => :backoff_seconds * power(2, least(failures, 6))) END
        WHERE id = :id AND attempt = :attempt AND owner = :owner AND state = 'leased'
        RETURNING id, attempt
    ), ended AS (
        UPDATE attempts a SET ended_at = now(), outcome = 'failed', error = :error, row_count = 0
        FROM failed WHERE a.batch_id = failed.id AND a.attempt = failed.attempt
    )
    SELECT id FROM failed
""")
"""Charges a failure to a leased batch, dead or pending with backoff, and ends its attempt."""


def fail(
    connection: Connection,
    lease: Lease,
    error: str | BaseException,
    *,
    permanent: bool,
    max_attempts: int,
    backoff_seconds: float,
) -> None:
    """Charges a failure: pending with backoff (doubling), or dead when permanent or out of
    attempts.

    Raises LeaseLost when the fence does not match.
    """
    failed = connection.scalar(
        FAIL,
        {
            **lease.fence,
            "error": messages.stored(connection, lease.job_id, error),
            "permanent": permanent,
            "max_attempts": max_attempts,
            "backoff_seconds": backoff_seconds,
        },
    )
    if failed is None:
        raise lease.lost


def missing_error_parts(connection: Connection, job_id: int, limit: int) -> list[RowMapping]:
    """Dead batches that have no error part of their own yet, with what says where they are.

    One that died in a retry of some rows still names its old part: rows outside `redo` keep
    their answer, and the error part carries them over.
    """
    statement = text("""
        SELECT b.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows,
               f.first_row, f.arranged
        FROM batches b JOIN input_files f USING (job_id, file_index)
        WHERE b.job_id = :id AND b.state = 'dead'
          AND (b.part_name IS NULL OR b.redo IS NOT NULL)
        ORDER BY b.id LIMIT :limit
    """)
    return list(connection.execute(statement, {"id": job_id, "limit": limit}).mappings())


def name_error_part(connection: Connection, batch: RowMapping, part: Part) -> bool:
    """Names the error part of a dead batch; False when another reaper was faster."""
    statement = text("""
        UPDATE batches b SET part_name = :name, part_bytes = :bytes, part_checksum = :checksum,
               rows_failed = :rows_failed, prompt_tokens = :prompt_tokens,
               output_tokens = :output_tokens, redo = NULL, redo_count = 0, version_id = NULL,
               -- No version made the lines of its errors.
               kept_versions = CASE WHEN redo IS NOT NULL THEN kept_versions(b, redo, NULL) END
        WHERE id = :id AND attempt = :attempt AND state = 'dead'
          AND (part_name IS NULL OR redo IS NOT NULL)
        RETURNING id
    """)
    named = connection.scalar(
        statement,
        {
            **part.facts,
            "id": batch["id"],
            "attempt": batch["attempt"],
            "rows_failed": len(part.errors),
        },
    )
    if named is None:
        return False
    commits.replace_errors(connection, batch["job_id"], batch["id"], batch["rows"], part.errors)
    return True
