"""What `verify` asks: whether what the ledger says of a job agrees with itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.statements import statement

IDLE_SECONDS = 10
"""A transaction of Nightshift that has been idle for longer was left open by a defect."""

BROKEN_ATTEMPTS = statement(__file__, "broken_attempts")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the batches that are not split cover the dataset.

    `rows` counts a row once for each batch that has it, `distinct_rows` once; `first` and `stop`
    bound them and `ranges` says in how many pieces they lie.
    """

    rows: int
    distinct_rows: int
    first: int
    stop: int
    ranges: int


def coverage(connection: Connection, job_id: int) -> Coverage:
    """Every row in exactly one batch means: rows, distinct_rows and stop agree, in one range."""
    statement = text("""
        WITH live AS (
            SELECT unnest(rows) AS piece FROM batches
            WHERE job_id = :id AND state <> 'split'
        ), covered AS (SELECT unnest(range_agg(piece)) AS piece FROM live)
        SELECT (SELECT coalesce(sum(upper(piece) - lower(piece)), 0)::bigint FROM live) AS rows,
               coalesce(sum(upper(piece) - lower(piece)), 0)::bigint AS distinct_rows,
               coalesce(min(lower(piece)), 0) AS first, coalesce(max(upper(piece)), 0) AS stop,
               count(*) AS ranges
        FROM covered
    """)
    return Coverage(**connection.execute(statement, {"id": job_id}).mappings().one())


def rows_of_batches(connection: Connection, job_id: int) -> Iterator[RowRanges]:
    """The rows of each batch that is not split."""
    statement = text("SELECT rows FROM batches WHERE job_id = :id AND state <> 'split'")
    yield from connection.scalars(statement, {"id": job_id}, execution_options={"yield_per": 1000})


def miscounted(connection: Connection, job_id: int) -> dict[str, tuple[int, int]]:
    """Counters that differ from a recount of the batches in the same snapshot, as
    (counter, recount). Done and failed rows are counted as the trigger of migration 0001 does.
    """
    statement = text("""
        WITH kept AS (
            SELECT *, CASE WHEN part_name IS NULL THEN 0
                           ELSE row_count - redo_count - rows_failed END AS good,
                   CASE WHEN part_name IS NOT NULL
                        THEN rows_failed + (state = 'dead')::int * redo_count
                        WHEN state = 'dead' THEN row_count ELSE 0 END AS bad
            FROM batches WHERE job_id = :id AND state <> 'split'
        )
        SELECT 1 AS source, sum(rows_total) AS rows_total, sum(rows_done) AS rows_done,
               sum(rows_failed) AS rows_failed, sum(batches_pending) AS batches_pending,
               sum(batches_queued) AS batches_queued, sum(batches_leased) AS batches_leased,
               sum(batches_done) AS batches_done, sum(batches_dead) AS batches_dead,
               sum(prompt_tokens) AS prompt_tokens, sum(output_tokens) AS output_tokens,
               sum(rows_queued) AS rows_queued, sum(rows_leased) AS rows_leased
        FROM job_counters WHERE job_id = :id
        UNION ALL
        SELECT 2, sum(row_count), sum(good), sum(bad),
               count(*) FILTER (WHERE state = 'pending'),
               count(*) FILTER (WHERE state = 'queued'),
               count(*) FILTER (WHERE state = 'leased'),
               count(*) FILTER (WHERE state = 'done'),
               count(*) FILTER (WHERE state = 'dead'),
               sum(prompt_tokens), sum(output_tokens),
               sum(row_count) FILTER (WHERE state = 'queued'),
               sum(row_count) FILTER (WHERE state = 'leased')
        FROM kept
        ORDER BY source
    """)
    found = connection.execute(statement, {"id": job_id})
    counters, recount = found.mappings().all()
    pairs = {name: (int(counters[name] or 0), int(recount[name] or 0)) for name in counters}
    return {name: pair for name, pair in pairs.items() if name != "source" and pair[0] != pair[1]}


