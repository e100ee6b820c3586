"""The heartbeat: renews every lease of the child in one statement and learns of lost ones."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from nightshift.common.errors import Retryable
from nightshift.common.exit_codes import ExitCode
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import spending
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import GivenBack, HeldBatch, Move, Progress, Reason
from nightshift.worker.outages import suppressed
from nightshift.worker.supervisor.liveness import ChildLiveness

HUNG_THREADS = 3
"""So many threads of a child may hang in a stage; past them the child leaves and is replaced."""

COUNTED_BEATS = 2
"""Between two beats no more than so many `heartbeat_seconds` count as standing still: a process that
was stopped for an hour had no thread that hung for an hour."""

TELL_SECONDS = 1.0
"""Pause between two looks at what the child waits for."""

AGAIN_SECONDS = 1.0
"""Pause before a failed beat is tried again: leases run out meanwhile."""

GIVES_BACK = "give back"
"""Name of a thread that releases batches beside the heartbeat."""


@dataclass(eq=False)
class StageWatch:
    """How long threads have stood still in a stage. Each call of `look` updates the times.

    At most `most_seconds` of the time between two calls count.
    """

    timeout_seconds: float
    most_seconds: float
    _stood: dict[Progress, tuple[int, float]] = field(default_factory=dict)
    _looked_at: float = 0.0

    def look(self, threads: Iterable[Progress], now: float) -> set[Progress]:
        """The threads that hang at the moment `now` (seconds): none of their looks showed a move for
        longer than the timeout. Threads of earlier looks are watched until they leave their stage.
        """
        passed = min(now - self._looked_at, self.most_seconds)
        stood = {}
        for thread in {*threads, *self._stood}:
            moves, seconds = self._stood.get(thread, (None, 0.0))
            if thread.in_stage:
                stood[thread] = thread.moves, seconds + passed if thread.moves == moves else 0.0
        self._stood, self._looked_at = stood, now
        return {thread for thread, (_, seconds) in stood.items() if seconds > self.timeout_seconds}


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat learned of Postgres, if it asked: how many leases were renewed, the jobs without money, the
    batches whose lease another child has, each with the lease that was asked for, and those of jobs that
    are over of which no row is to be kept.
    """

    renewed: int | None = None
    spent_out: Set[int] = frozenset()
    lost: Mapping[HeldBatch, tuple[int, int]] = field(default_factory=dict)
    unwanted: Set[HeldBatch] = frozenset()


