"""How the rows of a batch come to stand in a part: commit, read back, split, halve, bury.

Every statement about a held batch is fenced by its id, attempt and owner.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, INTEGER

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import LeaseLost
from nightshift.common.ledger import jobs
from nightshift.common.ledger.batches.multirange import from_multirange, to_literal, to_multirange
from nightshift.common.ledger.batches.records import LONE_LOSSES, Lease, Part
from nightshift.common.ledger.connection import Connection
from nightshift.common.row_errors import RowError
from nightshift.common.states import Outcome


def commit(
    connection: Connection, finished: Sequence[tuple[Lease, Part]]
) -> frozenset[tuple[int, int]]:
    """Marks batches done and names their parts, each fenced by itself; returns the (batch id,
    attempt) pairs of those whose fence matched.

    A lease that ran out still commits while nobody else has claimed the batch: attempt and
    owner stay until the next claim. A retry that has rows for later is pending again: the part
    holds their old lines, and so do the errors.
    """
    rows = [_finished(lease, part) for lease, part in finished]
    found = connection.execute(COMMIT, {name: [row[name] for row in rows] for name in rows[0]})
    held = frozenset((row.id, row.attempt) for row in found)
    _insert_errors(
        connection,
        [
            (lease.job_id, lease.batch_id, error)
            for lease, part in finished
            if (lease.batch_id, lease.attempt) in held
            for error in part.errors
        ],
    )
    return held


# The child's own row: no two children wait for each other here.
ADD_SPENDING = """
        ON CONFLICT (job_id, worker_id) DO UPDATE
        SET engine_microseconds = s.engine_microseconds + excluded.engine_microseconds,
            rows_run = s.rows_run + excluded.rows_run,
            prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
            output_tokens = s.output_tokens + excluded.output_tokens
"""

COMMIT = text(f"""
    WITH mine AS MATERIALIZED (
        SELECT * FROM unnest(:id, :attempt, CAST(:owner AS text[]), :job_id,
                             CAST(:name AS text[]), :bytes, CAST(:checksum AS text[]),
                             :rows_failed, :prompt_tokens, :output_tokens,
                             CAST(:redo AS text[]), :redo_count, :most_losses, :rows_run,
                             :rows_wrong, CAST(:rows AS text[]), :low, :high, :prompt_spent,
                             :output_spent, :engine_microseconds)
            AS m (id, attempt, owner, job_id, name, bytes, checksum, rows_failed, prompt_tokens,
                  output_tokens, redo, redo_count, most_losses, rows_run, rows_wrong, rows, low,
                  high, prompt_spent, output_spent, engine_microseconds)
    ), open_jobs AS MATERIALIZED (
        SELECT id FROM jobs WHERE id = ANY (:job_id) AND state IN ('running', 'paused')
        ORDER BY id FOR KEY SHARE
    ), held AS MATERIALIZED (
        SELECT b.id, b.attempt, m.job_id, m.owner, m.engine_microseconds, m.rows_run,
               m.prompt_spent, m.output_spent
        FROM mine m JOIN batches b ON b.id = m.id JOIN open_jobs j ON j.id = m.job_id
        WHERE b.attempt = m.attempt AND b.owner = m.owner
          AND b.state IN ('leased', 'pending', 'queued') AND j.id = b.job_id
        ORDER BY b.id FOR UPDATE OF b
    ), committed AS (
        UPDATE batches b
        SET state = CASE WHEN m.redo_count = 0 THEN 'done' ELSE 'pending' END,
            lease_expires_at = NULL, rank = NULL, not_before = NULL, part_name = m.name,
            part_bytes = m.bytes, part_checksum = m.checksum, rows_failed = m.rows_failed,
            prompt_tokens = m.prompt_tokens, output_tokens = m.output_tokens,
            redo = CAST(m.redo AS int8multirange), redo_count = m.redo_count, last_error = NULL,
            -- Nobody may commit what is left of a retry under this attempt.
            owner = CASE WHEN m.redo_count = 0 THEN b.owner END,
            losses = CASE WHEN m.redo_count = 0 THEN b.losses
                          ELSE least(b.losses, m.most_losses) END
        FROM held JOIN mine m ON m.id = held.id AND m.attempt = held.attempt
        WHERE b.id = held.id
    ), cleared AS (
        -- The rows' errors are exactly those of the new part from now on.
        DELETE FROM row_errors e
        USING held JOIN mine m ON m.id = held.id AND m.attempt = held.attempt
        WHERE e.job_id = m.job_id AND e.row_index BETWEEN m.low AND m.high
          AND CAST(m.rows AS int8multirange) @> e.row_index
    ), ended AS (
        UPDATE attempts a
        SET ended_at = now(), outcome = 'done', error = NULL, row_count = m.rows_run,
            rows_failed = m.rows_wrong, prompt_tokens = m.prompt_tokens,
            output_tokens = m.output_tokens, engine_microseconds = m.engine_microseconds
        FROM held JOIN mine m ON m.id = held.id AND m.attempt = held.attempt
        WHERE a.batch_id = held.id AND a.attempt = held.attempt
    ), spent AS (
        INSERT INTO job_spending AS s (job_id, worker_id, engine_microseconds, rows_run,
                                       prompt_tokens, output_tokens)
        SELECT job_id, owner, sum(engine_microseconds), sum(rows_run), sum(prompt_spent),
               sum(output_spent)
        FROM held GROUP BY job_id, owner
        {ADD_SPENDING}
    )
    SELECT id, attempt FROM held
