"""Pictures of jobs: what a look of a reaper notes, and what the page of a job draws.

Looks share nothing with commits. Whose turn it is says `next_at`, which is the fence of a look, too: who takes a turn
moves `next_at`, and writes only while it is still there. A job that is closed or opened again meanwhile is due anew.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row

MOST_CELLS = 400
"""Cells of the map of a dataset."""

TURN_SECONDS = 600.0
"""When a look that was cut off is made again."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A look that this process makes now; `fence` is the `next_at` that it has set."""

    job_id: int
    fence: datetime


TAKE = text("""
    UPDATE job_pictures SET next_at = clock_timestamp() + make_interval(secs => :seconds)
    WHERE job_id = (
        SELECT job_id FROM job_pictures p
        -- A last look in the future was made before the clock was set back.
        WHERE next_at IS NOT NULL AND (next_at <= now() OR told_at > now() + interval '1 minute')
          AND NOT EXISTS (SELECT FROM job_archives a WHERE a.job_id = p.job_id AND a.state <> 'kept')
          AND NOT EXISTS (SELECT FROM deletions d WHERE d.job_id = p.job_id)
        ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING job_id, next_at AS fence
""")
"""The job that has waited for longest; none that another reaper looks at."""

FACTS = text("""
    SELECT extract(epoch FROM now())::float8 AS now, j.closed_at IS NOT NULL AS is_closed,
           extract(epoch FROM coalesce(j.started_at, j.created_at))::float8 AS began,
           c.rows_total, c.rows_done, c.rows_failed,
           greatest(c.prompt_tokens, s.prompt_tokens) AS prompt_tokens, s.cached_tokens,
           greatest(c.output_tokens, s.output_tokens) AS output_tokens, s.reasoning_tokens,
           extract(epoch FROM p.seen_until)::float8 AS seen_until, p.series, p.lanes
    FROM jobs j JOIN job_pictures p ON p.job_id = j.id
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(rows_total), 0)::bigint AS rows_total,
               coalesce(sum(rows_done), 0)::bigint AS rows_done,
               coalesce(sum(rows_failed), 0)::bigint AS rows_failed,
               coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
               coalesce(sum(output_tokens), 0)::bigint AS output_tokens
        FROM job_counters WHERE job_id = j.id
    ) AS c
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
               coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
               coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
               coalesce(sum(reasoning_tokens), 0)::bigint AS reasoning_tokens
        FROM job_spending WHERE job_id = j.id
    ) AS s
    WHERE j.id = :id
""")
"""Running totals of a job, and what its picture has so far."""

ENDED = text("""
    SELECT b.seq, w.host, w.slot, a.worker_id AS worker, a.outcome,
           extract(epoch FROM w.started_at)::float8 AS started,
           extract(epoch FROM w.ready_at)::float8 AS ready,
           extract(epoch FROM a.claimed_at)::float8 AS claimed,
           extract(epoch FROM a.ended_at)::float8 AS ended,
           coalesce(a.row_count, 0) AS rows, coalesce(a.rows_failed, 0) AS failed
    FROM (
        (SELECT * FROM attempts WHERE job_id = :id AND outcome IN ('done', 'split')
           AND ended_at >= to_timestamp(:since) AND ended_at < to_timestamp(:until)
         ORDER BY ended_at LIMIT :most)
        UNION ALL
        (SELECT * FROM attempts WHERE job_id = :id AND outcome IN ('failed', 'released', 'lost')
           AND ended_at >= to_timestamp(:since) AND ended_at < to_timestamp(:until)
         ORDER BY ended_at LIMIT :most)
    ) AS a
    JOIN batches b ON b.id = a.batch_id LEFT JOIN workers w ON w.id = a.worker_id
    ORDER BY a.ended_at LIMIT :most
""")
"""Leases that ended in a time, the first ones, by indexes alone; times in seconds since 1970."""

CELLS = text("""
    SELECT seq / width AS cell, sum(row_count)::bigint AS rows, sum(done)::bigint AS done,
           sum(failed)::bigint AS failed,
           coalesce(sum(row_count - done - failed) FILTER (WHERE state = 'leased'), 0)::bigint AS at_work,
           width
    FROM (
        SELECT seq, state, row_count,
               CASE WHEN part_name IS NULL THEN 0 ELSE row_count - redo_count - rows_failed END AS done,
               CASE WHEN part_name IS NOT NULL THEN rows_failed + (state = 'dead')::int * redo_count
                    WHEN state = 'dead' THEN row_count ELSE 0 END AS failed
        FROM batches WHERE job_id = :id AND state <> 'split'
    ) AS b
    CROSS JOIN (
        SELECT max(seq) / :most + 1 AS width FROM batches WHERE job_id = :id
    ) AS w
    GROUP BY seq / width, width
""")
"""What became of the rows of each piece of the dataset, by the rules of `job_counters`."""

