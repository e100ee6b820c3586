"""What jobs have spent and cost, which would pass their budget, and how fast similar jobs were."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.answer_counts import NOTHING, AnswerCounts
from nightshift.common.states import JobState
from nightshift.common.text import money

COMMITS_LOOKED_AT = 5_000
"""Latest commits that an estimate reads: enough for a speed, and found by an index."""


def cost(connection: Connection, job_id: int) -> Row:
    """One row of the view job_costs."""
    found = connection.execute(text("SELECT * FROM job_costs WHERE job = :id"), {"id": job_id})
    return found.mappings().one()


@dataclass(frozen=True, slots=True)
class Spent:
    """What a child has spent on a job since the child began: running totals, which only grow.

    `rows_run` are rows with an outcome, committed or not; `rows_shared` of them have the answer of
    another row. `cached_tokens` of the prompt tokens were in an engine's cache, `reasoning_tokens` of the
    output tokens are thoughts; `estimated_tokens` of both were not counted by their server. `rows_open`, which is
    not a total, are the rows with an outcome whose batches are still leased; `done_uncommitted` of the rows of batches
    under way have an answer, and `failed_uncommitted` an error. `answered` counts the answers that are committed.
    """

    job_id: int
    engine_microseconds: int
    rows_run: int
    prompt_tokens: int
    output_tokens: int
    rows_open: int = 0
    cached_tokens: int = 0
    rows_shared: int = 0
    reasoning_tokens: int = 0
    estimated_tokens: int = 0
    done_uncommitted: int = 0
    failed_uncommitted: int = 0
    answered: AnswerCounts = NOTHING


REPORT = text("""
    INSERT INTO job_spending AS s (job_id, worker_id, engine_microseconds, rows_run, prompt_tokens,
                                   output_tokens, rows_open, cached_tokens, rows_shared,
                                   reasoning_tokens, estimated_tokens, done_uncommitted,
                                   failed_uncommitted, answer_lengths, label_counts)
    SELECT job_id, :owner, engine_microseconds, rows_run, prompt_tokens, output_tokens, rows_open,
           cached_tokens, rows_shared, reasoning_tokens, estimated_tokens, done_uncommitted,
           failed_uncommitted, CAST(answer_lengths AS bigint[]), CAST(label_counts AS bigint[])
    FROM unnest(CAST(:job_id AS bigint[]), CAST(:engine_microseconds AS bigint[]),
                CAST(:rows_run AS bigint[]), CAST(:prompt_tokens AS bigint[]),
                CAST(:output_tokens AS bigint[]), CAST(:rows_open AS bigint[]),
                CAST(:cached_tokens AS bigint[]), CAST(:rows_shared AS bigint[]),
                CAST(:reasoning_tokens AS bigint[]), CAST(:estimated_tokens AS bigint[]),
                CAST(:done_uncommitted AS bigint[]), CAST(:failed_uncommitted AS bigint[]),
                CAST(:answer_lengths AS text[]), CAST(:label_counts AS text[]))
         AS given (job_id, engine_microseconds, rows_run, prompt_tokens, output_tokens, rows_open,
                   cached_tokens, rows_shared, reasoning_tokens, estimated_tokens, done_uncommitted,
                   failed_uncommitted, answer_lengths, label_counts)
    ORDER BY job_id
    -- Reports of several threads may come in another order than they were made.
    ON CONFLICT (job_id, worker_id) DO UPDATE
    SET engine_microseconds = greatest(s.engine_microseconds, excluded.engine_microseconds),
        rows_run = greatest(s.rows_run, excluded.rows_run),
        prompt_tokens = greatest(s.prompt_tokens, excluded.prompt_tokens),
        output_tokens = greatest(s.output_tokens, excluded.output_tokens),
        cached_tokens = greatest(s.cached_tokens, excluded.cached_tokens),
        rows_shared = greatest(s.rows_shared, excluded.rows_shared),
        reasoning_tokens = greatest(s.reasoning_tokens, excluded.reasoning_tokens),
        estimated_tokens = greatest(s.estimated_tokens, excluded.estimated_tokens),
        -- Each number only grows, so the later of two arrays is the greater one.
        answer_lengths = greatest(s.answer_lengths, excluded.answer_lengths),
        label_counts = greatest(s.label_counts, excluded.label_counts),
        rows_open = excluded.rows_open, done_uncommitted = excluded.done_uncommitted,
        failed_uncommitted = excluded.failed_uncommitted
""")
"""Sets a child's own rows to its running totals; no two children wait for each other here."""