""").bindparams(
    *(
        bindparam(name, type_=ARRAY(BIGINT))
        for name in (
            "id",
            "job_id",
            "bytes",
            "prompt_tokens",
            "output_tokens",
            "low",
            "high",
            "prompt_spent",
            "output_spent",
            "engine_microseconds",
        )
    ),
    *(
        bindparam(name, type_=ARRAY(INTEGER))
        for name in (
            "attempt",
            "rows_failed",
            "redo_count",
            "most_losses",
            "rows_run",
            "rows_wrong",
        )
    ),
)


def _finished(lease: Lease, part: Part) -> dict[str, Any]:
    """One batch of a group as the statement takes it."""
    waiting = set(lease.later)
    rows = lease.descriptor.rows
    return {
        **lease.fence,
        "job_id": lease.job_id,
        "name": part.name,
        "bytes": part.bytes,
        "checksum": part.checksum,
        "rows_failed": sum(error.row_index not in waiting for error in part.errors),
        "prompt_tokens": part.prompt_tokens,
        "output_tokens": part.output_tokens,
        "redo": to_literal(lease.later) if waiting else None,
        "redo_count": len(waiting),
        "most_losses": _losses_of_rest(lease),
        "rows_run": len(lease.todo),
        "rows_wrong": len(part.errors),
        "rows": to_literal(rows),
        "low": rows.ranges[0][0],
        "high": rows.ranges[-1][1] - 1,
        "prompt_spent": part.tokens_spent.prompt,
        "output_spent": part.tokens_spent.output,
        "engine_microseconds": part.engine_microseconds,
    }


def _losses_of_rest(lease: Lease) -> int:
    """What the rest of a retry may keep of the losses: the search goes on in pieces as small as
    this one, but no single row is doomed that was not lost alone. Past a killer it begins anew.
    """
    return LONE_LOSSES if lease.doomed else LONE_LOSSES + max(0, len(lease.later).bit_length() - 1)


def is_committed(connection: Connection, lease: Lease) -> bool:
    """Reads back after a COMMIT whose outcome is unknown: did this very lease end with a part?

    Its own attempt tells: the batch itself may have been retried or lost since.
    """
    outcome = connection.scalar(
        text("""
            SELECT outcome FROM attempts
            WHERE batch_id = :id AND attempt = :attempt AND worker_id = :owner
        """),
        lease.fence,
    )
    return outcome in (Outcome.DONE, Outcome.SPLIT)


def split(connection: Connection, lease: Lease, finished: RowRanges, part: Part) -> None:
    """A draining owner keeps its finished rows: they become a done child with the parent's part
    name, the rest one pending child. Charges nothing. LeaseLost when the fence does not match.
    """
    if jobs.lock_shared(connection, lease.job_id).over:
        raise LeaseLost(f"job {lease.job_id} is over, its batches can no longer be split")
    parent = _take_parent(connection, lease.batch_id, lease)
    child_id = connection.scalar(
        SPLIT_CHILD_DONE,
        {
            **_child(parent, finished),
            "attempt": lease.attempt,
            "owner": lease.owner,
            "name": part.name,
            "bytes": part.bytes,
            "checksum": part.checksum,
            "rows_failed": len(part.errors),
            "prompt_tokens": part.prompt_tokens,
            "output_tokens": part.output_tokens,
        },
    )
    rest = lease.descriptor.rows.minus(finished)
    connection.execute(SPLIT_CHILD_PENDING, _child(parent, rest))
    _put_errors(connection, lease.job_id, child_id, finished, part.errors)
    end_attempt(connection, lease, Outcome.SPLIT, len(finished), part)
    connection.execute(
        SPEND,
        {
            "job_id": lease.job_id,
            "owner": lease.owner,
            "rows_run": len(finished),
            "engine_microseconds": part.engine_microseconds,
            "prompt_spent": part.tokens_spent.prompt,
            "output_spent": part.tokens_spent.output,
        },
    )


SPEND = text(f"""
    INSERT INTO job_spending AS s (job_id, worker_id, engine_microseconds, rows_run, prompt_tokens,
                                   output_tokens)
    VALUES (:job_id, :owner, :engine_microseconds, :rows_run, :prompt_spent, :output_spent)
    {ADD_SPENDING}
