"""Hands rows that have not begun over to idle siblings, once a supervisor has seen such siblings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import NightshiftError, Retryable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger.batches import handovers
from nightshift.common.ledger.batches.handovers import Siblings
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.connection import Connection
from nightshift.worker.child_context import ChildContext
from nightshift.worker.handover.decision import MOST_ATTEMPT, Load, gift, part_sizes
from nightshift.worker.held_batch import HeldBatch, Move, State
from nightshift.worker.outages import suppressed


@dataclass(frozen=True, slots=True)
class Handover:
    """What a busy child does for idle siblings. `release` ends a batch of which no row has begun.

    A row that the engine has begun stays. So do batches that run alone, and retries, which are never
    split.
    """

    child: ChildContext
    release: Callable[[HeldBatch], None]

    def help_siblings(self) -> int:
        """Hands rows over where that is worth a move; returns how many."""
        batches = [batch for batch in self.child.window.held() if _may_move(batch)]
        if not batches:
            return 0
        with suppressed(Retryable, self.child.ledger.recorder, "siblings_unknown"):
            with self.child.ledger.transaction() as connection:
                siblings = handovers.siblings(
                    connection, self.child.who, self.child.settings.lease_seconds
                )
            return self._hand_over(batches, siblings)
        return 0

    def _hand_over(self, batches: Sequence[HeldBatch], siblings: Siblings) -> int:
        batches = [batch for batch in batches if batch.lease.job_id in siblings.room]
        unfinished, finished, seconds = self.child.window.work()
        waiting = {batch: _waiting(batch) for batch in batches}
        given = gift(Load(unfinished, sum(waiting.values()), finished, seconds), siblings)
        if not given.pieces:
            return 0
        # Whole batches first, the last claimed of them first: they would begin last.
        batches.sort(key=lambda each: (waiting[each] == each.unfinished, each.claimed_at))
        left = given.rows
        for batch in reversed(batches):
            rows = min(left, waiting[batch])
            pieces = len(part_sizes(rows, given.piece_rows))
            room = siblings.room[batch.lease.job_id]
            if rows and (room is None or pieces <= room or rows == len(batch.lease.todo)):
                left -= self._hand_over_rows(batch, rows, given.piece_rows)
        return given.rows - left

    def _hand_over_rows(self, batch: HeldBatch, most_rows: int, piece_rows: int) -> int:
        """Hands over at most `most_rows` rows of a batch; returns how many.

        Where the ledger refuses that, the rows stay out of the engine, and the end of the batch makes
        a batch of them, as after a drain.
        """
        if batch.move(Move.HAND_OVER) is None:
            return 0
        whole = False
        try:
            todo = batch.lease.todo
            rows = todo if batch.work is None else _taken_back(batch, most_rows)
            if not len(rows) or len(rows) > most_rows:
                return 0
            whole = len(rows) == len(todo)
            pieces = _pieces(rows, piece_rows)
            if not whole or len(pieces) > 1:
                whole = self._split(batch, pieces)
            else:
                reached(Moment.HANDING_OVER)
            if whole:
                batch.stop()
        finally:
            batch.move(Move.HANDED_OVER)
        if whole:
            self.release(batch)
        return len(rows)

    def _split(self, batch: HeldBatch, pieces: Sequence[RowRanges]) -> bool:
        """Makes batches of the pieces; True when no row is left of the batch."""

        def split(connection: Connection) -> Lease | None:
            kept = handovers.hand_over(
                connection, batch.lease, pieces, self.child.settings.lease_seconds
            )
            reached(Moment.HANDING_OVER)
            return kept

        lost = suppressed(
            NightshiftError,
            self.child.ledger.recorder,
            "handover_failed",
            batch_id=batch.lease.batch_id,
        )
        with lost:
            kept = self.child.ledger.transact(split)
            if kept is None:
                return True
            self.child.window.hand_over(batch, kept)
        return False


def _may_move(batch: HeldBatch) -> bool:
    lease = batch.lease
    return not (
        lease.alone
        or lease.redo is not None
        or lease.attempt >= MOST_ATTEMPT
        or batch.state is not State.RUNNING
    )


def _waiting(batch: HeldBatch) -> int:
    """Rows of the batch that have not begun: all of a batch that is being read."""
    work = batch.work
    return batch.unfinished if work is None else work.rows_waiting


def _taken_back(batch: HeldBatch, most_rows: int) -> RowRanges:
    assert batch.work is not None
    return RowRanges.from_indices(batch.work.take_back(most_rows))


def _pieces(rows: RowRanges, piece_rows: int) -> list[RowRanges]:
    """Neighbouring rows together, about so many a piece."""
    pieces = []
    for size in part_sizes(len(rows), piece_rows):
        pieces.append(rows.first(size))
        rows = rows.minus(pieces[-1])
    return pieces
