"""The rows that a child holds in flight at once, and the batches they belong to."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.jobs.spending import Spent
from nightshift.worker.held_batch import HeldBatch, State
from nightshift.worker.telemetry.job_spending import JobSpending

READ_AHEAD_BATCHES = 2
"""So many batches with unfinished rows are always claimed: the next is read while one runs."""

REFILL_FRACTION = 0.25
"""Share of the window that must be empty before more is claimed, so that small batches come several
at a time. The engine, which runs half a window at once, then still has as many rows waiting."""

SHARE_SECONDS = 0.25
"""How long a fair share counts: work may be admitted and siblings may come at any moment."""

MOST_BATCHES = 256
"""Batches held at once, and so their threads; bounds memory where batches have few rows."""


class Window:
    """Room for more rows, from the engine's own concurrency.

    `rows` is how many unfinished rows keep the engine full with some to spare: more batches are
    claimed whenever fewer are in flight. A row counts once for each of its samples. A batch that must run alone takes all the room. While the
    queue has little work left, a fair share of that work takes the place of `rows`.
    """

    @classmethod
    def of_engine(cls, concurrency: int) -> "Window":
        """Twice what an engine runs at once: as many rows wait in it as it works on."""
        return cls(2 * concurrency)

    def __init__(self, rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = rows
        self._clock = clock
        self._busy_since = 0.0
        self._finished = 0
        self.spending = JobSpending()
        self._share: int | None = None
        self._held: set[HeldBatch] = set()
        self._unfinished = 0
        self._sequences = 0
        self._samples = 1
        self._running = 0
        self._changed = threading.Condition()
        self._closed = False

    @property
    def refill_rows(self) -> int:
        """Rows that are claimed at a time while the window is kept full."""
        return int(REFILL_FRACTION * self.rows)

    def wait_for_room(self) -> bool:
        """Waits until rows fit, or until the fair share must be asked for again. Returns False when
        the window was closed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._has_room(),
                None if self._share is None else SHARE_SECONDS,
            )
            return not self._closed

    def bound(self, share_rows: int | None) -> None:
        """Bounds the window to a fair share of the work that is left; None when there is enough."""
        with self._changed:
            small = share_rows is not None and share_rows < self.rows
            self._share = share_rows if small else None
            self._changed.notify_all()

    @property
    def holds_its_share(self) -> bool:
        """True when a fair share, not the engine, is why there is no room."""
        with self._changed:
            return self._share is not None and not self._has_room()

    def room(self) -> tuple[int, int]:
        """(rows, batches) that may be claimed now; the rows are at least 1 while there is room."""
        with self._changed:
            if self._closed or not self._has_room():
                return 0, 0
            if self._share is None:
                rows = (self.rows - self._sequences) // self._samples
            else:
                rows = self._share - self._unfinished
            return max(1, rows), MOST_BATCHES - len(self._held)

    def add(self, batch: HeldBatch) -> None:
        """A claimed batch is in flight from here on."""
        self.spending.hold(batch.lease.job_id, len(batch.lease.todo))
        with self._changed:
            if not self._held:
                self._busy_since, self._finished = self._clock(), 0
            self._held.add(batch)
            self._unfinished += batch.unfinished
            self._sequences += batch.unfinished * batch.samples
            self._running += batch.unfinished > 0

    def weigh(self, batch: HeldBatch, samples: int) -> None:
        """The job of a batch is known, and so how many sequences each row is; the next rows that are claimed
        are taken for such rows, too.
        """
        with self._changed:
            if batch in self._held:
                self._sequences += batch.unfinished * (samples - batch.samples)
            batch.samples = self._samples = samples
            self._changed.notify_all()

    def row_finished(self, batch: HeldBatch, rows: int = 1) -> None:
        """Rows of a batch left the engine: there may be room for others. The rows of a batch that is
        over count no more.
        """
        with self._changed:
            self._finished += rows
            self._forget(batch, rows)
            if self._has_room():  # most rows leave too little room to wake a thread for
                self._changed.notify_all()

    def set_aside(self, batch: HeldBatch, rows: int) -> None:
        """Rows of a batch wait for the answer of another row: they keep no engine busy."""
        with self._changed:
            self._forget(batch, rows)
            if self._has_room():
                self._changed.notify_all()

    def take_back(self, batch: HeldBatch, rows: int) -> None:
        """Rows that were set aside run after all."""
        with self._changed:
            if rows and batch in self._held:
                self._running += batch.unfinished == 0
                batch.unfinished += rows
                self._unfinished += rows
                self._sequences += rows * batch.samples

    def remove(self, batch: HeldBatch) -> None:
        """The batch is committed, given back or lost."""
        with self._changed:
            was_held = batch in self._held
            self._forget(batch, batch.unfinished)
            self._held.discard(batch)
            self._changed.notify_all()
        if was_held:
            self.spending.release(batch.lease.job_id, len(batch.lease.todo))

    def hand_over(self, batch: HeldBatch, kept: Lease) -> None:
        """Rows of a batch go to other children: the batch is held under the lease `kept` now."""
        with self._changed:
            rows = len(batch.lease.todo) - len(kept.todo)
            batch.lease = kept
            self._forget(batch, rows)
        self.spending.release(kept.job_id, rows)

    def work(self) -> tuple[int, int, float]:
        """(unfinished rows, rows finished, seconds) since the child last held nothing."""
        with self._changed:
            return self._unfinished, self._finished, self._clock() - self._busy_since

    def spent(self, job_id: int | None = None, ending: Collection[int] = ()) -> list[Spent]:
        """What the child has spent so far on one job, or on every job. The batches with the ids
        `ending` end now: their rows are not open any more.
        """
        spent = self.spending.totals(job_id)
        rows_open: Counter[int] = Counter()
        done: Counter[int] = Counter()
        failed: Counter[int] = Counter()
        for batch in self.held():
            if batch.lease.batch_id in ending or batch.state is State.COMMITTED:
                continue
            of_job = batch.lease.job_id
            rows_open[of_job] += len(batch.lease.todo) - batch.unfinished
            done[of_job] += batch.rows_done
            failed[of_job] += batch.rows_failed
        return [
            replace(
                each,
                rows_open=rows_open[each.job_id],
                done_uncommitted=done[each.job_id],
                failed_uncommitted=failed[each.job_id],
            )
            for each in spent
        ]

    def close(self) -> None:
        """No more room: the child drains."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_empty(self, timeout_seconds: float) -> bool:
        """Waits until nothing is held; False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout_seconds)

    def wait_published(self, timeout_seconds: float) -> None:
        """Waits until no batch is between its last row and its end."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(batch.publishing for batch in self._held), timeout_seconds
            )

    def held(self) -> list[HeldBatch]:
        """The batches in flight now."""
        with self._changed:
            return list(self._held)

    def _forget(self, batch: HeldBatch, rows: int) -> None:
        if rows and batch in self._held:
            batch.unfinished -= rows
            self._unfinished -= rows
            self._sequences -= rows * batch.samples
            self._running -= batch.unfinished == 0

    def _has_room(self) -> bool:
        if len(self._held) >= MOST_BATCHES or self._alone():
            return False
        if self._share is not None:
            return self._unfinished < self._share
        if self._running < READ_AHEAD_BATCHES:
            return True
        full = 1 - REFILL_FRACTION
        return self._sequences <= full * self.rows and len(self._held) <= full * MOST_BATCHES

    def _alone(self) -> bool:
        return len(self._held) == 1 and next(iter(self._held)).lease.alone