""")


def halve(connection: Connection, batch_id: int) -> bool:
    """Replaces a batch that nobody holds by its two halves; False when it has only one row left
    to run, keeps answers of an earlier part, is held, or when its job is being changed.
    """
    job_id = connection.scalar(text("SELECT job_id FROM batches WHERE id = :id"), {"id": batch_id})
    # A reaper does not wait here: whatever is not halved now is halved after its next lone loss.
    if not jobs.try_lock_shared(connection, int(job_id)):
        return False
    parent = _take_parent(connection, batch_id, None)
    if parent is None:
        return False
    for half in from_multirange(parent["rows"]).halves():
        # A half was not yet lost alone itself: it runs alone once more before it is doomed.
        losses = min(parent["losses"], LONE_LOSSES)
        connection.execute(SPLIT_CHILD_PENDING, {**_child(parent, half), "losses": losses})
    return True


TAKE_PARENT = """
    UPDATE batches SET state = 'split', lease_expires_at = NULL, rank = NULL, part_name = NULL,
           part_bytes = NULL, part_checksum = NULL, redo = NULL, redo_count = 0
    WHERE id = :id AND {held}
    RETURNING *
"""
TAKE_HELD = text(
    TAKE_PARENT.format(
        held="attempt = :attempt AND owner = :owner AND state = 'leased' AND redo IS NULL"
    )
)
TAKE_FREE = text(
    # Without an owner nobody who lost the lease can read `split` as the outcome of its own commit.
    TAKE_PARENT.replace("redo_count = 0", "redo_count = 0, owner = NULL").format(
        held="state = 'pending' AND row_count > 1 AND redo IS NULL AND part_name IS NULL"
    )
)

CHILD_COLUMNS = """job_id, seq, parent_id, file_index, rows, row_count, locator_row, byte_offset,
    byte_length, failures, losses, attempt, owner, state"""
CHILD_VALUES = """:job_id, :seq, :parent_id, :file_index, :rows, :row_count, :locator_row,
    :byte_offset, :byte_length, :failures, :losses, :attempt"""
SPLIT_CHILD_PENDING = text(f"""
    INSERT INTO batches ({CHILD_COLUMNS}) VALUES ({CHILD_VALUES}, NULL, 'pending')
""")
SPLIT_CHILD_DONE = text(f"""
    INSERT INTO batches ({CHILD_COLUMNS}, part_name, part_bytes, part_checksum, rows_failed,
                         prompt_tokens, output_tokens)
    VALUES ({CHILD_VALUES}, :owner, 'done', :name, :bytes, :checksum, :rows_failed,
            :prompt_tokens, :output_tokens)
    RETURNING id
