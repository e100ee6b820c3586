"""How many rows a busy child hands over: a pure function."""

import math
from dataclasses import dataclass

from nightshift.common.ledger.batches.handovers import Siblings

MOVE_SECONDS = 2.0
"""Work that is worth less stays. About what a move takes: rows become pending, a round of a reaper
admits them, a hint or the supervisor's look once a second wakes an idle child, which reads them."""

SHORTEST_SECONDS = 1e-6
"""No row is quicker: a child that has just begun knows nothing yet."""

MOST_ATTEMPT = 16
"""A batch that was claimed so often is handed over no more: no row wanders for ever."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a child: rows without an outcome, and how many of these rows have not begun.

    `seconds` have passed since it last held nothing, and `finished` rows have had an outcome since.
    """

    unfinished: int
    waiting: int
    finished: int
    seconds: float

    @property
    def row_seconds(self) -> float:
        """Seconds a row, at most: as if all rows that have begun were finished now."""
        return self.seconds / max(1, self.finished + self.unfinished - self.waiting)


@dataclass(frozen=True, slots=True)
class Gift:
    """What is handed over: `rows` rows, in `pieces` pieces of about the same size."""

    rows: int = 0
    pieces: int = 0

    @property
    def piece_rows(self) -> int:
        """Rows of a piece, about: see `part_sizes`."""
        return math.ceil(self.rows / self.pieces) if self.pieces else 0


NOTHING = Gift()


def part_sizes(rows: int, piece_rows: int) -> list[int]:
    """Rows of each part of what one batch gives: parts of about `piece_rows`, which differ by one row
    at most. A rest that is less than half a piece makes the other parts longer.
    """
    parts = max(1, round(rows / piece_rows))
    return [rows // parts + (at < rows % parts) for at in range(parts)]


def gift(load: Load, siblings: Siblings) -> Gift:
    """What a child hands over so that it and those that it serves have as many rows each.

    A child serves its share of the idle ones for which no batch waits. Each piece is worth a move.
    """
    idle = siblings.idle - siblings.waiting
    if idle <= 0 or load.waiting <= 0:
        return NOTHING
    least_rows = max(1, math.ceil(MOVE_SECONDS / max(load.row_seconds, SHORTEST_SECONDS)))
    worth = min(load.waiting // least_rows, load.unfinished // least_rows - 1)
    served = max(0, min(math.ceil(idle / (siblings.busy + 1)), worth))
    kept = math.ceil(load.unfinished / (served + 1))
    rows = min(load.waiting, load.unfinished - kept)
    pieces = min(served, rows // least_rows)
    return Gift(rows, pieces) if pieces else NOTHING
