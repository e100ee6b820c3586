"""The reaper: a small loop of leaderless duties; run two or more of them.

Each duty is one short transaction that is harmless when run twice; messages and files come after
COMMIT. A duty that fails is logged and tried again in the next round.
"""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from nightshift.common.errors import NightshiftError, Retryable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.batches import dispatch, leasing
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import job_changes, spending, tenant_costs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.provenance import code_version
from nightshift.common.settings import Settings
from nightshift.common.telemetry.run_state import StateFile
from nightshift.producer.archive import retention
from nightshift.producer.reaper import admission, metrics
from nightshift.producer.reaper.admission import Queue
from nightshift.producer.reaper.finishers import MOST_FINISHING, Finishers
from nightshift.producer.reaper.metrics import Rounds
from nightshift.producer.serve.api_batches.duties import BatchDuties
from nightshift.producer.watch.watcher import watch

log = structlog.get_logger(__name__)

PRESSED_SPEEDUP = 10
"""How much sooner the next round comes while workers claim faster than rounds admit."""

ADMISSIONS_A_ROUND = 10
"""Most transactions of one round that admit; each takes 30 to 40 ms, and the other duties wait."""

UNQUEUES_A_ROUND = 25
MOST_UNQUEUED = 2_000
"""Most transactions of one round that take batches of paused and ended jobs back from their queue,
and most batches that one of them takes."""

REAPS_A_ROUND = 10
MOST_REAPED = 1_000
"""Most transactions of one round that take back expired leases, and most leases that one of them
takes, in some 100 ms.
"""

CONNECTIONS = MOST_FINISHING + 8
"""Connections to Postgres of a reaper: one for its rounds, one to take jobs, one for each finish, one
for the job that leaves the ledger, one to watch inputs, four for the HTTP API."""

RETENTION_SECONDS = 60.0
"""Pause between two looks for jobs that have been closed for long."""

ARCHIVE_LEAVE_SECONDS = 5.0
"""Time that a job on its way out gets when the reaper is asked to stop."""

BEAT_SECONDS = 5.0
"""Pause between two notes that this reaper lives, for those who look."""

WATCH_LEAVE_SECONDS = 5.0
"""Time that a look at an input gets when the reaper is asked to stop."""

CHECK_SECONDS = 1.0
"""Pause between two checks of the version of the tables."""

DUTY_ANSWERS = 2
BROKER_SECONDS = 10.0
DUTIES = 3
"""A duty may wait DUTY_ANSWERS times for Postgres, and BROKER_SECONDS for a silent Redis. A reaper
that needs DUTIES times as long for one duty counts as hanging.
"""


def run(
    ledger: Ledger,
    settings: Settings,
    stop: threading.Event,
    state: StateFile | None = None,
    *,
    delete: Callable[[Job], object],
) -> None:
    """Makes rounds until `stop` is set; `delete` deletes a closed job with its output.

    Raises SchemaMismatch when the tables no longer fit this code, BadInput when the metrics that
    the settings ask for cannot be served.
    """
    with metrics.served(settings) as rounds:
        reaper = Reaper(ledger, settings, rounds, state)
        log.info("reaper_started")
        finishers = Finishers(ledger, settings, reaper.name, reaper.run_duty)
        finishers.start(stop)
        archiver = threading.Thread(target=_archive, args=(reaper, ledger, settings, stop))
        archiver.daemon = True
        archiver.start()
        watcher = threading.Thread(
            target=watch, args=(ledger, settings, stop, reaper.run_duty), daemon=True
        )
        watcher.start()
        batches = BatchDuties(ledger, settings, reaper.name, reaper.run_duty, delete)
        batches.start(stop)
        try:
            while not stop.is_set():
                reaper.check_schema()
                with rounds.round():
                    reaper.round()
                stop.wait(settings.dispatch_seconds / (PRESSED_SPEEDUP if reaper.pressed else 1))
        finally:
            stop.set()
            finishers.leave()
            # Another reaper, or the next start, takes up what is cut off.
            archiver.join(ARCHIVE_LEAVE_SECONDS)
            watcher.join(WATCH_LEAVE_SECONDS)
            batches.leave()
            reaper.close()
        log.info("reaper_ended")


def _archive(reaper: "Reaper", ledger: Ledger, settings: Settings, stop: threading.Event) -> None:
    """Runs beside the rounds, since the rows of a large job take their time; ends at once where no
    job leaves the ledger.
    """
    while settings.retention_days is not None and not stop.wait(RETENTION_SECONDS):
        reaper.run_duty(partial(retention.archive_due, ledger, settings, stop))


