"""Entries of a manifest: which rows and bytes each live part has, and who made it with what."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row

PARTS = """
    SELECT b.part_name AS name, b.row_count AS rows, b.rows_failed,
           nullif(b.redo_count, 0) AS rows_open, b.part_bytes AS bytes,
           b.part_checksum AS sha256, b.id AS batch, b.attempt,
           coalesce(a.worker_id, p.worker_id, b.owner) AS worker,
           coalesce(a.engine, p.engine) AS engine,
           coalesce(a.engine_version, p.engine_version) AS engine_version,
           w.code_version, b.prompt_tokens, b.output_tokens, b.seq, lower(b.rows) AS first_row,
           coalesce(a.claimed_at, p.claimed_at) AS claimed_at,
           coalesce(a.ended_at, p.ended_at) AS ended_at,
           CASE WHEN b.attempt > 1 THEN (
               SELECT json_agg(json_build_object(
                          'attempt', e.attempt, 'worker', e.worker_id, 'engine', e.engine,
                          'engine_version', e.engine_version) ORDER BY e.attempt)
               FROM attempts e
               WHERE e.batch_id = b.id AND e.attempt < b.attempt AND e.outcome = 'done') END
               AS earlier_attempts
    FROM batches b
    LEFT JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
    LEFT JOIN attempts p ON a.batch_id IS NULL AND p.batch_id = b.parent_id
                        AND p.attempt = b.attempt
    LEFT JOIN workers w ON w.id = coalesce(a.worker_id, p.worker_id)
    WHERE b.job_id = :id AND b.seq >= :first AND b.seq < :stop
      AND b.part_name IS NOT NULL AND b.state <> 'split'
"""
"""The live parts of some roots, with who made them.

The done child of a drain had no lease of its own: the attempt of its parent stands for it.
`earlier_attempts` made the rows of a part that did not run again.
"""

PARTS_IN_ORDER = text(f"{PARTS} ORDER BY b.seq, lower(b.rows)")
"""The live parts in dataset order."""

ENTRIES_IN_ORDER = text(f"""
    SELECT json_strip_nulls(row_to_json(entry))::text FROM ({PARTS}) AS entry
    ORDER BY entry.seq, entry.first_row
""")
"""The live parts in dataset order, each as JSON."""


def rows_between(connection: Connection, job_id: int, first: int, stop: int) -> list[Row]:
    """The live parts of the roots `first` <= seq < `stop` in dataset order, one row each."""
    found = connection.execute(PARTS_IN_ORDER, {"id": job_id, "first": first, "stop": stop})
    return list(found.mappings())


def entries_between(connection: Connection, job_id: int, first: int, stop: int) -> list[str]:
    """The same parts, each as its JSON object of a manifest, without what is null.

    Postgres makes the JSON, which takes a minute less than Python for a million parts.
    """
    found = connection.execute(ENTRIES_IN_ORDER, {"id": job_id, "first": first, "stop": stop})
    return list(found.scalars())


def revision(connection: Connection, job_id: int) -> str | None:
    """The revision that the job's model resolved to; None before its first load, and where there
    is none.
    """
    statement = text("""
        SELECT e.revision FROM jobs j JOIN engines e USING (pool, engine_key) WHERE j.id = :id
    """)
    found: str | None = connection.scalar(statement, {"id": job_id})
    return found


def makers(connection: Connection, job_id: int) -> list[Row]:
    """The engines and versions that finished batches of the job, and the code around them."""
    statement = text("""
        SELECT DISTINCT had.engine, had.engine_version, w.code_version FROM (
            SELECT DISTINCT worker_id, engine, engine_version FROM attempts
            WHERE job_id = :id AND outcome IN ('done', 'split')
        ) AS had LEFT JOIN workers w ON w.id = had.worker_id
        ORDER BY 1, 2, 3
    """)
    return list(connection.execute(statement, {"id": job_id}).mappings())