def miscounted_versions(connection: Connection, job_id: int) -> dict[int, tuple[int, int]]:
    """Versions whose counted rows differ from a recount of the live parts in the same snapshot, as
    (counter, recount).
    """
    statement = text("""
        WITH live AS MATERIALIZED (
            SELECT rows - coalesce(redo, '{}') AS rows, version_id, kept_versions
            FROM batches WHERE job_id = :id AND part_name IS NOT NULL AND state <> 'split'
              AND (version_id IS NOT NULL OR kept_versions IS NOT NULL)
        ), kept AS (
            SELECT (e ->> 'version')::bigint AS version, (e ->> 'rows')::int8multirange * live.rows AS rows
            FROM live CROSS JOIN LATERAL jsonb_array_elements(live.kept_versions) AS e
        ), pieces AS (
            SELECT version_id AS version, 1 AS sign, rows FROM live
            UNION ALL
            SELECT version, 1, rows FROM kept
            UNION ALL
            SELECT live.version_id, -1, (e ->> 'rows')::int8multirange * live.rows
            FROM live CROSS JOIN LATERAL jsonb_array_elements(live.kept_versions) AS e
        ), recount AS (
            SELECT version, sum(sign * (upper(piece) - lower(piece))) AS rows
            FROM pieces CROSS JOIN LATERAL unnest(rows) AS piece GROUP BY version
        ), counters AS (
            SELECT version_id AS version, sum(rows) AS rows FROM version_counters
            WHERE job_id = :id GROUP BY version_id
        )
        SELECT version, coalesce(c.rows, 0)::bigint AS counted, coalesce(r.rows, 0)::bigint AS recounted
        FROM counters c FULL JOIN recount r USING (version)
        WHERE version IS NOT NULL AND coalesce(c.rows, 0) <> coalesce(r.rows, 0) ORDER BY version
    """)
    found = connection.execute(statement, {"id": job_id})
    return {row.version: (row.counted, row.recounted) for row in found}


def unlisted(connection: Connection, job_id: int) -> tuple[int, int]:
    """Failed rows as the counters have them, and as failed_rows lists them in the same snapshot."""
    statement = text("""
        SELECT (SELECT coalesce(sum(rows_failed), 0)::bigint FROM job_counters
                WHERE job_id = :id) AS counted,
               (SELECT count(*) FROM failed_rows WHERE job = :id) AS listed
    """)
    found = connection.execute(statement, {"id": job_id}).one()
    return found.counted, found.listed


def orphaned_leases(connection: Connection, job_id: int) -> list[Row]:
    """Leased batches whose lease ran out or whose owner is ended or unknown."""
    statement = text("""
        SELECT b.id AS batch, b.attempt, b.owner, b.lease_expires_at < now() AS expired,
               coalesce(w.state, 'unknown') AS worker_state
        FROM batches b LEFT JOIN workers w ON w.id = b.owner
        WHERE b.job_id = :id AND b.state = 'leased'
          AND (b.lease_expires_at < now() OR w.id IS NULL OR w.state = 'ended')
        ORDER BY b.id
    """)
    return list(connection.execute(statement, {"id": job_id}).mappings())


def broken_attempts(connection: Connection, job_id: int, limit: int = 1000) -> list[Row]:
    """Batches whose attempts do not explain their leases: batch and what is wrong.

    A child of a split begins to count at its parent's attempt. The done child of a drain has no
    lease of its own: it ended with its parent's, whose outcome is `split`. A retry that was given
    up leaves the batch done by an earlier attempt.
    """
    found = connection.execute(BROKEN_ATTEMPTS, {"id": job_id, "limit": limit})
    return list(found.mappings())


def idle_transactions(connection: Connection) -> list[Row]:
    """Transactions that a Nightshift session left open: pid, and seconds since it did anything.

    A transaction without a snapshot or a lock stops nobody and is left out: a process may be
    frozen between BEGIN and the limits that would end its session.
    """
    statement = text("""
        SELECT pid, extract(epoch FROM clock_timestamp() - state_change)::float8 AS idle_seconds
        FROM pg_stat_activity a
        WHERE application_name = 'nightshift' AND datname = current_database()
          AND state LIKE 'idle in transaction%'
          AND (backend_xmin IS NOT NULL OR EXISTS (
              SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid'))
          AND state_change < clock_timestamp() - make_interval(secs => :idle)
        ORDER BY pid
    """)
    return list(connection.execute(statement, {"idle": IDLE_SECONDS}).mappings())
