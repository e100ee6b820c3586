"""What an owner does with a batch: claim, renew, commit, split, release, fail.

Every statement about a held batch is fenced by its id, attempt and owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import RowMapping, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, INTEGER

from common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from common.errors import LeaseLost
from common.ledger import jobs
from common.ledger.connection import Connection, scan_in_order
from common.ledger.rows import from_multirange, to_literal, to_multirange
from common.states import Outcome, RowErrorKind

LONE_LOSSES = 2
"""After so many losses a batch runs alone in a child (DESIGN section 5)."""

NO_ROWS = RowRanges(())


@dataclass(frozen=True, slots=True)
class Lease:
    """A claimed batch: what to read, what to redo, and the fence.

    `redo` is None for all rows; else only those run and the others keep the line that stands in
    the part `kept_part`. `later` are rows of a retry that run under a later lease. `doomed` marks
    a single row that killed every child that ran it alone: it is written as `engine_died`, not
    run.
    """

    batch_id: int
    attempt: int
    owner: str
    job_id: int
    seq: int
    is_root: bool
    descriptor: Descriptor
    alone: bool
    doomed: bool
    redo: RowRanges | None
    kept_part: str | None
    later: RowRanges = NO_ROWS

    @property
    def todo(self) -> RowRanges:
        """The rows that run under this lease."""
        return self.descriptor.rows if self.redo is None else self.redo

    def narrowed(self, rows: RowRanges) -> "Lease":
        """The same lease of a retry, over `rows` of its rows only; the others run later."""
        return replace(self, redo=rows, later=self.later.union(self.todo.minus(rows)))


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no answer; `row_id` is its id column as text."""

    row_index: int
    row_id: str | None
    kind: RowErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class Part:
    """Facts of a written part: name in the output directory, bytes, SHA-256, tokens, errors."""

    name: str
    bytes: int
    checksum: str
    prompt_tokens: int
    output_tokens: int
    errors: Sequence[RowError]


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: a child of a worker with its engine."""

    owner: str
    pool: str
    engine_key: str
    engine: str
    engine_version: str


def claim(
    connection: Connection,
    who: Claimant,
    *,
    room_rows: int,
    max_batches: int,
    idle: bool,
    woken: str,
    lease_seconds: float,
) -> list[Lease]:
    """Leases admitted batches in rank order until `room_rows` is filled; the first always fits.

    A batch that must run alone is taken only when the child is idle, and then it is the only one.
    When it is its turn, one of the busy children takes nothing else until it is idle.
    """
    found = connection.execute(
        CLAIM,
        {
            "owner": who.owner,
            "queue": f"{who.pool}.{who.engine_key}",
            "pool": who.pool,
            "engine_key": who.engine_key,
            "engine": who.engine,
            "engine_version": who.engine_version,
            "room_rows": room_rows,
            "max_batches": max_batches,
            "idle": idle,
            "woken": woken,
            "lease_seconds": lease_seconds,
            "lone_losses": LONE_LOSSES,
        },
    ).mappings()
    return [_lease(row) for row in found]


CLAIM = text("""
    WITH first AS (
        SELECT b.id, b.losses FROM batches b
        WHERE b.queue = :queue AND b.state = 'queued' AND NOT :idle
        ORDER BY b.priority DESC, b.rank, b.id LIMIT 1
    ), elected AS (
        -- The hash gives each lone batch a child of its own choice; the others work on.
        SELECT (SELECT w.id FROM workers w
                WHERE w.pool = :pool AND w.engine_key = :engine_key AND w.state = 'ready'
                  AND w.seen_at > now() - make_interval(secs => :lease_seconds)
                ORDER BY md5(concat_ws(' ', w.id, first.id)) LIMIT 1) AS child
        FROM first WHERE first.losses >= :lone_losses
    ), candidates AS MATERIALIZED (
        SELECT b.id, b.row_count, b.redo_count, b.losses >= :lone_losses AS alone, b.rank,
               b.priority
        FROM batches b
        WHERE b.queue = :queue AND b.state = 'queued' AND (:idle OR b.losses < :lone_losses)
          -- Not a join, which may read and sort the whole queue for the first few of it.
          AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
          AND NOT EXISTS (SELECT FROM elected WHERE child = :owner)
        ORDER BY b.priority DESC, b.rank, b.id
        LIMIT :max_batches
        FOR UPDATE OF b SKIP LOCKED
    ), ordered AS (
        SELECT id, row_number() OVER best AS place, bool_or(alone) OVER best AS lonely,
               sum(CASE WHEN redo_count > 0 THEN redo_count ELSE row_count END) OVER best
                   - CASE WHEN redo_count > 0 THEN redo_count ELSE row_count END AS before
        FROM candidates WINDOW best AS (ORDER BY priority DESC, rank, id)
    ), claimed AS (
        UPDATE batches b
        SET state = 'leased', attempt = b.attempt + 1, owner = :owner, rank = NULL,
            not_before = NULL, lease_expires_at = now() + make_interval(secs => :lease_seconds)
        FROM ordered o
        WHERE b.id = o.id AND (o.place = 1 OR (o.before < :room_rows AND NOT o.lonely))
        RETURNING b.*, o.place
    ), noted AS (
        INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken)
        SELECT id, attempt, job_id, :owner, :engine, :engine_version, :woken FROM claimed
    ), started AS (
        -- SKIP LOCKED: whoever holds the job row may be waiting for these very batches.
        UPDATE jobs SET started_at = now() WHERE id IN (
            SELECT id FROM jobs WHERE started_at IS NULL AND id IN (SELECT job_id FROM claimed)
            FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT c.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows, f.first_row
    FROM claimed c JOIN input_files f USING (job_id, file_index)
    ORDER BY c.place
""")


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a heartbeat brought back: leases that still hold, and those of jobs that are over."""

    held: frozenset[tuple[int, int]]
    unwanted: frozenset[tuple[int, int]]


def renew(
    connection: Connection, owner: str, leases: Sequence[tuple[int, int]], lease_seconds: float
) -> Renewal:
    """Renews (batch id, attempt) pairs in one statement; what does not come back is lost."""
    scan_in_order(connection)
    found = connection.execute(
        RENEW,
        {
            "owner": owner,
            "ids": [batch_id for batch_id, _ in leases],
            "attempts": [attempt for _, attempt in leases],
            "lease_seconds": lease_seconds,
        },
    ).all()
    return Renewal(
        held=frozenset((row.id, row.attempt) for row in found),
        unwanted=frozenset((row.id, row.attempt) for row in found if row.job_over),
    )


RENEW = text("""
    UPDATE batches b SET lease_expires_at = now() + make_interval(secs => :lease_seconds)
    FROM (SELECT b.id, j.state NOT IN ('running', 'paused') AS job_over
          FROM unnest(:ids, :attempts) AS mine (id, attempt)
          JOIN batches b ON b.id = mine.id AND b.attempt = mine.attempt
          JOIN jobs j ON j.id = b.job_id
          WHERE b.owner = :owner AND b.state = 'leased'
          ORDER BY b.id FOR UPDATE OF b) AS mine
    WHERE b.id = mine.id
    RETURNING b.id, b.attempt, mine.job_over
""").bindparams(bindparam("ids", type_=ARRAY(BIGINT)), bindparam("attempts", type_=ARRAY(INTEGER)))


def commit(connection: Connection, lease: Lease, part: Part) -> None:
    """Commits one batch, see `commit_group`; LeaseLost when the fence does not match."""
    if not commit_group(connection, [(lease, part)]):
        raise LeaseLost(f"batch {lease.batch_id} attempt {lease.attempt} belongs to somebody else")


def commit_group(
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


COMMIT = text("""
    WITH mine AS MATERIALIZED (
        SELECT * FROM unnest(:id, :attempt, CAST(:owner AS text[]), :job_id,
                             CAST(:name AS text[]), :bytes, CAST(:checksum AS text[]),
                             :rows_failed, :prompt_tokens, :output_tokens,
                             CAST(:redo AS text[]), :redo_count, :most_losses, :rows_run,
                             :rows_wrong, CAST(:rows AS text[]), :low, :high)
            AS m (id, attempt, owner, job_id, name, bytes, checksum, rows_failed, prompt_tokens,
                  output_tokens, redo, redo_count, most_losses, rows_run, rows_wrong, rows, low,
                  high)
    ), open_jobs AS MATERIALIZED (
        SELECT id FROM jobs WHERE id = ANY (:job_id) AND state IN ('running', 'paused')
        ORDER BY id FOR KEY SHARE
    ), held AS MATERIALIZED (
        SELECT b.id, b.attempt
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
            output_tokens = m.output_tokens
        FROM held JOIN mine m ON m.id = held.id AND m.attempt = held.attempt
        WHERE a.batch_id = held.id AND a.attempt = held.attempt
    )
    SELECT id, attempt FROM held
""").bindparams(
    *(
        bindparam(name, type_=ARRAY(BIGINT))
        for name in ("id", "job_id", "bytes", "prompt_tokens", "output_tokens", "low", "high")
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
        **_fence(lease),
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
        _fence(lease),
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
    _end_attempt(connection, lease, Outcome.SPLIT, len(finished), part)


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


def release(
    connection: Connection,
    leases: Sequence[Lease],
    *,
    error: str | None = None,
    pause_seconds: float = 0,
) -> None:
    """Gives batches back untouched: pending, nothing charged. Lost ones are passed over.

    After an outage (`error` names it) nobody claims them again for `pause_seconds`.
    """
    connection.execute(
        RELEASE,
        {
            "ids": [lease.batch_id for lease in leases],
            "attempts": [lease.attempt for lease in leases],
            "owners": [lease.owner for lease in leases],
            "error": error,
            "pause_seconds": pause_seconds,
        },
    )


FREED = """
    WITH freed AS (
        UPDATE batches b SET state = 'pending', lease_expires_at = NULL {set}
        FROM (SELECT b.id FROM batches b {where} {lock}) AS mine
        WHERE b.id = mine.id
        RETURNING b.id, b.attempt, b.job_id, b.row_count, b.losses
    ), ended AS (
        UPDATE attempts a SET ended_at = now(), outcome = {outcome}, error = {error}
        FROM freed WHERE a.batch_id = freed.id AND a.attempt = freed.attempt
          AND a.ended_at IS NULL
    )
    SELECT id, row_count, losses FROM freed
"""
RELEASE = text(
    FREED.format(
        set=""", last_error = coalesce(CAST(:error AS text), b.last_error),
               not_before = now() + make_interval(secs => :pause_seconds)""",
        where="""JOIN unnest(:ids, :attempts, CAST(:owners AS text[])) AS mine (id, attempt, owner)
             ON b.id = mine.id AND b.attempt = mine.attempt AND b.owner = mine.owner
             WHERE b.state = 'leased'""",
        lock="ORDER BY b.id FOR UPDATE OF b",
        outcome="'released'",
        error="CAST(:error AS text)",
    )
).bindparams(bindparam("ids", type_=ARRAY(BIGINT)), bindparam("attempts", type_=ARRAY(INTEGER)))
RELEASE_OWNER = text(
    FREED.format(
        set="",
        where="WHERE b.state = 'leased' AND b.owner = :owner AND NOT b.id = ANY (:kept)",
        lock="ORDER BY b.id FOR UPDATE",
        outcome="'released'",
        error="NULL",
    )
).bindparams(bindparam("kept", type_=ARRAY(BIGINT)))
LOSE_OWNER = text(
    FREED.format(
        set=", losses = b.losses + 1, last_error = CAST(:error AS text)",
        where="WHERE b.state = 'leased' AND b.owner = :owner",
        lock="ORDER BY b.id FOR UPDATE",
        outcome="'lost'",
        error="CAST(:error AS text)",
    )
)
REAP = text(
    FREED.format(
        set=", losses = b.losses + 1, last_error = CAST(:error AS text)",
        where="WHERE b.state = 'leased' AND b.lease_expires_at < now()",
        # It waits for nobody, and so needs no order.
        lock="LIMIT :limit FOR UPDATE SKIP LOCKED",
        outcome="'lost'",
        error="CAST(:error AS text)",
    )
)


def release_owner(connection: Connection, owner: str, kept: Sequence[int] = ()) -> int:
    """Gives back the leases of one child without a charge; returns how many.

    `kept` are batch ids in its hands: without those, what is left are claims whose COMMIT answer
    was lost, which nobody would renew.
    """
    return len(connection.execute(RELEASE_OWNER, {"owner": owner, "kept": list(kept)}).all())


def lose_owner(connection: Connection, owner: str, error: str) -> int:
    """The engine of a child died: every batch it held is a suspect, `losses + 1`."""
    return _lost(connection, connection.execute(LOSE_OWNER, {"owner": owner, "error": error}).all())


def reap(connection: Connection, limit: int = 500) -> int:
    """Takes back leases that ran out by Postgres's clock, `losses + 1`; returns how many."""
    scan_in_order(connection)
    error = "the lease ran out: its worker is gone, frozen or cut off"
    return _lost(connection, connection.execute(REAP, {"limit": limit, "error": error}).all())


def _lost(connection: Connection, lost: Sequence[Any]) -> int:
    """What was lost while it ran alone is halved, so that the killer row is found."""
    for batch in lost:
        if batch.losses > LONE_LOSSES and batch.row_count > 1:
            halve(connection, batch.id)
    return len(lost)


def fail(
    connection: Connection,
    lease: Lease,
    error: str,
    *,
    permanent: bool,
    max_attempts: int,
    backoff_seconds: float,
) -> None:
    """Charges a failure: pending with backoff (doubling), or dead when permanent or out of
    attempts.

    Raises LeaseLost when the fence does not match.
    """
    held = connection.scalar(
        FAIL,
        {
            **_fence(lease),
            "error": error,
            "permanent": permanent,
            "max_attempts": max_attempts,
            "backoff_seconds": backoff_seconds,
        },
    )
    if held is None:
        raise LeaseLost(f"batch {lease.batch_id} attempt {lease.attempt} belongs to somebody else")
    _end_attempt(connection, lease, Outcome.FAILED, 0, None, error)


FAIL = text("""
    UPDATE batches
    SET failures = failures + 1, last_error = :error, lease_expires_at = NULL,
        state = CASE WHEN :permanent OR failures + 1 >= :max_attempts
                     THEN 'dead' ELSE 'pending' END,
        not_before = CASE WHEN :permanent OR failures + 1 >= :max_attempts THEN NULL
                          ELSE now() + make_interval(
                              secs => :backoff_seconds * power(2, least(failures, 6))) END
    WHERE id = :id AND attempt = :attempt AND owner = :owner AND state = 'leased'
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


def _fence(lease: Lease) -> dict[str, object]:
    return {"id": lease.batch_id, "attempt": lease.attempt, "owner": lease.owner}


def _take_parent(connection: Connection, batch_id: int, lease: Lease | None) -> Any:
    if lease is None:
        return connection.execute(TAKE_FREE, {"id": batch_id}).mappings().one_or_none()
    parent = connection.execute(TAKE_HELD, _fence(lease)).mappings().one_or_none()
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


def _end_attempt(
    connection: Connection,
    lease: Lease,
    outcome: Outcome,
    rows: int,
    part: Part | None,
    error: str | None = None,
) -> None:
    connection.execute(
        text("""
            UPDATE attempts SET ended_at = now(), outcome = :outcome, error = :error,
                   row_count = :rows, rows_failed = :rows_failed, prompt_tokens = :prompt_tokens,
                   output_tokens = :output_tokens
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
        },
    )


def _lease(row: RowMapping) -> Lease:
    lone = row["losses"] - LONE_LOSSES
    lease = Lease(
        batch_id=row["id"],
        attempt=row["attempt"],
        owner=row["owner"],
        job_id=row["job_id"],
        seq=row["seq"],
        is_root=row["parent_id"] is None,
        descriptor=descriptor(row),
        alone=row["losses"] >= LONE_LOSSES,
        doomed=lone > 0
        and (row["redo_count"] >> lone == 0 if row["redo"] else row["row_count"] == 1),
        redo=None if row["redo"] is None else from_multirange(row["redo"]),
        kept_part=row["part_name"],
    )
    if lease.redo is None or lone <= 0:
        return lease
    # A retry beside kept answers is not halved in the ledger: it runs fewer rows at a time.
    return lease.narrowed(lease.redo.first(max(1, len(lease.redo) >> lone)))


def descriptor(row: RowMapping) -> Descriptor:
    """The descriptor of a batch row that was joined with its input file."""
    source = SourceFile(
        row["uri"],
        row["format"],
        row["size"],
        row["fingerprint"],
        row["file_rows"],
        row["first_row"],
    )
    locator = None
    if row["locator_row"] is not None:
        locator = Locator(row["locator_row"], row["byte_offset"], row["byte_length"])
    return Descriptor(source, from_multirange(row["rows"]), locator)
