"""Commit: a finished batch becomes done and names its part, the errors of the part replace those
that its rows had; and the answer to a lost COMMIT.

Every statement about a held batch is fenced by its id, attempt and owner.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches.records import LONE_LOSSES, Lease, Part
from nightshift.common.ledger.batches.takes_commits import TAKES_COMMITS
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.statements import statement
from nightshift.common.row_errors import RowError
from nightshift.common.states import Outcome

ERRORS_A_STATEMENT = 10_000
"""Row errors that one statement writes, so that each is answered in time."""

COMMIT = statement(__file__, "commit", takes_commits=TAKES_COMMITS)

CLEAR_ERRORS = text("""
    DELETE FROM row_errors e WHERE e.job_id = :job_id
    AND e.row_index BETWEEN :low AND :high AND CAST(:rows AS int8multirange) @> e.row_index
""")
"""The errors of some rows of a job; low and high let Postgres use the primary key."""

INSERT_ERRORS = text("""
    INSERT INTO row_errors (job_id, row_index, batch_id, row_id, kind, message)
    SELECT * FROM unnest(CAST(:job_id AS bigint[]), CAST(:row_index AS bigint[]),
                         CAST(:batch_id AS bigint[]), CAST(:row_id AS text[]),
                         CAST(:kind AS text[]), CAST(:message AS text[]))
""")
"""Errors of any number of rows, jobs and batches."""


def commit(
    connection: Connection, finished: Sequence[tuple[Lease, Part]]
) -> frozenset[tuple[int, int]]:
    """Marks batches done and names their parts, each fenced by itself; returns the (batch id,
    attempt) pairs of those whose fence matched.

    A lease that ran out still commits while nobody else has claimed the batch: attempt and
    owner stay until the next claim. A retry that has rows for later is pending again: the part
    holds their old lines, and `row_errors` their old errors.
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


def commit_large(connection: Connection, lease: Lease, part: Part) -> None:
    """Commits one batch with any number of row errors, which are written before the batch is locked:
    the heartbeat of its child must not wait for a million of them. Raises LeaseLost when the fence
    does not match; the transaction must then be rolled back.
    """
    replace_errors(connection, lease.job_id, lease.batch_id, lease.descriptor.rows, part.errors)
    row = _finished(lease, part)
    # `replace_errors` has stored the errors of this part. The empty range from 1 to 0 makes COMMIT delete
    # none of them.
    row |= {"low": 1, "high": 0}
    if not connection.execute(COMMIT, {name: [row[name]] for name in row}).all():
        raise lease.lost


def is_committed(connection: Connection, lease: Lease) -> bool:
    """Whether this very lease ended with a part, read after a COMMIT whose outcome is unknown.

    The row of the attempt is read, because the batch may have been retried or lost since.
    """
    statement = text("""
        SELECT outcome FROM attempts
        WHERE batch_id = :id AND attempt = :attempt AND worker_id = :owner
    """)
    outcome = connection.scalar(statement, lease.fence)
    return outcome in (Outcome.DONE, Outcome.SPLIT)


def rename_part(
    connection: Connection, batch_id: int, name: str, new_name: str, size: int, checksum: str
) -> bool:
    """Names a rewritten part of the same rows; False when the batch has another part by now."""
    statement = text("""
        UPDATE batches SET part_name = :new_name, part_bytes = :size, part_checksum = :checksum
        WHERE id = :id AND part_name = :name AND state IN ('done', 'dead') RETURNING id
    """)
    renamed = connection.scalar(
        statement,
        {
            "id": batch_id,
            "name": name,
            "new_name": new_name,
            "size": size,
            "checksum": checksum,
        },
    )
    return renamed is not None


def replace_errors(
    connection: Connection,
    job_id: int,
    batch_id: int,
    rows: RowRanges,
    errors: Sequence[RowError],
) -> None:
    """Makes `errors` the only errors of the rows."""
    connection.execute(
        CLEAR_ERRORS,
        {
            "job_id": job_id,
            "rows": rows,
            "low": rows.ranges[0][0],
            "high": rows.ranges[-1][1] - 1,
        },
    )
    _insert_errors(connection, [(job_id, batch_id, error) for error in errors])


def _finished(lease: Lease, part: Part) -> dict[str, Any]:
    """The parameters of one batch of a group."""
    waiting = set(lease.later)
    # An attempt counts the rows of its own run, the batch all rows of its part.
    ran = None if lease.redo is None else set(lease.todo)
    rows = lease.descriptor.rows
    # The rows of an arranged batch lie all over the dataset, and have no errors without a part.
    low, high = rows.ranges[0][0], rows.ranges[-1][1] - 1
    if lease.descriptor.source.arranged is not None and lease.kept_part is None:
        low, high = 1, 0
    return {
        **lease.fence,
        **part.facts,
        "job_id": lease.job_id,
        "rows_failed": sum(error.row_index not in waiting for error in part.errors),
        "redo": lease.later if waiting else None,
        "redo_count": len(waiting),
        "most_losses": _losses_of_rest(lease),
        "rows_run": len(lease.todo),
        "rows_wrong": sum(ran is None or error.row_index in ran for error in part.errors),
        "prompt_spent": part.tokens_spent.prompt,
        "output_spent": part.tokens_spent.output,
        "rows": rows,
        "low": low,
        "high": high,
        "engine_microseconds": part.engine_microseconds,
        "ran": lease.redo,
    }


def _losses_of_rest(lease: Lease) -> int:
    """The most losses that the rest of a retry keeps.

    The search for a killer row goes on in pieces as small as this one, but a single row is
    isolated only after it was lost alone. Once a killer row is found, the search begins anew.
    """
    if lease.isolated:
        return LONE_LOSSES
    return LONE_LOSSES + max(0, len(lease.later).bit_length() - 1)


def _insert_errors(connection: Connection, errors: Sequence[tuple[int, int, RowError]]) -> None:
    """Adds (job, batch, error) of rows that have no error in the ledger yet."""
    for first in range(0, len(errors), ERRORS_A_STATEMENT):
        piece = errors[first : first + ERRORS_A_STATEMENT]
        connection.execute(
            INSERT_ERRORS,
            {
                "job_id": [job_id for job_id, _, _ in piece],
                "row_index": [error.row_index for _, _, error in piece],
                "batch_id": [batch_id for _, batch_id, _ in piece],
                "row_id": [error.row_id for _, _, error in piece],
                "kind": [error.kind.value for _, _, error in piece],
                "message": [error.message for _, _, error in piece],
            },
        )
