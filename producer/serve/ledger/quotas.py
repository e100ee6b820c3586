"""What a tenant has open at once, and stored."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

RESERVED = text("""
    SELECT coalesce(sum(reserved_rows), 0)::bigint + (
               SELECT coalesce(sum(p.rows_total - p.rows_done - p.rows_failed), 0)::bigint
               FROM jobs j JOIN job_progress p ON p.job = j.id
               WHERE j.tenant = :tenant AND j.tenant <> '' AND j.state IN ('running', 'paused')
                 AND j.id <> :besides
                 AND NOT EXISTS (SELECT FROM api_batches b WHERE b.job_id = j.id)
           ) AS rows,
           coalesce(sum(reserved_tokens), 0)::bigint AS tokens
    FROM api_batches
    WHERE tenant = :tenant AND state IN ('in_progress', 'finalizing', 'cancelling')
      AND job_id <> :besides
""")
"""Rows of open batches, open rows of other jobs that are not over, and estimated tokens of batches. A job that watches
its input is never over: its finished rows must not count."""

AGAIN = text("""
    SELECT p.rows_total - p.rows_done AS rows_open,
           ceil(coalesce(b.estimated_tokens, 0) * (p.rows_total - p.rows_done)::numeric
                / greatest(p.rows_total, 1))::bigint AS tokens
    FROM job_progress p LEFT JOIN api_batches b ON b.job_id = p.job WHERE p.job = :id
""")
"""Rows of a job without an answer, and the tokens that rows of a batch may use, in proportion."""


def again(connection: Connection, job_id: int) -> tuple[int, int]:
    """Return how many rows and estimated tokens a job has open once it runs again: those without an answer, also rows
    that never ran. Only batches have tokens.
    """
    row = connection.execute(AGAIN, {"id": job_id}).one()
    return row.rows_open, row.tokens


def reserved(connection: Connection, tenant: str, *, besides: int) -> tuple[int, int]:
    """Return how many rows a tenant has open in batches and jobs, and the estimated tokens of its batches, `besides`
    those of one job. Under the lock of the tenant nobody adds to them.
    """
    row = connection.execute(RESERVED, {"tenant": tenant, "besides": besides}).one()
    return row.rows, row.tokens


STORED = text("""
    SELECT count(*) AS files, coalesce(sum(bytes), 0)::bigint + (
               SELECT coalesce(sum(CASE WHEN j.closed_at IS NOT NULL THEN j.stored_bytes ELSE (
                   SELECT sum(b.part_bytes) / greatest(sum(b.row_count), 1)
                          * (SELECT sum(rows_done + rows_failed) FROM job_counters WHERE job_id = j.id)
                   FROM (SELECT batch_id FROM attempts
                         WHERE job_id = j.id AND outcome IN ('done', 'split')
                         ORDER BY ended_at DESC LIMIT 100) AS last
                   JOIN batches b ON b.id = last.batch_id
                   WHERE b.part_name IS NOT NULL AND b.state <> 'split') END), 0)::bigint
               FROM jobs j
               WHERE j.tenant = :tenant AND j.stored_bytes IS NOT NULL
           ) AS bytes
    FROM api_files WHERE tenant = :tenant AND state <> 'deleted'
""")
"""Files of a tenant, those that come in included; to their bytes come those of results in the store. A closed job has the sum of its parts. Of an open one that is the rows that are
over, times the bytes a row of the parts that came last, a hundred at most: a job of a million batches is asked for
as little as a small one.
"""


def stored(connection: Connection, tenant: str) -> tuple[int, int]:
    """Files of a tenant, and their bytes with those of results in the store; of those that come in, what they
    have reserved. Under the lock of the tenant nobody adds to the files. Results of open jobs are estimated.
    """
    row = connection.execute(STORED, {"tenant": tenant}).one()
    return row.files, row.bytes


COUNT_RESULTS = text("""
    UPDATE jobs SET stored_bytes = 0
    WHERE id = :id AND stored_bytes IS NULL AND starts_with(output_uri, :outputs || '/')
""")
"""From now on the results of a job count as stored, if they lie below the folder of outputs."""

KEEPS_RESULTS = text("SELECT EXISTS (SELECT FROM jobs WHERE id = :id AND stored_bytes IS NOT NULL)")


def count_results(connection: Connection, job_id: int, outputs: str) -> bool:
    """Lets the results of a new job count as stored, where they lie below this folder; whether they do."""
    return connection.execute(COUNT_RESULTS, {"id": job_id, "outputs": outputs}).rowcount == 1


def keeps_results(connection: Connection, job_id: int) -> bool:
    """Whether the results of a job lie in the store and count there."""
    return bool(connection.scalar(KEEPS_RESULTS, {"id": job_id}))
