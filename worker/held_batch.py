"""A batch that a child holds: where the batch stands between claim and end, and who may move it on.

Batch threads, the heartbeat, handovers, a drain and callbacks of the engine all move a batch, at any
moment. Each asks for a move; the table MOVES says what a move makes of a state, and that the rest is
refused. docs/states.md draws the table.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches.records import NO_ROWS, Lease
from nightshift.worker.engines.protocol import Work


class State(Enum):
    """Where a held batch stands."""

    RUNNING = auto()
    """It waits for its thread, is read, or runs in the engine."""
    MOVING = auto()
    """Rows that have not begun go to another child."""
    MOVING_STOPPED = auto()
    """The same, and the engine drops the other rows."""
    MOVING_LEFT = auto()
    """The same, and the batch has left the engine meanwhile."""
    STOPPED = auto()
    """The engine drops the rows that it has not finished; finished rows are kept."""
    LEFT = auto()
    """It has left the engine in order. Its thread publishes it, or runs rows that waited for others."""
    PUBLISHING = auto()
    """Nothing of it runs in the engine any more: its thread makes, writes and commits its part."""
    COMMITTED = auto()
    """The ledger has its part, which goes to its place."""
    OVER = auto()
    """The batch is ended, and is not ended a second time. Its thread may still be at work."""


class Move(Enum):
    """A step that a thread wants to make with a held batch."""

    HAND_OVER = auto()
    """A handover: rows may go to other children."""
    HANDED_OVER = auto()
    """The handover is done; the lease of the batch is another one where rows went."""
    STOP = auto()
    """A drain, a job that is over or without money, a handover of all rows, an engine that failed."""
    LEAVE = auto()
    """The engine, or the thread where no row goes there: the work is over, and not cancelled or failed."""
    AGAIN = auto()
    """The batch's thread: rows that waited for another row in vain run after all."""
    PUBLISH = auto()
    """The batch's thread: no row goes away any more, what is finished is published."""
    COMMIT = auto()
    """The batch's thread: the ledger has the part."""
    LOSE = auto()
    """The heartbeat: the lease belongs to another worker."""
    UNWANT = auto()
    """The heartbeat: the job is over, and no row of the batch is to be kept."""
    GIVE_UP = auto()
    """The heartbeat: the batch's thread hangs, or writes for a job that is over."""
    END = auto()
    """The batch's thread, a handover of all rows, a claim that got no thread: the batch ends."""


MOVES: Mapping[Move, Mapping[State, State]] = {
    Move.HAND_OVER: {State.RUNNING: State.MOVING},
    Move.HANDED_OVER: {
        State.MOVING: State.RUNNING,
        State.MOVING_STOPPED: State.STOPPED,
        State.MOVING_LEFT: State.PUBLISHING,
    },
    Move.STOP: {
        State.RUNNING: State.STOPPED,
        State.MOVING: State.MOVING_STOPPED,
        State.LEFT: State.PUBLISHING,
    },
    Move.LEAVE: {
        State.RUNNING: State.LEFT,
        State.MOVING: State.MOVING_LEFT,
        State.MOVING_STOPPED: State.MOVING_LEFT,
        State.STOPPED: State.PUBLISHING,
    },
    Move.AGAIN: {State.LEFT: State.RUNNING},
    Move.PUBLISH: dict.fromkeys(
        (State.RUNNING, State.STOPPED, State.LEFT, State.PUBLISHING), State.PUBLISHING
    ),
    Move.COMMIT: {State.PUBLISHING: State.COMMITTED},
    # One that has left the engine may have been committed since the ledger was asked, and where rows move
    # the lease is another one in a moment: the next beat asks again.
    Move.LOSE: dict.fromkeys((State.RUNNING, State.STOPPED), State.OVER),
    Move.UNWANT: dict.fromkeys((State.RUNNING, State.STOPPED), State.OVER),
    Move.GIVE_UP: dict.fromkeys(
        (State.RUNNING, State.STOPPED, State.LEFT, State.PUBLISHING, State.COMMITTED), State.OVER
    ),
    Move.END: dict.fromkeys(
        (State.RUNNING, State.STOPPED, State.LEFT, State.PUBLISHING, State.COMMITTED), State.OVER
    ),
}
"""What each move makes of a state. A move of a state that is not here is refused."""

