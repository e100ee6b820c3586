"""The supervisor of one machine: one child a slot, its engine chosen by the open work."""

import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from nightshift.common import logs
from nightshift.common.errors import NightshiftError, Retryable, SchemaMismatch
from nightshift.common.ledger import Ledger, schema, workers
from nightshift.common.ledger.workers import EngineDemand
from nightshift.common.processes.group import ProcessGroup
from nightshift.common.settings import Settings, child_environment
from nightshift.worker import exit_codes
from nightshift.worker.supervisor.child_config import ChildConfig
from nightshift.worker.supervisor.liveness import SupervisorSigns, hung_seconds
from nightshift.worker.telemetry.machine import FOLDERS_VARIABLE, MachineMetrics

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.25
"""Pause between two looks at the children: a death is seen within this time."""

CHOOSE_SECONDS = 1.0
"""Pause between two looks at the ledger for a slot without a child; none after a child ended."""


@dataclass(slots=True)
class Slot:
    """A place for one engine: its GPUs, and the child that has it now.

    `promised` is the engine key for which a leaving child makes room; `fault` is why it had to be
    killed; `state` is the child's as last read from the ledger.
    """

    number: int
    gpus: Sequence[str]
    config: ChildConfig | None = None
    group: ProcessGroup | None = None
    leaving_since: float | None = None
    promised: str | None = None
    fault: str | None = None
    state: str = "loading"

    def stands(self) -> str:
        """The state of its child, for people: loading, ready or draining; free without one."""
        if self.config is None:
            return "free"
        return self.state if self.leaving_since is None else "draining"


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that is gone and must be reported; `died` is None when that charges nothing.

    `engine` is the name of the engine that it had ready, if it had one and counted.
    """

    config: ChildConfig
    engine: str | None
    died: str | None
    while_loading: bool


class Supervisor:
    """Keeps `slots` children of one pool alive until it is asked to stop.

    With `engine_key` it serves that engine alone.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        *,
        pool: str,
        slots: int,
        gpus: Sequence[str],
        engine_key: str | None = None,
        identity: str | None = None,
        profile: Path | None = None,
        metrics: MachineMetrics | None = None,
    ) -> None:
        self.identity = identity or f"s-{uuid.uuid4().hex[:12]}"
        self._ledger = ledger
        self._settings = settings
        # One listener a machine is ours, and nobody below needs its key.
        self._of_child = settings.model_copy(update={"metrics_port": None, "metrics_key": None})
        self._pool = pool
        self._engine_key = engine_key
        self._profile = None if profile is None else str(profile)
        each = len(gpus) // slots
        self._slots = [
            Slot(number, gpus[number * each : (number + 1) * each]) for number in range(slots)
        ]
        self._unreported: list[Ended] = []
        self._signs = SupervisorSigns(settings)
        self._stopping = threading.Event()
        self._unfit: SchemaMismatch | None = None
        self._chosen_at = 0.0
        self._heard_since = time.monotonic()
        self._host = socket.gethostname()
        self._metrics = metrics or MachineMetrics(pool)
        self._metrics.watch(lambda: [slot.stands() for slot in self._slots])

    def run(self) -> None:
        """Works until `stop`; then drains every child, reports it and returns.

        Tables that no longer fit this code end it in the same way, with SchemaMismatch.
        """
        log.info("supervisor_started", pool=self._pool, slots=len(self._slots))
        while not self._stopping.wait(ROUND_SECONDS):
            try:
                self._look()
            except Exception:  # its death would end every child undrained
                log.exception("round_failed")
            self._signs.looked()
        self._drain_all()
        if self._unfit is not None:
            raise self._unfit

    def stop(self, *_: object) -> None:
        """Begins the drain; also a signal handler. A second call changes nothing."""
        self._stopping.set()

    def _look(self) -> None:
        for slot in self._slots:
            self._signs.step(self._slots)
            self._watch(slot)
        self._signs.step(self._slots)
        gone = bool(self._unreported)
        self._report()
        if (not gone or self._unreported) and time.monotonic() - self._chosen_at < CHOOSE_SECONDS:
            return
        now = time.monotonic()
        if now - self._chosen_at > self._settings.lease_seconds:
            self._heard_since = now  # frozen until now, and its children with it
        self._chosen_at = now
        try:
            schema.check(self._ledger)
            self._signs.step(self._slots)
            self._choose()
        except SchemaMismatch as error:
            log.error("tables_do_not_fit", error=str(error))
            self._unfit = error
            self.stop()
        except NightshiftError as error:
            self._heard_since = time.monotonic()
            log.warning("choose_failed", error=str(error))

    def _watch(self, slot: Slot) -> None:
        """Sees a child that is gone, and one that takes too long to leave."""
        if slot.group is None or slot.config is None:
            return
        code = slot.group.poll()
        overdue = slot.leaving_since is not None and (
            time.monotonic() - slot.leaving_since > self._settings.leave_seconds
        )
        if code is None and not overdue:
            return
        self._signs.kills(slot.config)
        slot.group.kill()
        self._signs.ended(slot.config)
        asked = slot.leaving_since is not None
        log.info("child_ended", worker_id=slot.config.id, code=code, asked=asked)
        engine = self._metrics.child_ended(slot.config.id, _reason(slot, code))
        # Only what we asked for is free: a row may make the child end with any code.
        self._unreported.append(
            Ended(
                slot.config,
                engine,
                died=None if asked else slot.fault or _cause(code),
                while_loading=not asked
                and code not in (exit_codes.LOAD_FAILED, exit_codes.LEDGER_AWAY),
            )
        )
        slot.group = slot.config = slot.leaving_since = slot.promised = slot.fault = None
        slot.state = "loading"

    def _report(self) -> None:
        """Frees the leases of gone children; what cannot be reported now is tried again."""
        while self._unreported:
            self._signs.step(self._slots, draining=self._stopping.is_set())
            ended = self._unreported[0]
            try:
                with self._ledger.transaction() as connection:
                    standing = workers.child_status(connection, ended.config.id)
                    freed = workers.end(connection, ended.config.id, died=ended.died)
                    unloaded = ended.while_loading and (
                        standing is None or standing.state == "loading"
                    )
                    if unloaded:
                        workers.load_failed(
                            connection,
                            self._pool,
                            ended.config.engine_key,
                            f"{ended.died} while loading the engine",
                            self._settings.load_backoff_seconds,
                        )
            except Retryable as error:
                log.warning("report_failed", error=str(error))
                return
            except NightshiftError as error:
                log.error("report_refused", error=str(error))
            else:
                log.info("leases_freed", worker_id=ended.config.id, batches=freed)
                self._metrics.reported(ended.engine, freed, ended.died, load_failed=unloaded)
            self._unreported.pop(0)

    def _choose(self) -> None:
        """Gives free slots to the work that wants them, and takes idle ones from their engine."""
        with self._ledger.transaction() as connection:
            wanted = [
                work
                for work in workers.engine_demand(
                    connection, self._pool, self._settings.lease_seconds
                )
                if self._engine_key in (None, work.engine_key)
            ]
            standings = workers.child_statuses(
                connection, [slot.config.id for slot in self._slots if slot.config is not None]
            )
        for slot in self._slots:
            standing = None if slot.config is None else standings.get(slot.config.id)
            if standing is not None:
                slot.state = standing.state
            if slot.config is None:
                best = self._best(wanted)
                if best is not None:
                    self._start(slot, best)
            elif slot.leaving_since is None and not self._end_hung(slot, standing):
                slot.promised = self._better_use(slot.config, standing, wanted)
                if slot.promised is not None:
                    self._replace(slot)

    def _end_hung(self, slot: Slot, standing: workers.ChildStatus | None) -> bool:
        """Kills a child that fell silent although Postgres has answered all the time; True then.

        Not while it loads: a library may keep Python's lock for as long as a model takes.
        """
        longest = hung_seconds(self._settings)
        heard = time.monotonic() - self._heard_since
        if standing is None or slot.group is None or slot.config is None:
            return False
        if standing.state == "loading":
            return False
        if min(standing.silent_seconds, heard) < longest:
            return False
        slot.fault = (
            f"the worker child hung: not a sign of life for {standing.silent_seconds:.0f} s"
        )
        log.error("child_hung", silent_seconds=round(standing.silent_seconds))
        self._signs.kills(slot.config)
        slot.group.kill()
        return True

    def _best(self, wanted: Sequence[EngineDemand]) -> EngineDemand | None:
        """The highest priority, then the fewest children, counting those just started here."""
        mine = [slot.config.engine_key for slot in self._slots if slot.config is not None]
        return min(
            wanted,
            key=lambda work: (
                -work.priority,
                max(work.children, mine.count(work.engine_key)),
                work.job_id,
            ),
            default=None,
        )

    def _better_use(
        self,
        config: ChildConfig,
        standing: workers.ChildStatus | None,
        wanted: Sequence[EngineDemand],
    ) -> str | None:
        """The engine key that should have this slot instead: other work while it is idle, or more
        urgent work that has no child and no other slot promised. None to keep the child.
        """
        if standing is None or standing.state != "ready":
            return None
        others = [work for work in wanted if work.engine_key != config.engine_key]
        own = [work.priority for work in wanted if work.engine_key == config.engine_key]
        served = {slot.promised for slot in self._slots} | {
            slot.config.engine_key for slot in self._slots if slot.config is not None
        }
        for work in others:
            unserved = work.engine_key not in served and not work.children
            if standing.idle_seconds > self._settings.engine_idle_seconds and (unserved or not own):
                return work.engine_key
            if own and unserved and work.priority > max(own):
                return work.engine_key
        return None

    def _start(self, slot: Slot, work: EngineDemand) -> None:
        identity = f"w-{uuid.uuid4().hex[:12]}"
        counts = self._metrics.child_starts(identity, slot.number)
        config = ChildConfig(
            id=identity,
            supervisor=self.identity,
            pool=self._pool,
            slot=slot.number,
            host=self._host,
            engine_key=work.engine_key,
            job_id=work.job_id,
            profile=self._profile,
            metrics=counts.get(FOLDERS_VARIABLE),
        )
        extra = {"VLLM_NO_USAGE_STATS": "1", **counts}
        unless_given = {}
        if self._settings.log_format == "json":
            extra |= logs.NO_BARS
            unless_given = logs.JSON_OF_VLLM
        if slot.gpus:
            extra["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        slot.group = ProcessGroup.start(
            [sys.executable, "-P", "-m", "nightshift.worker.celery_app", config.argument()],
            env=child_environment(self._of_child, unless_given, **extra),
        )
        slot.config = config
        log.info(
            "child_started",
            worker_id=config.id,
            slot=slot.number,
            engine_key=work.engine_key,
            job_id=work.job_id,
            pid=slot.group.pid,
        )

    def _replace(self, slot: Slot) -> None:
        assert slot.group is not None
        assert slot.config is not None
        log.info("child_replaced", worker_id=slot.config.id, slot=slot.number)
        slot.leaving_since = time.monotonic()
        slot.group.terminate()

    def _drain_all(self) -> None:
        log.info("supervisor_draining")
        for slot in self._slots:
            if slot.group is not None and slot.leaving_since is None:
                slot.leaving_since = time.monotonic()
                slot.group.terminate()
        asked_at = time.monotonic()
        while any(slot.group is not None for slot in self._slots):
            time.sleep(ROUND_SECONDS / 2)
            for slot in self._slots:
                self._signs.step(self._slots, draining=True)
                try:
                    self._watch(slot)
                except Exception:
                    log.exception("watch_failed", slot=slot.number)
            self._signs.step(self._slots, draining=True)
            asked_at = time.monotonic()
            self._report()
        # What failed at once met a connection of an earlier boot of Postgres; silence stays.
        if time.monotonic() - asked_at < ROUND_SECONDS:
            self._report()
        log.info("supervisor_ended")


def install_signals(supervisor: Supervisor) -> None:
    """SIGTERM and SIGINT begin the drain."""
    signal.signal(signal.SIGTERM, supervisor.stop)
    signal.signal(signal.SIGINT, supervisor.stop)


def _reason(slot: Slot, code: int | None) -> str:
    """Why a child ended, as nightshift_child_exits_total has it."""
    if slot.leaving_since is not None:
        return "asked"
    if slot.fault is not None:
        return "hung"
    return "load_failed" if code == exit_codes.LOAD_FAILED else "died"


def _cause(code: int | None) -> str:
    if code == exit_codes.ENGINE_DEAD:
        return "the engine died"
    if code == exit_codes.LOAD_FAILED:
        return "the engine could not be loaded"
    if code is not None and code < 0:
        return f"the worker child was ended by {signal.Signals(-code).name}"
    return f"the worker child ended with exit code {code}"