@dataclass(eq=False)
class Heartbeat:
    """A thread that beats every `heartbeat_seconds` until it is stopped, over a `ledger` of its own.

    Leases are renewed only while the engine makes progress. A child whose engine stands still for
    `engine_stall_seconds` is ended, and its leases go to others. The batches of a thread that hangs in a
    stage, and those that are lost or wanted no more, go through `give_back`; where too many threads hang, the
    child leaves in order. While the child holds nothing and has nothing to report, its supervisor beats for
    it: `say_idle` is false where the supervisor has been silent for the given seconds.
    `tell_waits` is called each second: what the child waits for is told sooner than the next beat.
    """

    child: ChildContext
    ledger: Ledger
    liveness: ChildLiveness
    give_back: Callable[[Sequence[GivenBack]], None]
    say_idle: Callable[[float], bool]
    tell_waits: Callable[[], None] = lambda: None
    state: str = "ready"

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._watch = StageWatch(
            self.child.settings.stage_timeout_seconds,
            COUNTED_BEATS * self.child.settings.heartbeat_seconds,
        )
        self._reported: dict[int, spending.Spent] = {}
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self.liveness.write(self.state)
        self._thread.start()

    def stop(self) -> None:
        """Ends the heartbeat; returns when a beat under way is over."""
        self._ended.set()
        self._thread.join(timeout=15)
        self.liveness.write("closing")

    def beat(self) -> None:
        """One beat: renews the leases, reports what was spent, gives the batches back that are lost, not
        wanted any more or held by a thread that hangs, and stops those of a job that is over or without money.
        """
        held = self.child.window.held()
        found = Beat()
        if held or self._unreported() or not self._is_beaten_for():
            found = self._renew(held)
        self._give_back(held, found)
        for job_id in found.spent_out:
            self._hold(job_id)

    def _renew(self, held: Sequence[HeldBatch]) -> Beat:
        """What a beat asks and tells Postgres."""
        leases = [(batch.lease.batch_id, batch.lease.attempt) for batch in held]
        with self.ledger.transaction() as connection:
            workers.beat(connection, self.child.who.owner, self.state)
            renewal = leasing.renew(
                connection, self.child.who.owner, leases, self.child.settings.lease_seconds
            )
            spent = self._unreported()
            spending.report(connection, self.child.who.owner, spent)
            job_ids = list({batch.lease.job_id for batch in held})
            spent_out = {job_id for job_id, _ in spending.spent_out(connection, job_ids)}
            reached(Moment.RENEWING)
        self._reported |= {each.job_id: each for each in spent}
        renewing = list(zip(held, leases, strict=True))
        # Answers that were paid for are kept: the batch's thread commits them while the lease is its own.
        keeping = {
            batch for batch, lease in renewing if lease in renewal.ended and batch.has_finished_rows
        }
        for batch in held:
            if batch.lease.job_id in spent_out or batch in keeping:
                batch.stop()
        lost = {batch: lease for batch, lease in renewing if lease not in renewal.held}
        over = renewal.ended | renewal.unwanted
        unwanted = {batch for batch, lease in renewing if lease in over} - keeping
        return Beat(len(renewal.held), spent_out, lost, unwanted)

    def _unreported(self) -> list[spending.Spent]:
        return [
            each for each in self.child.window.spent() if each != self._reported.get(each.job_id)
        ]

    def _is_beaten_for(self) -> bool:
        """Tells the supervisor that this child is idle; False where the child beats for itself."""
        return self.state == "ready" and self.say_idle(self.child.settings.heartbeat_seconds)

    def _hold(self, job_id: int) -> None:
        """Pauses a job that has no money left. Otherwise siblings would claim more until a reaper's next round.
        What fails here is tried again by the next beat.
        """
        with suppressed(Retryable, self.child.recorder, "hold_failed", job_id=job_id):
            with self.ledger.transaction() as connection:
                why = spending.hold_spent_out(connection, job_id)
            if why is not None:
                self.child.recorder.problem("job_paused", job_id=job_id, why=why)

    def _give_back(self, held: Sequence[HeldBatch], found: Beat) -> None:
        """Ends batches that are lost or wanted no more, unless their part is being committed, and those of
        a thread that hangs in a stage.
        """
        hanging = self._watch.look((batch.progress for batch in held), time.monotonic())
        ended = (_ended(batch, found, is_hung=batch.progress in hanging) for batch in held)
        given = [each for each in ended if each is not None]
        if given:
            self._give_back_beside(given)
        lost = [each for each in given if each.reason is Reason.LOST]
        for each in lost:
            self.child.recorder.lease_lost(*found.lost[each.batch])
        if found.renewed is not None:
            self.child.recorder.leases_renewed(found.renewed, len(lost))
        if len(hanging) > HUNG_THREADS:
            self.child.leave(
                ExitCode.THREADS_HANG,
                f"{len(hanging)} threads hang in reading, rendering or writing",
            )

    def _give_back_beside(self, given: Sequence[GivenBack]) -> None:
        """In a thread: the ledger may be away for long, and the heartbeat must go on."""
        for each in given:
            each.batch.drop_rows()
        beside = threading.Thread(
            target=self.give_back, args=(given,), name=GIVES_BACK, daemon=True
        )
        try:
            beside.start()
        except RuntimeError:  # no thread can be started here, and these batches must end
            self.give_back(given)

    def _pause(self, seconds: float) -> bool:
        """Waits for the next beat; True when there is none any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._ended.wait(min(left, TELL_SECONDS)):
                return True
            try:
                self.tell_waits()
            except Retryable as error:
                self.child.recorder.heartbeat_failed(error)
                return self._ended.is_set()  # the leases come first
            except Exception as error:
                self.child.recorder.crash("tell_crashed", error)
        return self._ended.is_set()

    def _beat_on(self) -> None:
        stalls = 0
        pause = self.child.settings.heartbeat_seconds
        while not self._pause(pause):
            pause = self.child.settings.heartbeat_seconds
            # A stall must be seen twice: after a freeze the clock jumps before the engine moves.
            stalled_seconds = self.child.engine.stalled_seconds()
            # Write liveness first: the call to Postgres may hang.
            self.liveness.write(self.state, stalled_seconds)
            stalls = stalls + 1 if stalled_seconds > self.child.settings.engine_stall_seconds else 0
            if stalls > 1:
                self.child.engine_died("the engine made no progress in time")
                return
            try:
                self.beat()
            except Retryable as error:
                self.child.recorder.heartbeat_failed(error)
                pause = min(pause, AGAIN_SECONDS)
            except Exception as error:
                self.child.recorder.crash("heartbeat_crashed", error)


def _ended(batch: HeldBatch, found: Beat, *, is_hung: bool) -> GivenBack | None:
    """A batch that this beat ends; None for one that stays, or that somebody else ends."""
    is_unwanted = batch in found.unwanted
    if (lease := found.lost.get(batch)) is not None and (was := batch.lose(lease)) is not None:
        return GivenBack(batch, was, Reason.LOST)
    if is_unwanted and (was := batch.move(Move.UNWANT)) is not None:
        return GivenBack(batch, was, Reason.UNWANTED)
    gives_up = is_hung or (is_unwanted and batch.progress.in_stage)
    if gives_up and (was := batch.move(Move.GIVE_UP)) is not None:
        return GivenBack(batch, was, Reason.UNWANTED if is_unwanted else Reason.HUNG)
    return None  # where its part is being committed, the COMMIT decides