def report(connection: Connection, owner: str, spent: Sequence[Spent]) -> None:
    """Writes what a child has spent. The last statement of its transaction: it locks the child's
    rows, for which the child's other threads wait.
    """
    if spent:
        columns = [field.name for field in fields(Spent) if field.name != "answered"]
        given = {name: [getattr(each, name) for each in spent] for name in columns}
        # Postgres has no array of arrays of different lengths.
        given["answer_lengths"] = [_array(each.answered.lengths) for each in spent]
        given["label_counts"] = [_array(each.answered.labels) for each in spent]
        connection.execute(REPORT, {"owner": owner, **given})


def _array(numbers: Sequence[int]) -> str:
    """Numbers as the text of an array."""
    return f"{{{','.join(map(str, numbers))}}}"


def over_budget(connection: Connection) -> list[tuple[int, str]]:
    """Running jobs whose cost, with the leased rows, would pass limits.budget; each with a sentence.

    A leased row without an outcome is expected to cost as much as a row that was run. Before the
    first outcome of a job its leased rows count as nothing.
    """
    return [
        (
            job.job,
            f"{_amount(job.cost, job.cost_is_estimate)} is spent and about {money(job.under_way)} under way, which reaches "
            f"limits.budget {money(job.budget)}: {LET_GO_ON}",
        )
        for job in connection.execute(OVER_BUDGET)
    ]


def _amount(cost: float, is_estimate: bool) -> str:
    """The cost of a job for a sentence."""
    return f"{money(cost)} by estimate" if is_estimate else money(cost)


OVER_BUDGET = text("""
    SELECT k.job, k.cost, k.cost_is_estimate, k.budget, w.under_way
    FROM jobs j JOIN job_costs k ON k.job = j.id
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(rows_leased), 0) AS rows FROM job_counters WHERE job_id = j.id
    ) AS leased
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(rows_open), 0) AS rows FROM job_spending
        WHERE job_id = j.id
          AND NOT EXISTS (SELECT FROM workers WHERE id = worker_id AND state = 'ended')
    ) AS run
    CROSS JOIN LATERAL (
        SELECT coalesce(k.cost / nullif(k.rows_run, 0) * greatest(0, leased.rows - run.rows), 0)
               AS under_way
    ) AS w
    WHERE j.state = 'running' AND (j.spec #>> '{limits,budget}') IS NOT NULL
      AND k.cost + w.under_way >= k.budget
    ORDER BY j.id
""")
"""Running jobs whose cost and leased rows reach their budget."""


def spent_out(connection: Connection, job_ids: Sequence[int]) -> list[tuple[int, str]]:
    """Those of some jobs whose cost has reached limits.budget; each with a sentence."""
    return [
        (
            job.job,
            f"{_amount(job.cost, job.cost_is_estimate)} is spent, which reaches limits.budget {money(job.budget)}: "
            f"{LET_GO_ON}",
        )
        for job in connection.execute(SPENT_OUT, {"ids": list(job_ids)})
    ]


SPENT_OUT = text("""
    SELECT k.job, k.cost, k.cost_is_estimate, k.budget FROM jobs j JOIN job_costs k ON k.job = j.id
    WHERE j.id = ANY (CAST(:ids AS bigint[])) AND (j.spec #>> '{limits,budget}') IS NOT NULL
      AND k.cost >= k.budget
    ORDER BY j.id
""")
"""Jobs whose cost alone reaches their budget."""


def hold(connection: Connection, job_id: int, why: str) -> bool:
    """Pauses a job that `over_budget` named; False when the job is no longer running, or when
    another transaction changes it: a later round tries again.
    """
    held = jobs.try_lock_running(connection, job_id)
    if held:
        jobs.pause(connection, job_id, why)
    return held


def hold_spent_out(connection: Connection, job_id: int) -> str | None:
    """Pauses a running job whose cost has reached limits.budget; returns why. None if it is not so,
    or when another transaction changes the job: a later beat tries again.

    The cost is looked up under the lock: the budget may have been raised meanwhile.
    """
    if not jobs.try_lock_running(connection, job_id):
        return None
    for _, why in spent_out(connection, [job_id]):
        jobs.pause(connection, job_id, why)
        return why
    return None


LET_GO_ON = "a larger one lets the job continue"
"""The command for that depends on where the reason is read: producer/advice knows it."""


def set_budget(connection: Connection, job_id: int, budget: float) -> None:
    """Another limits.budget for a job that is not over; BadInput when nothing tells its cost."""
    if not 0 < budget < math.inf:
        raise BadInput(f"a budget is an amount above 0, which {budget:g} is not")
    if jobs.lock(connection, job_id).over:
        raise BadInput(f"job {job_id} is over and spends nothing any more")
    if cost(connection, job_id)["cost"] is None:
        raise BadInput(
            f"nothing tells what job {job_id} costs, so it can have no budget: its spec has no "
            "engine.price_per_hour and no price of tokens"
        )
    statement = text("""
        UPDATE jobs SET spec = jsonb_set(spec, '{limits,budget}', to_jsonb(
            CAST(:budget AS double precision))) WHERE id = :id
    """)
    connection.execute(statement, {"id": job_id, "budget": budget})


