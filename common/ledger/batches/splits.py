"""Splits: a batch is replaced by children that cover its rows, at a drain or to find a killer row.
Handovers are a third user.
"""

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches import commits
from nightshift.common.ledger.batches.records import LONE_LOSSES, NO_ROWS, Lease, Part
from nightshift.common.ledger.batches.takes_commits import TAKES_COMMITS
from nightshift.common.ledger.connection import Connection
from nightshift.common.states import Outcome

_SPLIT_LEASED = """
    UPDATE batches SET state = 'split', lease_expires_at = NULL, rank = NULL, part_name = NULL,
           part_bytes = NULL, part_checksum = NULL, redo = NULL, redo_count = 0
    WHERE id = :id AND attempt = :attempt AND owner = :owner AND state = 'leased' AND redo IS NULL
      AND EXISTS (SELECT FROM jobs j WHERE j.id = batches.job_id AND {job})
    RETURNING id
"""

SPLIT_FINISHED = text(_SPLIT_LEASED.format(job=TAKES_COMMITS))
"""Makes a leased batch a split parent, fenced by its lease, while its job takes commits; a retry is
never split.
"""

SPLIT_HELD = text(_SPLIT_LEASED.format(job="j.state IN ('running', 'paused')"))
"""The same unless its job is over: its rows go on."""

SPLIT_FREE = text("""
    UPDATE batches SET state = 'split', lease_expires_at = NULL, rank = NULL, part_name = NULL,
           part_bytes = NULL, part_checksum = NULL, redo = NULL, redo_count = 0, owner = NULL
    WHERE id = :id AND state = 'pending' AND row_count > 1 AND redo IS NULL AND part_name IS NULL
      AND (SELECT j.state FROM jobs j WHERE j.id = batches.job_id) IN ('running', 'paused')
    RETURNING rows
""")
"""Makes a batch that nobody holds a split parent, if it has rows to halve and no part, unless its
job is over.

The owner goes: who lost the lease must not read `split` as the outcome of its own commit.
"""

INSERT_DONE = text("""
    INSERT INTO batches (job_id, seq, parent_id, file_index, rows, row_count, locator_row,
                         byte_offset, byte_length, failures, losses, attempt, owner, state,
                         part_name, part_bytes, part_checksum, rows_failed, prompt_tokens,
                         output_tokens, version_id)
    SELECT job_id, seq, id, file_index, :rows, :rows_run, locator_row, byte_offset, byte_length,
           failures, losses, attempt, :owner, 'done', :name, :bytes, :checksum, :rows_failed,
           :prompt_tokens, :output_tokens, (SELECT version_id FROM workers w WHERE w.id = :owner)
    FROM batches WHERE id = :id
    RETURNING id
""")
"""A child of a split parent that is done, with the part that holds its rows."""

INSERT_PENDING = text("""
    INSERT INTO batches (job_id, seq, parent_id, file_index, rows, row_count, locator_row,
                         byte_offset, byte_length, failures, losses, attempt, state)
    SELECT job_id, seq, id, file_index, :rows, :row_count, locator_row, byte_offset, byte_length,
           failures, least(losses, :most_losses), attempt, 'pending'
    FROM batches WHERE id = :id
""")
"""A child of a split parent that waits for admission."""

END_ATTEMPT = text("""
    UPDATE attempts SET ended_at = now(), outcome = :outcome, row_count = :rows_run,
           rows_failed = :rows_failed, prompt_tokens = :prompt_tokens,
           output_tokens = :output_tokens, engine_microseconds = :engine_microseconds,
           unsent = :unsent
    WHERE batch_id = :id AND attempt = :attempt
""")
"""The end of the attempt that finished some rows of its batch."""


def split(
    connection: Connection,
    lease: Lease,
    finished: RowRanges,
    part: Part,
    unsent: RowRanges = NO_ROWS,
) -> None:
    """An owner that drains, or whose job is over, keeps its finished rows: they become a done child with the
    parent's part name, the rest one pending child. Charges nothing. `unsent` are rows whose requests this lease
    never sent. LeaseLost when the fence does not match or the job takes no commits.
    """
    if connection.scalar(SPLIT_FINISHED, lease.fence) is None:
        raise lease.lost
    ran = {
        **lease.fence,
        **part.facts,
        "job_id": lease.job_id,
        "outcome": Outcome.SPLIT,
        "rows": finished,
        "rows_run": len(finished),
        "rows_failed": len(part.errors),
        "engine_microseconds": part.engine_microseconds,
        "unsent": unsent if len(unsent) else None,
    }
    child_id = int(connection.execute(INSERT_DONE, ran).scalar_one())
    insert_pending(connection, lease.batch_id, lease.descriptor.rows.minus(finished))
    commits.replace_errors(connection, lease.job_id, child_id, finished, part.errors)
    connection.execute(END_ATTEMPT, ran)


def halve(connection: Connection, batch_id: int) -> bool:
    """Replaces a batch that nobody holds by its two halves; False when it has only one row left
    to run, keeps answers of an earlier part, is held, or when its job is over.
    """
    rows: RowRanges | None = connection.scalar(SPLIT_FREE, {"id": batch_id})
    if rows is None:
        return False
    for half in rows.halves():
        # A half was not lost alone itself yet: it runs alone once more before it is isolated.
        insert_pending(connection, batch_id, half, LONE_LOSSES)
    return True


def insert_pending(
    connection: Connection, parent_id: int, rows: RowRanges, most_losses: int | None = None
) -> None:
    """A child of a split parent that waits for admission, with the parent's losses, cut to
    `most_losses` if set.
    """
    connection.execute(
        INSERT_PENDING,
        {"id": parent_id, "rows": rows, "row_count": len(rows), "most_losses": most_losses},
    )