WRITE = text("""
    UPDATE job_pictures
    SET told_at = now(), seen_until = to_timestamp(:seen_until),
        series = CAST(:series AS jsonb), lanes = CAST(:lanes AS jsonb), map = CAST(:map AS jsonb),
        next_at = now() + make_interval(secs => :pause)
    WHERE job_id = :id AND next_at = :fence
""")
"""Writes a look, if the job was not closed, opened again or looked at meanwhile; `pause` null: the last one."""

SHOWN = text("""
    SELECT p.told_at, p.next_at IS NOT NULL AS is_due,
           extract(epoch FROM p.seen_until)::float8 AS seen_until, p.series, p.lanes, p.map,
           extract(epoch FROM now())::float8 AS now,
           extract(epoch FROM coalesce(j.started_at, j.created_at))::float8 AS began,
           extract(epoch FROM j.closed_at)::float8 AS closed,
           extract(epoch FROM j.finish_by)::float8 AS finish_by
    FROM jobs j LEFT JOIN job_pictures p ON p.job_id = j.id WHERE j.id = :id
""")
"""What the page draws."""

RUNNING = text("""
    SELECT b.seq, w.host, w.slot, a.worker_id AS worker, b.row_count AS rows,
           extract(epoch FROM a.claimed_at)::float8 AS claimed
    FROM batches b JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
    LEFT JOIN workers w ON w.id = a.worker_id
    WHERE b.state = 'leased' AND b.job_id = :id LIMIT :most
""")
"""Leases that run now."""

LOADING = text("""
    SELECT w.host, w.slot, extract(epoch FROM w.started_at)::float8 AS started
    FROM workers w JOIN jobs j USING (pool, engine_key)
    WHERE j.id = :id AND w.state = 'loading' AND w.seen_at > now() - interval '1 minute'
""")
"""Children that load the engine of a job now."""


def take(connection: Connection) -> Turn | None:
    """A job whose turn it is, for this process alone; None where no job is due."""
    found = connection.execute(TAKE, {"seconds": TURN_SECONDS}).mappings().one_or_none()
    return None if found is None else Turn(**found)


def facts(connection: Connection, job_id: int) -> Row | None:
    """Running totals of a job, with `series`, `lanes` and `seen_until` of the look before; None for a job that is gone."""
    return connection.execute(FACTS, {"id": job_id}).mappings().one_or_none()


def ended(
    connection: Connection, job_id: int, since: float, until: float, most: int
) -> Sequence[Row]:
    """The leases that ended from `since` on and before `until`, the first `most` of them in order."""
    given = {"id": job_id, "since": since, "until": until, "most": most}
    return connection.execute(ENDED, given).mappings().all()


def cells(connection: Connection, job_id: int) -> tuple[int, list[list[int]]]:
    """How many places of the dataset a cell has, and of each cell: its number, its rows, those that are done, failed,
    at work. Cells without a batch are left out.
    """
    found = connection.execute(CELLS, {"id": job_id, "most": MOST_CELLS}).all()
    width = found[0].width if found else 1
    # Sorted here: Postgres would sort a million batches in place of four hundred cells.
    return width, sorted([row.cell, row.rows, row.done, row.failed, row.at_work] for row in found)


def write(
    connection: Connection,
    turn: Turn,
    *,
    series: object,
    lanes: object,
    cells: object,
    seen_until: float,
    pause: float | None,
) -> bool:
    """Writes a look; False, and nothing is written, where the job is due anew. The next look comes after `pause`
    seconds, none with None.
    """
    kept = {"series": series, "lanes": lanes, "map": cells}
    values: dict[str, Any] = {
        "id": turn.job_id,
        "fence": turn.fence,
        "seen_until": seen_until,
        "pause": pause,
        **{name: json.dumps(value, separators=(",", ":")) for name, value in kept.items()},
    }
    return connection.execute(WRITE, values).rowcount > 0


def shown(connection: Connection, job_id: int) -> Row:
    """The picture of a job, with the times of the job; `told_at` is None before the first look, which is coming where
    the picture `is_due`.
    """
    return connection.execute(SHOWN, {"id": job_id}).mappings().one()


def version(connection: Connection, job_id: int) -> str:
    """Which picture of a job there is: another word after each look."""
    statement = text("SELECT coalesce(told_at::text, '') FROM job_pictures WHERE job_id = :id")
    return str(connection.scalar(statement, {"id": job_id}) or "")


def running(connection: Connection, job_id: int, most: int) -> Sequence[Row]:
    """Leases of a job that run now, `most` of them, as those of `ended` without an end."""
    return connection.execute(RUNNING, {"id": job_id, "most": most}).mappings().all()


def loading(connection: Connection, job_id: int) -> Sequence[Row]:
    """Children that load the engine of a job now, with `host`, `slot` and `started`."""
    return connection.execute(LOADING, {"id": job_id}).mappings().all()
