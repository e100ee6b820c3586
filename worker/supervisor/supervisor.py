"""The supervisor of one machine: one child a slot, its engine as the plan of the pool says."""

import math
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import ValidationError

from nightshift.common.allocation.load_errors import case_of
from nightshift.common.errors import (
    EngineLoadFailed,
    EngineNotHere,
    MachineCannotLoad,
    NightshiftError,
    Permanent,
    Retryable,
    SchemaMismatch,
)
from nightshift.common.ledger import Connection, Ledger, schema
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.fleet import slots, workers
from nightshift.common.ledger.fleet.slots import Machine, SlotOrder
from nightshift.common.ledger.jobs import jobs
from nightshift.common.processes import hardware
from nightshift.common.settings import Settings
from nightshift.worker.supervisor import planning, starting
from nightshift.worker.supervisor.channel import Word
from nightshift.worker.supervisor.children import ChildConfig, EndedChild, Slot, load_policy
from nightshift.worker.supervisor.idleness import Idleness
from nightshift.worker.supervisor.liveness import SupervisorLiveness, hung_seconds
from nightshift.worker.telemetry.gpus import GpuFigures
from nightshift.worker.telemetry.machine import MachineMetrics

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.25
"""Pause between two looks at the children: a death is seen within this time."""

CHOOSE_SECONDS = 1.0
"""Pause between two looks at the plan of the pool; none after a child ended."""

SILENT_SECONDS = 5.0
"""A Postgres that has not answered for so long is named in the log."""
REPORTS_A_LEASE = 4
"""So many times a lease a supervisor writes its slots although nothing has changed."""


