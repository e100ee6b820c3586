"""What decides whether a job moves, and what became of its leases; and who keeps the fleet going."""

from collections.abc import Collection

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row

SLOTS = text("""
    SELECT s.host, s.slot, s.gpus, s.state, s.engine_key, s.serves, s.gpu_figures,
           s.pool, s.supervisor, s.worker_id, p.engine_key AS planned_key,
           c.slot IS NOT NULL AS cordoned, coalesce(c.drains, false) AS drains,
           (SELECT k.name FROM cordons k
            WHERE (k.kind, k.name) IN (('host', s.host), ('worker', s.supervisor),
                                       ('worker', concat_ws('/', s.supervisor, s.slot)))
            ORDER BY k.kind, length(k.name) LIMIT 1) AS cordon, c.since AS cordoned_since,
           extract(epoch FROM now() - w.started_at)::float8 AS child_seconds,
           extract(epoch FROM now() - s.seen_at)::float8 AS silent_seconds,
           j.id AS job, j.name AS job_name, j.priority,
           extract(epoch FROM j.finish_by - now())::float8 AS due_seconds
    FROM slots s
    LEFT JOIN slot_plans p ON p.supervisor = s.supervisor AND p.slot = s.slot
    LEFT JOIN cordoned_slots c ON c.supervisor = s.supervisor AND c.slot = s.slot
    LEFT JOIN workers w ON w.id = s.worker_id
    -- Of several jobs with the engine, the one that the engine works for first.
    LEFT JOIN LATERAL (
        SELECT id, name, priority, finish_by FROM jobs
        WHERE pool = s.pool AND engine_key = s.engine_key AND state = 'running'
        ORDER BY priority DESC, id LIMIT 1
    ) AS j ON true
    WHERE (CAST(:pools AS text[]) IS NULL OR s.pool = ANY (CAST(:pools AS text[])))
      AND s.seen_at > now() - make_interval(secs => :alive)
    ORDER BY s.pool, s.host, s.supervisor, s.slot
""")
"""Living slots with the engine that each has and should have, and a job that needs the engine."""

POOLS = text("""
    SELECT DISTINCT s.pool FROM slots s
    WHERE coalesce(s.serves, :engine_key) = :engine_key AND s.state <> 'lost'
      AND s.seen_at > now() - make_interval(secs => :alive)
      AND NOT EXISTS (SELECT FROM cordoned_slots c
                      WHERE c.supervisor = s.supervisor AND c.slot = s.slot)
    ORDER BY s.pool
""")
"""Pools of living machines that may load an engine, and take work."""

LIVING_SECONDS = 60.0
"""A machine or a reaper that was silent for longer counts as gone, as in the view job_progress."""

PACE = text("""
    SELECT (SELECT load_seconds FROM engines e
            WHERE e.pool = j.pool AND e.engine_key = j.engine_key) AS load_seconds,
           (SELECT extract(epoch FROM now() - max(ended_at))::float8 FROM attempts a
            WHERE a.job_id = j.id AND a.outcome IN ('done', 'split')) AS seconds_since_part,
           (SELECT extract(epoch FROM now() - min(claimed_at))::float8
            FROM batches b JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
            WHERE b.job_id = j.id AND b.state = 'leased') AS oldest_lease_seconds
    FROM jobs j WHERE j.id = :job_id
""")
"""How a job goes on: since when its leases run, when its last part came, how long a load takes."""

ATTEMPT = """
    SELECT b.seq, a.batch_id AS batch, a.attempt, w.host, w.slot, a.worker_id AS worker,
           a.engine, a.engine_version, a.woken, a.claimed_at, a.ended_at,
           extract(epoch FROM coalesce(a.ended_at, now()) - a.claimed_at)::float8 AS seconds,
           a.outcome, coalesce(a.row_count, b.row_count) AS rows, a.rows_failed, a.prompt_tokens,
           a.output_tokens, a.error, w.state AS worker_state, w.error AS worker_error,
           w.ended_at AS worker_ended_at, w.code_version
"""

