"""The composition root of a child: one Celery worker, one warm engine, one process group.

Run by `worker/child.py`. The life of the child from top to bottom: it is registered, loads its engine
(`worker/engine_load.py`), claims until it is asked to leave, drains, and ends.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
import warnings

import structlog
from celery import signals
from celery.apps import worker as celery_worker
from celery.exceptions import SecurityWarning

from nightshift.common import logs
from nightshift.common.broker import make_app, queue_name
from nightshift.common.errors import (
    Permanent,
    Retryable,
    RevisionChanged,
)
from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs
from nightshift.common.provenance import code_version
from nightshift.common.settings import Settings, load_settings
from nightshift.common.spec import JobSpec
from nightshift.worker import tasks
from nightshift.worker.bootstep import once_signals_are_handled
from nightshift.worker.child_context import ChildContext
from nightshift.worker.consumer import PatientConsumer
from nightshift.worker.engine_load import EngineLoad
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.heartbeat import Heartbeat
from nightshift.worker.outages import PatientLedger, TellsWaits
from nightshift.worker.runner import Runner
from nightshift.worker.supervisor.channel import ToSupervisor
from nightshift.worker.supervisor.children import ChildConfig
from nightshift.worker.supervisor.liveness import LAST_COMMITS_SECONDS, ChildLiveness
from nightshift.worker.telemetry.child_telemetry import ChildTelemetry
from nightshift.worker.telemetry.recorder import EngineLoaded
from nightshift.worker.window import Window

log = structlog.get_logger(__name__)


class ChildProcess:
    """Wires settings, ledger, engine, runner and heartbeat to Celery's signals."""

    def __init__(self, config: ChildConfig, settings: Settings, ledger: Ledger) -> None:
        self._config = config
        self._settings = settings
        self._ledger = ledger
        # The heartbeat has a connection of its own: threads that wait for one delay no renewal.
        self._heartbeat_ledger = Ledger(
            ledger.url,
            connections=1,
            answer_seconds=min(settings.answer_seconds, max(2.0, settings.lease_seconds / 3)),
        )
        self._liveness = ChildLiveness(settings, config.id)
        self._load = EngineLoad(config, settings, ledger, self._heartbeat_ledger, self._liveness)
        self._supervisor = ToSupervisor(config.channel)
        self._app = make_app(settings.broker_url)
        self._app.conf.worker_consumer = PatientConsumer
        self._drain_asked = threading.Event()
        self._drained = threading.Event()
        self._noting = threading.Lock()
        self._dying, self._leaving = threading.Lock(), threading.Lock()
        self._exit_code = ExitCode.DONE

    def run(self) -> None:
        """Serves until SIGTERM; the engine is loaded in worker_init, closed in worker_shutdown.

        The threads pool never sends worker_process_init, so this is the process's own start.
        """
        with self._ledger.transaction() as connection:
            workers.register(connection, self._config)
            job = jobs.get(connection, self._config.job_id)
            key = jobs.engine_key(connection, self._config.job_id)
            if key not in (None, self._config.engine_key):
                workers.end(connection, self._config.id, died=None)
        if job is None:
            raise Permanent(f"job {self._config.job_id} is not in the ledger")
        if key != self._config.engine_key:
            # The job got another engine after the plan. This child would load that engine and run every job of
            # the key in its config with it.
            log.info("job_has_another_engine", job_id=job.id, engine_key=key)
            os._exit(ExitCode.DONE)

        def load(**_: object) -> None:
            try:
                self._start(job.spec)
            except BaseException:
                # Celery would drop the exception and serve without an engine.
                log.exception("start_failed")
                os._exit(ExitCode.CRASHED)

        signals.worker_init.connect(load, weak=False)
        once_signals_are_handled(self._app, self._begin)
        signals.worker_shutting_down.connect(lambda **_: self._drain_asked.set(), weak=False)
        signals.worker_shutdown.connect(lambda **_: self._finish(), weak=False)
        self._app.worker_main(
            [
                "--quiet",
                "worker",
                "--pool=threads",
                "--concurrency=2",
                f"--hostname={self._config.id}@{self._config.host}",
                f"--queues={queue_name(self._config.pool, self._config.engine_key)}",
                "--without-heartbeat",
                "--without-gossip",
                "--without-mingle",
                f"--loglevel={self._settings.log_level}",
            ]
        )

    def _start(self, spec: JobSpec) -> None:
        began = time.monotonic()
        engine, config = self._load.engine(spec), self._config
        self._engine = engine
        who = Claimant(config.id, config.pool, config.engine_key, engine.name, engine.version)
        self._telemetry = ChildTelemetry(
            config, engine.name, engine.concurrency, config.profile, config.metrics
        )
        recorder = self._telemetry.recorder
        ledger = PatientLedger(self._ledger, recorder)
        window = Window.of_engine(engine.concurrency)
        child = ChildContext(
            who, ledger, engine, self._settings, window, recorder, self._engine_died, self._leave
        )
        self._runner = Runner(child)
        self._heartbeat = Heartbeat(
            child,
            self._heartbeat_ledger,
            self._liveness,
            self._runner.give_back,
            self._supervisor.say_idle,
            TellsWaits(self._config, self._heartbeat_ledger, self._telemetry.waits),
        )
        tasks.register(self._app, self._runner)
        # Loaded modules stay: a garbage collection that walks them would stop the engine's loop.
        gc.collect()
        gc.freeze()
        self._report_ready(ledger, engine)
        rows, seconds = self._runner.window.rows, time.monotonic() - began
        recorder.engine_loaded(
            EngineLoaded(engine.name, engine.version, engine.concurrency, rows, seconds)
        )
        threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _begin(self) -> None:
        """Claims from now on: what the child holds is drained at SIGTERM."""
        self._heartbeat.start()
        threading.Thread(target=self._poll, name="poll", daemon=True).start()
        threading.Thread(target=self._claim, name="claim", daemon=True).start()
        self._telemetry.start()

    def _report_ready(self, ledger: PatientLedger, engine: Engine) -> None:
        """Waits for the ledger: a load may have taken minutes, so an outage does not waste it."""
        loaded = workers.LoadedEngine(
            engine.name,
            engine.version,
            self._runner.window.rows,
            revision=engine.revision,
            cache_tokens=engine.cache_tokens,
            code_version=code_version(),
            code=dict(engine.code),
        )
        held = ledger.transact(workers.ready, self._config, loaded)
        if held != engine.revision:
            self._load.failed(
                RevisionChanged(
                    f"the model resolved to revision {engine.revision}, earlier loads to {held}: "
                    "name a revision in engine.revision, or release this one with "
                    f"`nightshift release {self._config.job_id} --revision`"
                )
            )

    def _poll(self) -> None:
        while not self._drain_asked.is_set():
            try:
                self._runner.poll(self._supervisor)
                self._note_state()
            except Exception:  # the thread must live as long as the child
                log.exception("poll_failed")

    def _claim(self) -> None:
        while not self._drain_asked.is_set():
            try:
                self._runner.claim_when_told(self._settings.poll_seconds)
            except Exception:  # the thread must live as long as the child
                log.exception("claim_crashed")

    def _note_state(self) -> None:
        """A child that claims nothing shows as draining, so that no share counts it."""
        with self._noting:
            takes_none = self._drain_asked.is_set() or self._runner.cordoned.is_set()
            self._heartbeat.state = "draining" if takes_none else "ready"

    def _drain(self) -> None:
        self._drain_asked.wait()
        log.info("draining", seconds=self._grace_seconds())
        self._note_state()
        self._runner.drain(self._grace_seconds)
        self._drained.set()

    def _grace_seconds(self) -> float:
        """How long a drain may take; shorter once the supervisor has said that the machine is taken away."""
        self._supervisor.wait(0)
        settings = self._settings
        if self._supervisor.is_preempted:
            return min(settings.preempt_seconds, settings.drain_seconds)
        return settings.drain_seconds

    def _finish(self) -> None:
        """The end of a warm shutdown: every lease is released, then the engine is closed."""
        self._drain_asked.set()
        self._drained.wait()
        self._heartbeat.stop()
        try:
            with self._heartbeat_ledger.transaction() as connection:
                workers.end(connection, self._config.id, died=None)
        except Retryable as error:
            log.warning("end_failed", error=str(error))
        self._engine.close()
        self._telemetry.finish()
        log.info("drained")
        os._exit(self._exit_code)

    def _leave(self, code: ExitCode, why: str) -> None:
        """Begins the drain that SIGTERM begins, once, in which nothing is charged."""
        if not self._leaving.acquire(blocking=False):
            return
        log.error("child_leaves", why=why)
        self._exit_code = code
        os.kill(os.getpid(), signal.SIGTERM)

    def _engine_died(self, error: str) -> None:
        """Ends the child; the supervisor then ends the process group and charges the open leases."""
        if not self._dying.acquire(blocking=False):
            return
        log.error("engine_died", error=error)
        self._runner.window.close()
        self._runner.window.wait_published(LAST_COMMITS_SECONDS)
        self._telemetry.finish()
        os._exit(ExitCode.ENGINE_DEAD)


def main() -> None:
    """Serves with the ChildConfig of the command line."""
    config = ChildConfig(**{**json.loads(sys.argv[1]), "pid": os.getpid()})
    settings = load_settings()
    logs.configure(settings, worker_id=config.id)
    # Celery warns the user root about messages that carry code; ours are JSON.
    warnings.simplefilter("ignore", SecurityWarning)
    # Celery's signal handlers write to the terminal past every logger; our `draining` is enough.
    celery_worker.safe_say = lambda *_: None
    ledger = Ledger(settings.database_url or "", answer_seconds=settings.answer_seconds)
    try:
        ChildProcess(config, settings, ledger).run()
    except Retryable as error:
        log.error("ledger_away", error=str(error))
        os._exit(ExitCode.LEDGER_AWAY)