class Reaper:
    """The duties of one reaper process, and what it remembers between rounds. For many threads: a
    duty may be run beside the rounds.

    `pressed` says that a queue ran low since the last round, so that the next should come soon.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        rounds: Rounds,
        state: StateFile | None = None,
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._rounds = rounds
        self._settings = settings
        self.name = f"r-{uuid.uuid4().hex[:8]}"
        self._hints = admission.Hints(settings)
        # A process that renews in time may miss half of a lease, and no more.
        self._silence_seconds = max(settings.lease_seconds / 2, 2 * settings.dispatch_seconds)
        self._heard_at = time.monotonic()
        self._reap_from = self._heard_at + settings.lease_seconds
        self._check_at = self._beat_at = 0.0
        self._failed = False
        self.pressed = False

    def check_schema(self) -> None:
        """Raises SchemaMismatch when the database has a version that this code does not know."""
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_SECONDS
        with suppress(Retryable):
            schema.check(self._ledger)

    def round(self) -> None:
        """Every duty that keeps work moving, once.

        A failed duty, or a long silence of Postgres or of this process, means that workers could
        not renew their leases, or that this process missed it when they did. They get one lease of
        time from the next duty that succeeds before anything is reaped.
        """
        for duty in (
            self._hold_budgets,
            self._unqueue,
            self._dispatch,
            self._reap,
            self._tidy,
            self._beat,
        ):
            self._write_state()
            failed_before, self._failed = self._failed, not self.run_duty(duty)
            if failed_before or self._failed or self._was_silent():
                self._reap_from = time.monotonic() + self._settings.lease_seconds
            self._heard_at = time.monotonic()

    def run_duty(self, duty: Callable[[], object]) -> bool:
        """Runs a duty; returns False, with a line in the log, when the duty failed."""
        try:
            duty()
        except NightshiftError as error:
            log.warning("duty_failed", duty=_name(duty), error=str(error))
        except Exception:
            log.exception("duty_crashed", duty=_name(duty))
        else:
            return True
        self._rounds.duty_failed(_name(duty))
        return False

    def close(self) -> None:
        """Says that this reaper leaves, and closes the connection to the broker."""
        with suppress(NightshiftError), self._ledger.transaction() as connection:
            dispatch.leave(connection, self.name)
        self._hints.close()

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        with self._ledger.transaction() as connection:
            dispatch.beat(connection, self.name, socket.gethostname(), code_version())
        self._beat_at = time.monotonic() + BEAT_SECONDS

    def _hold_budgets(self) -> None:
        """Comes before the admission, which must not admit what there is no money for."""
        with self._ledger.transaction() as connection:
            over = spending.over_budget(connection) + tenant_costs.over_budget(connection)
        # Each by itself: a job whose row is locked for long stops no other.
        for job_id, why in over:
            self._write_state()
            self.run_duty(partial(self._hold, job_id, why))

    def _hold(self, job_id: int, why: str) -> None:
        with self._ledger.transaction() as connection:
            paused = spending.hold(connection, job_id, why)
        if paused:
            log.warning("job_paused", job_id=job_id, why=why)

    def _unqueue(self) -> None:
        """Takes back from the queues what is no longer to be claimed, in pieces."""
        for _ in range(UNQUEUES_A_ROUND):
            with self._ledger.transaction() as connection:
                taken = dispatch.unqueue(connection, MOST_UNQUEUED)
            with self._ledger.transaction() as connection:
                taken = max(taken, job_changes.take_back(connection, MOST_UNQUEUED))
            if taken < MOST_UNQUEUED:
                return

    def _dispatch(self) -> None:
        """Admits in short transactions until no queue has room. Announces after the first, so that
        children wake at once, and after the last: hints cost more than admissions.
        """
        self.pressed, open_queues = False, list[Queue]()
        self._hints.begin_round()
        for turn in range(ADMISSIONS_A_ROUND):
            with self._ledger.transaction() as connection:
                queues = admission.admit(connection, self._settings.lease_seconds)
                reached(Moment.DISPATCHING)
            self.pressed = self.pressed or any(queue.runs_low for queue in queues)
            # None where another reaper has the duty meanwhile.
            open_queues = queues or open_queues
            if turn == 0:
                self._announce(open_queues)
            if sum(queue.admitted for queue in queues) < admission.MOST_ADMITTED:
                break
        else:
            self.pressed = True
        if turn > 0:
            self._announce(open_queues)

    def _announce(self, queues: list[Queue]) -> None:
        self._write_state()
        self._hints.announce(queues)

    def _reap(self) -> None:
        if time.monotonic() < self._reap_from:
            return
        for _ in range(REAPS_A_ROUND):
            lost = self._reap_some()
            if lost < MOST_REAPED or self._was_silent():
                return
            self._heard_at = time.monotonic()

    def _reap_some(self) -> int:
        self._write_state()
        with self._ledger.transaction() as connection:
            young = dispatch.started_within(connection, self._settings.lease_seconds)
            # Checked after Postgres has answered once: the leases are judged at that time.
            if young or self._was_silent():
                return 0
            lost = leasing.reap(connection, MOST_REAPED)
            reached(Moment.REAPING)
        if lost:
            log.warning("leases_reaped", batches=lost)
            self._rounds.reaped(lost)
        return lost

    def _tidy(self) -> None:
        with self._ledger.transaction() as connection:
            dispatch.fold_counters(connection)
            if time.monotonic() >= self._reap_from:
                workers.end_silent(connection, self._settings.lease_seconds)

    def _was_silent(self) -> bool:
        """True when Postgres was last heard too long ago."""
        return time.monotonic() - self._heard_at > self._silence_seconds

    def _write_state(self) -> None:
        """Writes for `nightshift alive` that the rounds go on, and when the next write is due."""
        if self._state is None:
            return
        duty_seconds = DUTY_ANSWERS * self._settings.answer_seconds + BROKER_SECONDS
        pause_seconds = self._settings.dispatch_seconds
        failure = self._state.write(time.monotonic() + DUTIES * duty_seconds + pause_seconds)
        if failure is not None:
            log.warning("run_dir_not_written", error=failure)


def _name(duty: Callable[[], object]) -> str:
    function = duty.func if isinstance(duty, partial) else duty
    return str(getattr(function, "__name__", function)).strip("_")
