"""The main loop of a child: claims what its engine has room for, and runs it in threads."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nightshift.common import storage
from nightshift.common.errors import Retryable
from nightshift.common.ledger.batches import claims, leasing, neighbours
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.connection import IDLE_IN_TRANSACTION_SECONDS, Connection
from nightshift.worker.batch.run import BatchRunner
from nightshift.worker.child_context import ChildContext
from nightshift.worker.handover.handover import Handover
from nightshift.worker.held_batch import GivenBack, HeldBatch
from nightshift.worker.supervisor.channel import ToSupervisor, Word
from nightshift.worker.telemetry.stage import Stage
from nightshift.worker.window import MOST_BATCHES, SHARE_SECONDS

EMPTY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses after claims that found nothing, before the child waits for the next hint."""

GRACE_LOOK_SECONDS = 0.25
"""Pause between two looks of a drain at how much time it has."""

LEFT_SECONDS = 5.0
"""How long rows that were handed over are left to the siblings. These take them within two rounds of a
reaper and a look of their supervisor, about 2 s; then the child may claim what nobody took."""

HINT_SECONDS = 1.0
"""Celery looks for the next hint within this time."""


@dataclass(eq=False)
class Runner:
    """Keeps one engine full with the batches of its queue.

    A thread runs a group of claimed batches up to their commits; the engine mixes the rows of all
    groups. Nothing is claimed while the slot is `cordoned`. `asked_at` is when Postgres was last asked for
    batches (monotonic seconds).
    """

    child: ChildContext

    def __post_init__(self) -> None:
        self.window = self.child.window
        self.draining = threading.Event()
        self.cordoned = threading.Event()
        self.asked_at = time.monotonic()
        self._batches = BatchRunner(self.child)
        self._handover = Handover(self.child, self._batches.release_unbegun)
        self._claiming, self.told = threading.Lock(), threading.Event()
        self._unsure_until = self._looked_at = -math.inf
        self._usual_rows = 1
        self._last_claimed: dict[int, int] = {}
        self._share_until = -math.inf
        self.threads = ThreadPoolExecutor(MOST_BATCHES, thread_name_prefix="batch")

    def work(self, woken: str, *, wait: bool) -> int:
        """Claims and starts batches until there are none left; returns how many.

        With `wait` the thread of a message waits for its turn and for room in the window, so that
        Celery takes no hint that a sibling could use. Without `wait` a second thread returns 0.
        """
        if not self._claiming.acquire(blocking=wait):
            return 0
        try:
            return self._claim_on(woken)
        finally:
            self._claiming.release()

    def poll(self, supervisor: ToSupervisor) -> None:
        """The whole path without hints: hears the supervisor's next word, and lets `claim_when_told`
        claim when the supervisor says that work waits, where the supervisor is silent, and while
        leases may be open that this process does not know.

        Claims nothing itself: a claim waits for room in the window, and a word must be heard meanwhile.
        """
        pause = self.child.settings.poll_seconds
        word = supervisor.wait(pause / 2)
        if word is Word.HOLD:
            self.cordoned.set()
        elif word is not None:
            self.cordoned.clear()
        now = time.monotonic()
        sure = now > self._unsure_until
        if word is Word.SIBLINGS_IDLE and sure and not self.draining.is_set():
            self._help_siblings()
        asked_at = max(self.asked_at, supervisor.heard_at) if sure else self.asked_at
        if word is Word.WORK or now - asked_at >= pause:
            self.told.set()

    def claim_when_told(self, seconds: float) -> None:
        """Claims once `poll` says so; waits for that for so long."""
        if self.told.wait(seconds):
            self.told.clear()
            self.work("poll", wait=False)

    def _help_siblings(self) -> None:
        """Hands rows over, and leaves them to the siblings: the child itself claims nothing for a
        while unless it has nothing left.
        """
        if self._handover.help_siblings():
            self.window.bound(1)
            self._share_until = time.monotonic() + LEFT_SECONDS

    def _claim_on(self, woken: str) -> int:
        """Claims until nothing came for a while: more may be admitted at any moment."""
        # The hint may be an old one, of batches that are claimed long since: then one look is enough.
        # So it is for a child that asks without a hint: its supervisor asks again soon.
        looked = woken == "poll" or time.monotonic() - self._looked_at < HINT_SECONDS
        claimed, pauses = 0, iter(() if looked else EMPTY_PAUSES_SECONDS)
        while self.window.wait_for_room():
            leases = self._claim(woken)
            if leases:
                claimed, pauses = claimed + len(leases), iter(EMPTY_PAUSES_SECONDS)
                self._start(leases)
            elif leases is not None and self.window.holds_its_share and not self.draining.is_set():
                continue
            elif (pause := next(pauses, None)) is None or self.draining.wait(pause):
                break
        if not looked:
            self._looked_at = time.monotonic()
        return claimed

    def _start(self, leases: Sequence[Lease]) -> None:
        held = [HeldBatch(lease, len(lease.todo)) for lease in leases]
        for batch in held:
            self.window.add(batch)
        for group in _groups(held, self.window.refill_rows):
            try:
                self.threads.submit(self._batches.run, group)
            except RuntimeError as error:  # no thread can be started here
                released = group.copy()
                group.clear()  # the group stays in the queue of the pool's other threads
                for batch in released:
                    self._batches.release(batch, error)

    def give_back(self, given: Sequence[GivenBack]) -> None:
        """Gives back what the heartbeat has ended."""
        self._batches.give_back(given)

    def drain(self, grace_seconds: Callable[[], float]) -> None:
        """Claims nothing more, finishes what fits in the grace, keeps the finished rows of the
        rest, and releases what is left. Returns when nothing is held.

        The grace is asked for again and again, since a notice may shorten it; it counts from the
        beginning of the drain.
        """
        self.draining.set()
        self.window.close()
        began = time.monotonic()

        def left() -> float:
            return max(0.0, began + grace_seconds() - time.monotonic())

        if self._claiming.acquire(timeout=left()):
            self._claiming.release()  # a claim under way is in the window now
        while not self.window.wait_empty(min(left(), GRACE_LOOK_SECONDS)):
            if not left():
                break
        else:
            return
        for batch in self.window.held():
            batch.stop()
        if not self.window.wait_empty(max(5.0, grace_seconds() / 2)):
            self.child.ledger.given_up.set()
            self.window.wait_empty(5.0)

    def _claim(self, woken: str) -> list[Lease] | None:
        """What was leased; None when Postgres did not answer. A child of a cordoned slot asks for
        nothing.
        """
        self.asked_at = time.monotonic()
        try:
            self._release_unknown()
            if self.cordoned.is_set():
                return []
            with (
                self.child.recorder.span(Stage.CLAIM),
                self.child.ledger.transaction() as connection,
            ):
                leases = self.claim_share(connection, woken)
        except Retryable as error:
            self.child.recorder.problem("claim_failed", error=str(error))
            self._unsure_until = math.inf
            return None
        self.child.recorder.batches_claimed(len(leases))
        if leases:
            self._usual_rows = max(1, sum(len(lease.todo) for lease in leases) // len(leases))
            self._note_last(leases)
        return leases

    def _note_last(self, leases: Sequence[Lease]) -> None:
        """Keeps the last number that was claimed of each arranged job which the child still holds."""
        held = {batch.lease.job_id for batch in self.window.held()}
        known = {job: seq for job, seq in self._last_claimed.items() if job in held}
        arranged = (lease for lease in leases if lease.descriptor.source.arranged is not None)
        self._last_claimed = known | {lease.job_id: lease.seq for lease in arranged}

    def claim_share(self, connection: Connection, woken: str) -> list[Lease]:
        """Claims as much as there is room for; where little is left, no more than a fair share."""
        lease_seconds = self.child.settings.lease_seconds
        held = self.window.held()
        if not held or time.monotonic() > self._share_until:
            share = claims.fair_share(connection, self.child.who, lease_seconds)
            if share == 0:
                return []
            self.window.bound(share)
            self._share_until = time.monotonic() + SHARE_SECONDS
        rows, most = self.window.room()
        if most == 0:
            return []
        # Ask for no more batches than may fit: a claim locks each batch that it looks at.
        most = min(most, rows // self._usual_rows + 1)
        neighbours.bring_forward(connection, self.child.who, self._last_claimed, most)
        return claims.claim(
            connection,
            self.child.who,
            room_rows=rows,
            max_batches=most,
            idle=not held,
            woken=woken,
            lease_seconds=lease_seconds,
            avoided=self._batches.outputs.avoided(),
        )

    def _release_unknown(self) -> None:
        """If the answer to a claim was lost, releases every lease that this process does not know:
        no heartbeat would renew it.

        The COMMIT of that claim may arrive for as long as Postgres keeps the session.
        """
        if time.monotonic() > self._unsure_until:
            return
        known = [batch.lease.batch_id for batch in self.window.held()]
        with self.child.ledger.transaction() as connection:
            leasing.release_owner(connection, self.child.who.owner, kept=known)
        last = time.monotonic() + IDLE_IN_TRANSACTION_SECONDS
        self._unsure_until = min(self._unsure_until, last)


def _groups(held: Sequence[HeldBatch], most_rows: int) -> Iterator[list[HeldBatch]]:
    """What one thread runs: batches of one job, with at most so many rows, or a single batch.

    Where batches are small, a thread for each costs more than the batch: all want Python's lock.
    Each batch that is read from an object store has its own thread, since these wait side by side.
    """
    group: list[HeldBatch] = []
    rows = 0
    for batch in held:
        if group and not (
            group[0].lease.job_id == batch.lease.job_id
            and rows + batch.unfinished <= most_rows
            and storage.is_local(batch.lease.descriptor.source.uri)
        ):
            yield group
            group, rows = [], 0
        group.append(batch)
        rows += batch.unfinished
    if group:
        yield group