@dataclass(eq=False)
class Supervisor:
    """Keeps `slot_count` children of one pool alive until it is asked to stop.

    With `engine_key` it serves that engine alone. `profile` is the file for the children's times.
    A `preempt_file` says by being there that the machine is taken away. After `leave_idle_seconds` with
    nothing to do the supervisor stops by itself.
    """

    ledger: Ledger
    settings: Settings
    pool: str
    slot_count: int
    gpus: Sequence[str]
    engine_key: str | None
    identity: str
    profile: Path | None
    metrics: MachineMetrics
    preempt_file: Path | None = None
    leave_idle_seconds: float = math.inf

    def __post_init__(self) -> None:
        each = len(self.gpus) // self.slot_count
        shares = [
            self.gpus[number * each : (number + 1) * each] for number in range(self.slot_count)
        ]
        self.slots = [
            Slot(number, gpus, hardware.of_slot(gpus)) for number, gpus in enumerate(shares)
        ]
        self.unreported: list[EndedChild] = []
        self._gpu_figures = GpuFigures.watch(self.gpus)
        self._liveness = SupervisorLiveness(self.settings)
        self._stopping = threading.Event()
        self._preempted = threading.Event()
        self._schema_mismatch: SchemaMismatch | None = None
        self._chosen_at = 0.0
        self._asking_since: float | None = None
        self._idleness = Idleness()
        self._ledger_heard_since = time.monotonic()
        self._machine = Machine(self.identity, self.pool, socket.gethostname(), self.engine_key)
        self.metrics.watch(lambda: [slot.shown_state for slot in self.slots])

    def run(self) -> None:
        """Works until `stop`; then drains every child, reports it and returns.

        Tables that no longer fit this code end it in the same way, with SchemaMismatch.
        """
        log.info(
            "supervisor_started", supervisor=self.identity, pool=self.pool, slots=len(self.slots)
        )
        threading.Thread(target=self._watch_ledger, name="ledger-watch", daemon=True).start()
        while not self._stopping.wait(ROUND_SECONDS):
            self._look_for_notice()
            try:
                self.look()
            except Exception:  # without the supervisor every child would end undrained
                log.exception("round_failed")
            self._liveness.round_over()
        self.drain_all()
        if self._schema_mismatch is not None:
            raise self._schema_mismatch

    def stop(self) -> None:
        """Begins the drain. A second call changes nothing."""
        self._stopping.set()

    def preempt(self) -> None:
        """The machine is taken away: the drain has `preempt_seconds`, also one that has begun."""
        self._preempted.set()
        self._stopping.set()

    def _watch_ledger(self) -> None:
        """Says once in the log that Postgres is silent: a frozen one lets a question wait for long."""
        told = False
        while not self._stopping.wait(ROUND_SECONDS):
            since = self._asking_since
            is_silent = since is not None and time.monotonic() - since > SILENT_SECONDS
            if is_silent and not told:
                log.warning("ledger_silent", seconds=SILENT_SECONDS, place=self.ledger.place)
            told = is_silent

    def _look_for_notice(self) -> None:
        if self.preempt_file is not None and self.preempt_file.exists():
            self.preempt()

    def look(self) -> None:
        """One look at the slots and the ledger: ends, starts and reports what there is."""
        for slot in self.slots:
            self._liveness.step(self.slots)
            self._watch(slot)
        self._liveness.step(self.slots)
        gone = bool(self.unreported)
        self.report()
        if (not gone or self.unreported) and time.monotonic() - self._chosen_at < CHOOSE_SECONDS:
            return
        now = time.monotonic()
        if now - self._chosen_at > self.settings.lease_seconds:
            # This process was frozen until now, and its children with it.
            self._ledger_heard_since = now
        self._chosen_at = now
        self._asking_since = now
        try:
            self._choose_or_say_why()
        except SchemaMismatch as error:
            log.error("tables_do_not_fit", error=str(error))
            self._schema_mismatch = error
            self.stop()
        except NightshiftError as error:
            self._ledger_heard_since = time.monotonic()
            self._idleness = self._idleness.after(self._ledger_heard_since, None)
            log.warning("choose_failed", error=str(error))
        finally:
            self._asking_since = None

    def _watch(self, slot: Slot) -> None:
        """Sees a child that is gone, and one that takes too long to leave, or to end once killed."""
        if slot.group is None or slot.config is None:
            return
        now, code = time.monotonic(), slot.group.poll()
        overdue = (
            slot.leaving_since is not None
            and now - slot.leaving_since > self.settings.leave_seconds
        )
        if code is None and not overdue and slot.killed_at is None:
            return
        self._liveness.killing(slot.config)
        gone = slot.kill()
        if not slot.lost and (gone or slot.is_to_give_up(now)):
            self._end(slot, slot.config, slot.group.poll())
        if gone:
            self._liveness.child_ended(slot.config)
            slot.free()
        elif slot.is_to_give_up(now):
            slot.lost = True
            log.error("slot_lost", slot=slot.number, worker_id=slot.config.id, pid=slot.group.pid)

    def _end(self, slot: Slot, config: ChildConfig, code: int | None) -> None:
        """Notes the end of a child for the next report."""
        asked = slot.leaving_since is not None
        log.info("child_ended", worker_id=config.id, code=code, asked=asked)
        engine = self.metrics.child_ended(config.id, slot.exit_reason(code))
        self.unreported.append(slot.ended(config, engine, code))

    def report(self) -> None:
        """Frees the leases of gone children; what cannot be reported now is tried again."""
        while self.unreported:
            self._liveness.step(self.slots, draining=self._stopping.is_set())
            ended = self.unreported[0]
            try:
                with self.ledger.transaction() as connection:
                    state = workers.child_state(connection, ended.config.id)
                    freed = workers.end(connection, ended.config.id, died=ended.died)
                    unloaded = ended.while_loading and state in (None, "loading")
                    if unloaded:
                        self._load_failed(connection, ended)
            except Retryable as error:
                log.warning("report_failed", error=str(error))
                return
            except NightshiftError as error:
                log.error("report_refused", error=str(error))
            else:
                log.info("leases_freed", worker_id=ended.config.id, batches=freed)
                self.metrics.reported(ended.engine, freed, ended.died, load_failed=unloaded)
            self.unreported.pop(0)

    def _load_failed(self, connection: Connection, ended: EndedChild) -> None:
        error = MachineCannotLoad(f"{ended.died} while loading the engine")
        self._refuse(connection, ended.config.engine_key, error)

    def _refuse(self, connection: Connection, engine_key: str, error: EngineLoadFailed) -> None:
        policy = load_policy(self.settings)
        loads.failed(connection, self._machine, engine_key, case_of(error), error, policy)

    def _choose_or_say_why(self) -> None:
        """Chooses; SchemaMismatch when Postgres refuses a statement since its tables moved on."""
        try:
            self.choose()
        except Permanent:
            schema.check(self.ledger)
            raise

    def choose(self) -> None:
        """Lets each slot have the engine that the plan of the pool says."""
        orders, is_old = self._orders()
        self._obey(orders)
        self._leave_if_idle(None if is_old else orders)

    def _obey(self, orders: Sequence[SlotOrder]) -> None:
        for slot, order in zip(self.slots, orders, strict=True):
            if order.state is not None:
                slot.state = order.state
            if slot.config is None:
                if order.planned_key and order.job_id is not None and not order.cordoned:
                    self._start(slot, order.planned_key, order.job_id)
                continue
            if slot.killed_at is not None:
                continue
            if slot.leaving_since is None and self._end_hung(slot, order):
                continue
            if order.drained:
                if slot.leaving_since is None:
                    log.info("child_drained", worker_id=slot.config.id, slot=slot.number)
                    slot.leave()
                continue
            if order.planned_key not in (None, slot.next_engine_key or slot.config.engine_key):
                slot.next_engine_key = order.planned_key
                if slot.leaving_since is None:
                    log.info("child_replaced", worker_id=slot.config.id, slot=slot.number)
                    slot.leave()

    def _leave_if_idle(self, orders: Sequence[SlotOrder] | None) -> None:
        """Stops once all slots have had nothing to do for long enough; None where no plan is of this moment."""
        seen = None
        if orders is not None:
            states = [slot.shown_state for slot in self.slots]
            seen = list(zip(states, orders, strict=True))
        self._idleness = self._idleness.after(time.monotonic(), seen)
        if seen is None or self._idleness.seconds < self.leave_idle_seconds:
            return
        with self.ledger.transaction() as connection:
            if slots.backs_off(connection, self._machine):
                return
        log.info("idle_worker_leaves", idle_seconds=round(self._idleness.seconds, 1))
        self.stop()

    def _orders(self) -> tuple[list[SlotOrder], bool]:
        """Tells the ledger what the slots have; what each should have. The second value says that no plan of
        this moment is behind that.
        """
        orders, is_old = self.reported()
        if is_old:
            self._liveness.step(self.slots)
            try:
                renewed = planning.renew(self.ledger, self.pool, self.settings.lease_seconds)
            except NightshiftError as error:
                log.warning("plan_failed", error=str(error))
            else:
                if renewed:
                    return self.reported()
        return orders, is_old

    def reported(self) -> tuple[list[SlotOrder], bool]:
        """Tells the ledger what the slots have. The orders for the slots, and whether the plan is an old one."""
        with self.ledger.transaction() as connection:
            orders, is_old = slots.report(
                connection,
                self._machine,
                [slot.report(self._gpu_figures.of(slot.gpus)) for slot in self.slots],
                idle_seconds=self.settings.engine_idle_seconds,
                seen_every_seconds=self.settings.lease_seconds / REPORTS_A_LEASE,
            )
        for slot, order in zip(self.slots, orders, strict=True):
            slot.reported(order)
        return orders, is_old

    def _end_hung(self, slot: Slot, order: SlotOrder) -> bool:
        """Kills a child that fell silent although Postgres has answered all the time; True then.

        A loading child is not killed: a library may keep Python's lock for as long as a model takes.
        """
        if order.silent_seconds is None or slot.group is None or slot.config is None:
            return False
        answered_seconds = time.monotonic() - self._ledger_heard_since
        silent_seconds = min(order.silent_seconds, answered_seconds)
        if order.state == "loading" or silent_seconds < hung_seconds(self.settings):
            return False
        slot.fault = f"the worker child hung: not a sign of life for {order.silent_seconds:.0f} s"
        log.error("child_hung", silent_seconds=round(order.silent_seconds))
        self._liveness.killing(slot.config)
        slot.kill()
        return True

    def _start(self, slot: Slot, engine_key: str, job_id: int) -> None:
        try:
            with self.ledger.transaction() as connection:
                job = jobs.get(connection, job_id)
        except ValidationError as error:
            self._refuse_spec(engine_key, job_id, error)
            return
        assert job is not None, f"job {job_id} is not in the ledger"
        starting.start(
            slot, self._machine, job, engine_key, self.settings, self.metrics, self.profile
        )

    def _refuse_spec(self, engine_key: str, job_id: int, cause: ValidationError) -> None:
        """Leaves an engine whose spec this code cannot read, of a newer release, to others."""
        error = EngineNotHere(
            f"the spec of job {job_id} does not fit this release: upgrade nightshift-fleet"
        )
        log.error("spec_not_readable", job_id=job_id, error=str(error), cause=str(cause))
        with self.ledger.transaction() as connection:
            self._refuse(connection, engine_key, error)

    def drain_all(self) -> None:
        """Tells every child to leave, at the end of this process."""
        log.info("supervisor_draining", preempted=self._preempted.is_set())
        self._hurry()
        for slot in self.slots:
            slot.leave()
        self._leave_fleet()
        asked_at = time.monotonic()
        while any(slot.group is not None and not slot.lost for slot in self.slots):
            time.sleep(ROUND_SECONDS / 2)
            self._look_for_notice()
            self._hurry()
            for slot in self.slots:
                self._liveness.step(self.slots, draining=True)
                try:
                    self._watch(slot)
                except Exception:
                    log.exception("watch_failed", slot=slot.number)
            self._liveness.step(self.slots, draining=True)
            asked_at = time.monotonic()
            self.report()
        # A report that failed at once met a connection of an earlier boot of Postgres: once more.
        if time.monotonic() - asked_at < ROUND_SECONDS:
            self.report()
        log.info("supervisor_ended")

    def _hurry(self) -> None:
        """Tells the children of a machine that is taken away; a child that has heard so hears nothing
        new.
        """
        for slot in self.slots:
            if self._preempted.is_set() and slot.channel is not None:
                slot.channel.tell(Word.PREEMPT)

    def _leave_fleet(self) -> None:
        """Removes the slots of this machine from the fleet. If Postgres does not answer, plans leave the slots out
        once they have not been seen for a lease.
        """
        try:
            with self.ledger.transaction() as connection:
                slots.leave(connection, self.identity)
        except NightshiftError as error:
            log.warning("leave_failed", error=str(error))