ATTEMPTS = text(
    ATTEMPT
    + """
    FROM attempts a JOIN batches b ON b.id = a.batch_id LEFT JOIN workers w ON w.id = a.worker_id
    WHERE a.job_id = :job_id
      AND (CAST(:outcome AS text) IS NULL OR coalesce(a.outcome, 'running') = :outcome)
      AND (CAST(:seq AS integer) IS NULL OR b.seq = :seq)
    ORDER BY a.claimed_at DESC, a.batch_id DESC, a.attempt DESC LIMIT :limit
"""
)
"""Leases of a job, the newest first."""

RECENT = text(
    """
    WITH a AS MATERIALIZED (
        (SELECT * FROM attempts WHERE job_id = :job_id AND outcome IN ('done', 'split')
         ORDER BY ended_at DESC LIMIT :limit)
        UNION ALL
        (SELECT * FROM attempts WHERE job_id = :job_id AND outcome IN ('failed', 'released', 'lost')
         ORDER BY ended_at DESC LIMIT :limit)
        UNION ALL
        (SELECT * FROM attempts WHERE ended_at IS NULL AND (batch_id, attempt) IN (
            SELECT id, attempt FROM batches WHERE state = 'leased' AND job_id = :job_id
            ORDER BY id DESC LIMIT :limit))
    )
    """
    + ATTEMPT
    + """
    FROM (SELECT * FROM a ORDER BY claimed_at DESC, batch_id DESC, attempt DESC LIMIT :limit) AS a
    JOIN batches b ON b.id = a.batch_id LEFT JOIN workers w ON w.id = a.worker_id
    ORDER BY a.claimed_at DESC, a.batch_id DESC, a.attempt DESC
"""
)
"""The latest leases of a job, by indexes alone: however many a job had."""

OF_BATCH = text(
    ATTEMPT
    + """, lower(b.rows) AS first_row, b.state AS batch_state, b.row_count AS batch_rows
    FROM batches b LEFT JOIN attempts a ON a.batch_id = b.id LEFT JOIN workers w ON w.id = a.worker_id
    WHERE b.job_id = :job_id AND b.seq = :seq
    ORDER BY b.id DESC, a.attempt DESC LIMIT :limit
"""
)
"""The leases of the batches at one place of the dataset, by indexes alone; a batch without a lease has one row."""

OUTCOMES = text("""
    SELECT coalesce(outcome, 'running') AS outcome, count(*) AS attempts
    FROM attempts WHERE job_id = :job_id GROUP BY 1 ORDER BY 2 DESC, 1
""")
"""How many leases of a job ended how."""

RATES = text("""
    SELECT worker_id AS worker, sum(rows_run)::bigint AS rows_run,
           sum(engine_microseconds)::float8 / 1e6 AS engine_seconds
    FROM job_spending
    WHERE worker_id IN (SELECT id FROM workers WHERE state <> 'ended') GROUP BY worker_id
""")
"""What each living child has run so far, and in how much time."""

REAPERS = text("""
    SELECT name, host, code_version, started_at,
           extract(epoch FROM now() - seen_at)::float8 AS silent_seconds
    FROM reapers ORDER BY seen_at DESC
""")
"""Every reaper that was not told to leave, the last seen first."""

VERSIONS = text("""
    SELECT code_version, count(*) AS children FROM workers
    WHERE state <> 'ended' AND seen_at > now() - make_interval(secs => :alive)
      AND code_version IS NOT NULL
    GROUP BY code_version ORDER BY 2 DESC
""")
"""The code of the living children that have told it."""

MODELS = text("""
    SELECT DISTINCT ON (engine_key) engine_key,
           coalesce(spec #>> '{engine,model}', spec #>> '{engine,callable}') AS model
    FROM jobs
    WHERE engine_key = ANY (CAST(:keys AS text[]))
      AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
    ORDER BY engine_key, id DESC
""")
"""The model, or the callable, of engines that jobs have or had."""

