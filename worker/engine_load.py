"""The load of a child's engine: a beat meanwhile, and what the ledger learns of a load that failed.

Each way out but the engine itself ends the process, with the exit code that tells the supervisor why.
"""

import os
import threading
from dataclasses import dataclass
from typing import NoReturn

import structlog

from nightshift.common.allocation.load_errors import Case, case_of
from nightshift.common.errors import (
    EngineLoadFailed,
    JobRefused,
    NeedsOtherEngine,
    NightshiftError,
    Retryable,
)
from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.fleet.slots import Machine
from nightshift.common.public_text import withheld
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.worker import engines
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.outcomes import refuse_job
from nightshift.worker.supervisor.children import ChildConfig, load_policy
from nightshift.worker.supervisor.liveness import ChildLiveness

log = structlog.get_logger(__name__)

UNSTORED = "the engine could not be loaded, and the ledger took no reason: see the worker's log"
"""Stands in the ledger for a reason that could not be stored."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Loads the engine of one child; `heartbeat_ledger` has a connection of its own for the beats."""

    _config: ChildConfig
    _settings: Settings
    _ledger: Ledger
    _heartbeat_ledger: Ledger
    _liveness: ChildLiveness

    def engine(self, spec: JobSpec) -> Engine:
        """The engine of the job `spec`. Does not return where the engine cannot be loaded, or the ledger is away."""
        self._liveness.write("loading")
        beating = threading.Event()
        threading.Thread(target=self._beat_while_loading, args=(beating,), daemon=True).start()
        try:
            with self._ledger.transaction() as connection:
                revision = workers.held_revision(
                    connection, self._config.pool, self._config.engine_key
                )
            return engines.load(spec, self._settings, revision)
        except (JobRefused, NeedsOtherEngine) as error:
            self._job_refused(spec, error)
        except Retryable as error:
            log.error("ledger_away", error=str(error))
            os._exit(ExitCode.LEDGER_AWAY)
        except BaseException as error:
            self.failed(error)
        finally:
            beating.set()

    def _job_refused(self, spec: JobSpec, error: JobRefused | NeedsOtherEngine) -> NoReturn:
        """The engine is sound, and runs no row of the job for which it was to be loaded: the job gets
        another or fails, and the slot is free for the next plan.
        """
        log.error("job_refused", job_id=self._config.job_id, error=str(error))
        try:
            with self._ledger.transaction() as connection:
                workers.end(connection, self._config.id, died=None)
                refuse_job(connection, self._config.job_id, spec.engine_key, error)
        except Retryable as away:
            log.error("ledger_away", error=str(away))
            os._exit(ExitCode.LEDGER_AWAY)
        os._exit(ExitCode.DONE)

    def _beat_while_loading(self, loaded: threading.Event) -> None:
        while not loaded.wait(self._settings.heartbeat_seconds):
            try:
                with self._heartbeat_ledger.transaction() as connection:
                    workers.beat(connection, self._config.id, "loading")
            except Retryable as error:
                log.warning("heartbeat_failed", error=str(error))
            except Exception:
                log.exception("heartbeat_crashed")

    def failed(self, error: BaseException) -> NoReturn:
        """Sets the machine aside for the engine, and may fail the jobs that need the engine."""
        why: NightshiftError
        if isinstance(error, EngineLoadFailed):
            why = error
        else:
            message = f"{type(error).__name__}: {error}"
            why = NightshiftError(message, public=withheld(message))
        case = case_of(error)
        log.error("engine_load_failed", error=str(why), concern=case.concern)
        for reason in (why, NightshiftError(UNSTORED)):
            try:
                self._store_failed_load(case, reason)
            except Retryable as away:  # another child loads the engine once the ledger is back
                log.error("ledger_away", error=str(away))
            except Exception:
                log.exception("failed_load_not_stored")
                continue
            os._exit(ExitCode.LOAD_FAILED)
        os._exit(ExitCode.CRASHED)  # the supervisor stores that a child ended while it loaded

    def _store_failed_load(self, case: Case, error: NightshiftError) -> None:
        config = self._config
        machine = Machine(config.supervisor, config.pool, config.host)
        policy = load_policy(self._settings)
        with self._ledger.transaction() as connection:
            workers.end(connection, config.id, died=str(error))
            loads.failed(connection, machine, config.engine_key, case, error, policy)