""")


def dead(connection: Connection, job_id: int, limit: int) -> list[RowMapping]:
    """Dead batches that have no error part of their own yet, with what says where they are.

    One that died in a retry of some rows still names its old part: rows outside `redo` keep
    their answer, and the error part carries them over.
    """
    found = connection.execute(
        text("""
            SELECT b.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows,
                   f.first_row
            FROM batches b JOIN input_files f USING (job_id, file_index)
            WHERE b.job_id = :id AND b.state = 'dead'
              AND (b.part_name IS NULL OR b.redo IS NOT NULL)
            ORDER BY b.id LIMIT :limit
        """),
        {"id": job_id, "limit": limit},
    )
    return list(found.mappings())


def bury(connection: Connection, row: RowMapping, part: Part) -> bool:
    """Names the error part of a dead batch; False when another reaper was faster."""
    named = connection.scalar(
        text("""
            UPDATE batches SET part_name = :name, part_bytes = :bytes, part_checksum = :checksum,
                   rows_failed = :rows_failed, prompt_tokens = :prompt_tokens,
                   output_tokens = :output_tokens, redo = NULL, redo_count = 0
            WHERE id = :id AND attempt = :attempt AND state = 'dead'
              AND (part_name IS NULL OR redo IS NOT NULL)
            RETURNING id
        """),
        {
            "id": row["id"],
            "attempt": row["attempt"],
            "name": part.name,
            "bytes": part.bytes,
            "checksum": part.checksum,
            "rows_failed": len(part.errors),
            "prompt_tokens": part.prompt_tokens,
            "output_tokens": part.output_tokens,
        },
    )
    if named is None:
        return False
    _put_errors(connection, row["job_id"], row["id"], from_multirange(row["rows"]), part.errors)
    return True


def rename_part(
    connection: Connection, batch_id: int, name: str, new_name: str, size: int, checksum: str
) -> bool:
    """Names a rewritten part of the same rows; False when the batch has another part by now."""
    renamed = connection.scalar(
        text("""
            UPDATE batches SET part_name = :new_name, part_bytes = :size, part_checksum = :checksum
            WHERE id = :id AND part_name = :name AND state IN ('done', 'dead') RETURNING id
        """),
        {
            "id": batch_id,
            "name": name,
            "new_name": new_name,
            "size": size,
            "checksum": checksum,
        },
    )
    return renamed is not None


def end_attempt(
    connection: Connection,
    lease: Lease,
    outcome: Outcome,
    rows: int,
    part: Part | None,
    error: str | None = None,
) -> None:
    """Writes down how an attempt ended."""
    connection.execute(
        text("""
            UPDATE attempts SET ended_at = now(), outcome = :outcome, error = :error,
                   row_count = :rows, rows_failed = :rows_failed, prompt_tokens = :prompt_tokens,
                   output_tokens = :output_tokens, engine_microseconds = :engine_microseconds
            WHERE batch_id = :id AND attempt = :attempt
        """),
        {
            "id": lease.batch_id,
            "attempt": lease.attempt,
            "outcome": outcome,
            "rows": rows,
            "error": error,
            "rows_failed": len(part.errors) if part else None,
            "prompt_tokens": part.prompt_tokens if part else None,
            "output_tokens": part.output_tokens if part else None,
            "engine_microseconds": part.engine_microseconds if part else None,
        },
    )


def _take_parent(connection: Connection, batch_id: int, lease: Lease | None) -> Any:
    if lease is None:
        return connection.execute(TAKE_FREE, {"id": batch_id}).mappings().one_or_none()
    parent = connection.execute(TAKE_HELD, lease.fence).mappings().one_or_none()
    if parent is None:
        raise LeaseLost(f"batch {batch_id} attempt {lease.attempt} belongs to somebody else")
    return parent


def _child(parent: RowMapping, rows: RowRanges) -> dict[str, object]:
    inherited = (
        "job_id",
        "seq",
        "file_index",
        "locator_row",
        "byte_offset",
        "byte_length",
        "failures",
        "losses",
        "attempt",
    )
    return {
        **{name: parent[name] for name in inherited},
        "parent_id": parent["id"],
        "rows": to_multirange(rows),
        "row_count": len(rows),
    }


def _put_errors(
    connection: Connection,
    job_id: int,
    batch_id: int,
    rows: RowRanges,
    errors: Sequence[RowError],
) -> None:
    """The rows' errors are exactly these from now on."""
    connection.execute(
        text("""
            DELETE FROM row_errors e WHERE e.job_id = :job_id
            AND e.row_index BETWEEN :low AND :high AND CAST(:rows AS int8multirange) @> e.row_index
        """),
        {
            "job_id": job_id,
            "rows": to_multirange(rows),
            "low": rows.ranges[0][0],
            "high": rows.ranges[-1][1] - 1,
        },
    )
    _insert_errors(connection, [(job_id, batch_id, error) for error in errors])


def _insert_errors(connection: Connection, errors: Sequence[tuple[int, int, RowError]]) -> None:
    """(job, batch, error) of rows that have no error in the ledger yet."""
    if not errors:
        return
    connection.execute(
        INSERT_ERRORS,
        {
            "job_id": [job_id for job_id, _, _ in errors],
            "row_index": [error.row_index for _, _, error in errors],
            "batch_id": [batch_id for _, batch_id, _ in errors],
            "row_id": [error.row_id for _, _, error in errors],
            "kind": [error.kind.value for _, _, error in errors],
            "message": [error.message for _, _, error in errors],
        },
    )


INSERT_ERRORS = text("""
    INSERT INTO row_errors (job_id, row_index, batch_id, row_id, kind, message)
    SELECT * FROM unnest(:job_id, :row_index, :batch_id, CAST(:row_id AS text[]),
                         CAST(:kind AS text[]), CAST(:message AS text[]))
""").bindparams(
    *(bindparam(name, type_=ARRAY(BIGINT)) for name in ("job_id", "row_index", "batch_id"))
)