def budget(connection: Connection, job_id: int) -> float | None:
    """The limits.budget of a job, if it has one."""
    statement = text("SELECT (spec #>> '{limits,budget}')::float8 FROM jobs WHERE id = :id")
    found: float | None = connection.scalar(statement, {"id": job_id})
    return found


def refuse_spent(connection: Connection, job_id: int) -> None:
    """BadInput when a paused job has nothing left of its budget: it would be paused again."""
    now = cost(connection, job_id)
    if now["budget"] is None or now["cost"] < now["budget"]:
        return
    if jobs.lock(connection, job_id) is JobState.PAUSED:
        raise BadInput(
            f"job {job_id} has spent {money(now['cost'])} of limits.budget {money(now['budget'])}: "
            f"{LET_GO_ON}"
        )


@dataclass(frozen=True, slots=True)
class SimilarJob:
    """A job with the same engine and task in the same pool."""

    job: int
    name: str
    rows_run: int
    engine_seconds: float
    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int


def similar_jobs(
    connection: Connection, pool: str, engine_key: str, task: str, *, only: int | None = None
) -> list[SimilarJob]:
    """Return the latest 20 of them that have run rows, newest first, or `only` the job of that number, whatever its task;
    `task` is the task as JSON.
    """
    statement = text("""
        SELECT j.id AS job, j.name, s.rows_run, s.engine_seconds, s.prompt_tokens, s.output_tokens,
               s.reasoning_tokens
        FROM jobs j CROSS JOIN LATERAL (
            SELECT sum(rows_run)::bigint AS rows_run,
                   (sum(engine_microseconds) / 1e6)::float8 AS engine_seconds,
                   sum(prompt_tokens)::bigint AS prompt_tokens,
                   sum(output_tokens)::bigint AS output_tokens,
                   sum(reasoning_tokens)::bigint AS reasoning_tokens
            FROM job_spending WHERE job_id = j.id
        ) AS s
        WHERE j.pool = :pool AND j.engine_key = :engine_key AND s.rows_run > 0
          AND CASE WHEN CAST(:only AS bigint) IS NULL THEN j.spec -> 'task' = CAST(:task AS jsonb)
                   ELSE j.id = :only END
        ORDER BY j.id DESC LIMIT 20
    """)
    found = connection.execute(
        statement, {"pool": pool, "engine_key": engine_key, "task": task, "only": only}
    )
    return [SimilarJob(**row) for row in found.mappings()]


class Commit(NamedTuple):
    """What one commit of a child accounts for; `is_first` of those of its child that are looked at."""

    rows: int
    engine_seconds: float
    output_tokens: int
    batches: int
    is_first: bool


def commits_of(connection: Connection, job_ids: Sequence[int]) -> list[Commit]:
    """The latest commits of these jobs, child by child, in order."""
    statement = text("""
        SELECT sum(row_count)::bigint AS rows,
               (sum(engine_microseconds) / 1e6)::float8 AS engine_seconds,
               sum(output_tokens)::bigint AS output_tokens,
               count(*) AS batches,
               row_number() OVER (PARTITION BY job_id, worker_id ORDER BY ended_at) = 1 AS is_first
        FROM (
            SELECT job_id, worker_id, ended_at, row_count, engine_microseconds, output_tokens
            FROM attempts
            WHERE job_id = ANY (CAST(:jobs AS bigint[])) AND outcome IN ('done', 'split')
              AND engine_microseconds IS NOT NULL
            ORDER BY ended_at DESC LIMIT :most
        ) AS latest
        -- One batch of each transaction has the engine time of all batches in it.
        GROUP BY job_id, worker_id, ended_at ORDER BY job_id, worker_id, ended_at
    """)
    found = connection.execute(statement, {"jobs": list(job_ids), "most": COMMITS_LOOKED_AT})
    return [Commit(**row) for row in found.mappings()]


def slots(connection: Connection, pool: str) -> tuple[int, int]:
    """Living children of a pool, and the rows that one of them holds in flight (0: unknown)."""
    statement = text("""
        SELECT count(*) AS children, coalesce(max(window_rows), 0) AS window_rows FROM workers
        WHERE pool = :pool AND state <> 'ended' AND seen_at > now() - interval '1 minute'
    """)
    found = connection.execute(statement, {"pool": pool}).one()
    return found.children, found.window_rows