FOREIGN = text("SELECT id FROM jobs WHERE id = ANY(:ids) AND tenant <> :tenant")
"""Jobs of others."""


def slots(connection: Connection, pools: Collection[str] | None = None) -> list[Row]:
    """The slots of living machines, of some pools or of all."""
    given = {"pools": None if pools is None else list(pools), "alive": LIVING_SECONDS}
    return list(connection.execute(SLOTS, given).mappings())


def pools(connection: Connection, engine_key: str) -> list[str]:
    """The pools with living slots that may have this engine, and are not cordoned."""
    given = {"engine_key": engine_key, "alive": LIVING_SECONDS}
    return list(connection.scalars(POOLS, given))


def pace(connection: Connection, job_id: int) -> Row:
    """How a job goes on."""
    return connection.execute(PACE, {"job_id": job_id}).mappings().one()


def attempts(
    connection: Connection,
    job_id: int,
    *,
    limit: int | None,
    outcome: str | None = None,
    seq: int | None = None,
) -> list[Row]:
    """The latest leases of a job, all without a `limit`; of one outcome ("running": none yet), of the
    batches with one number.
    """
    given = {"job_id": job_id, "limit": limit, "outcome": outcome, "seq": seq}
    return list(connection.execute(ATTEMPTS, given).mappings())


def recent(connection: Connection, job_id: int, limit: int) -> list[Row]:
    """About the latest leases of a job, the newest first, in a time that does not grow with their number."""
    return list(connection.execute(RECENT, {"job_id": job_id, "limit": limit}).mappings())


def of_batch(connection: Connection, job_id: int, seq: int, limit: int) -> list[Row]:
    """The leases of the batch at a place of the dataset, and of the batches into which it was split, the newest first;
    a batch that was never claimed has one row without a lease. None for a place that no batch has.
    """
    given = {"job_id": job_id, "seq": seq, "limit": limit}
    return list(connection.execute(OF_BATCH, given).mappings())


def outcomes(connection: Connection, job_id: int) -> dict[str, int]:
    """How many leases of a job ended how, "running" included."""
    found = connection.execute(OUTCOMES, {"job_id": job_id})
    return {row.outcome: row.attempts for row in found}


def rates(connection: Connection) -> dict[str, tuple[int, float]]:
    """Rows run and seconds at work of each living child, by its id."""
    return {
        row.worker: (row.rows_run, row.engine_seconds) for row in connection.execute(RATES).all()
    }


def reapers(connection: Connection) -> list[Row]:
    """The reapers that are known, with the seconds since each was seen."""
    return list(connection.execute(REAPERS).mappings())


def code_versions(connection: Connection) -> dict[str, int]:
    """Living children by the version of their code."""
    found = connection.execute(VERSIONS, {"alive": LIVING_SECONDS})
    return {row.code_version: row.children for row in found}


def is_arranged(connection: Connection, job_id: int) -> bool:
    """Whether rows of the job are read from an arranged copy. Then its parts are not in dataset order."""
    statement = text("""
        SELECT EXISTS (SELECT FROM input_files WHERE job_id = :id AND arranged IS NOT NULL)
    """)
    return bool(connection.scalar(statement, {"id": job_id}))


def models(connection: Connection, keys: Collection[str], tenant: str | None) -> dict[str, str]:
    """The models by engine key, as specs name them; of a tenant those of its own jobs. Reads the table of jobs
    to its end: callers keep what was found.
    """
    found = connection.execute(MODELS, {"keys": list(keys), "tenant": tenant})
    return {row.engine_key: row.model for row in found if row.model}


def foreign(connection: Connection, tenant: str | None, ids: Collection[int]) -> frozenset[int]:
    """Those of the jobs that the tenant does not see; none with `tenant` None."""
    if tenant is None or not ids:
        return frozenset()
    return frozenset(connection.scalars(FOREIGN, {"ids": list(ids), "tenant": tenant}))