MOVES_ROWS = (State.MOVING, State.MOVING_STOPPED, State.MOVING_LEFT)

LEAVING = (State.MOVING_LEFT, State.LEFT, State.PUBLISHING, State.COMMITTED)

WAITING = (Move.PUBLISH, Move.END)
"""Moves that wait until no row moves. The heartbeat, a drain and the engine never wait."""


@dataclass(slots=True, eq=False)
class Progress:
    """Whether the thread of a group of batches is in a stage (it reads, renders or writes), and how
    often the thread has moved.

    The thread is in no stage while it waits for the engine or for the ledger.
    """

    moves: int = 0
    in_stage: bool = False

    @contextmanager
    def stage(self) -> Iterator[Callable[[], None]]:
        """Around one stage; the thread calls what it is given after each row or file."""
        self.moved()
        self.in_stage = True
        try:
            yield self.moved
        finally:
            self.in_stage = False

    def moved(self) -> None:
        """The thread does not hang."""
        self.moves += 1


@dataclass(slots=True, eq=False)
class HeldBatch:
    """A leased batch between claim and end.

    Batches that one thread runs share their `progress`. `claimed_at` is in monotonic seconds. The lease
    changes only while rows move. The engine draws `samples` sequences of each row; 1 until the job is
    known. `rows_done` and `rows_failed` are rows with an answer or an error so far.
    """

    lease: Lease
    unfinished: int
    work: Work | None = None
    samples: int = 1
    rows_done: int = 0
    rows_failed: int = 0
    state: State = State.RUNNING
    progress: Progress = field(default_factory=Progress)
    claimed_at: float = field(default_factory=time.monotonic)
    _was_attached: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def move(self, move: Move) -> State | None:
        """Makes a move; returns the state of before, or None where the move is refused."""
        with self._changed:
            if move in WAITING:
                self._wait_for_rows()
            before = self.state
            after = MOVES[move].get(before)
            if after is None:
                return None
            self.state = after
            self._changed.notify_all()
            return before

    def attach(self, work: Work) -> None:
        """From now on a stop reaches the engine; a stop that came before is passed on now."""
        with self._changed:
            self._wait_for_rows()
            self.work, self._was_attached = work, True
            is_late = self.state is not State.RUNNING
        if is_late:  # without the lock: a callback of the engine may want it
            work.stop()

    def stop(self) -> None:
        """The engine drops the rows that it has not finished; finished rows are kept."""
        self.move(Move.STOP)
        self.drop_rows()

    def lose(self, asked: tuple[int, int]) -> State | None:
        """LOSE for the lease with this id and attempt; None also where the batch has another lease by now."""
        with self._changed:
            if asked != (self.lease.batch_id, self.lease.attempt):
                return None
            return self.move(Move.LOSE)

    def drop_rows(self) -> None:
        """The engine drops the rows that it has not finished."""
        with self._changed:
            work = self.work
        if work is not None:
            work.stop()

    def withdraw_unsent(self) -> RowRanges:
        """The rows whose requests this lease never sent to the engine, which from now on never sends them: for
        whoever ends the batch, or a part of it.
        """
        with self._changed:
            work = self.work
        if work is not None:
            return RowRanges.from_indices(work.withdraw_unsent())
        return NO_ROWS if self._was_attached else self.lease.todo

    @property
    def has_finished_rows(self) -> bool:
        """Whether rows of the batch have an answer or an error."""
        return self.rows_done + self.rows_failed > 0

    @property
    def runs(self) -> bool:
        """Whether rows of the batch may begin in the engine."""
        return self.state in (State.RUNNING, State.MOVING)

    @property
    def publishing(self) -> bool:
        """Whether the batch is between its last row and its end."""
        return self.state in LEAVING

    def _wait_for_rows(self) -> None:
        self._changed.wait_for(lambda: self.state not in MOVES_ROWS)


class Reason(Enum):
    """Why a heartbeat ends a batch in place of its thread."""

    LOST = auto()
    UNWANTED = auto()
    HUNG = auto()


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A batch that a heartbeat ended, which stood in the state `was`."""

    batch: HeldBatch
    was: State
    reason: Reason
