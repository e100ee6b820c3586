"""The log lines of a child: a subscriber of its recorder.

Constant event names and fields, one line an event.
"""

import structlog

from nightshift.worker.telemetry.events import (
    BatchCommitted,
    EngineLoaded,
    HeartbeatFailed,
    LeaseFoundLost,
    ProblemReported,
)
from nightshift.worker.telemetry.recorder import Handlers

log = structlog.get_logger(__name__)


class LogLines:
    """Formats the events that a person reads."""

    def handlers(self) -> Handlers:
        """What is logged."""
        return {
            EngineLoaded: self._loaded,
            BatchCommitted: self._committed,
            LeaseFoundLost: self._lost,
            HeartbeatFailed: self._heartbeat_failed,
            ProblemReported: self._problem,
        }

    def _loaded(self, event: EngineLoaded) -> None:
        log.info(
            "engine_ready",
            engine=event.engine,
            version=event.version,
            window_rows=event.window_rows,
            load_seconds=round(event.load_seconds, 1),
        )

    def _committed(self, event: BatchCommitted) -> None:
        log.info(
            "batch_done",
            batch_id=event.batch_id,
            attempt=event.attempt,
            rows=event.part_rows,
            rows_failed=event.part_errors,
        )

    def _lost(self, event: LeaseFoundLost) -> None:
        log.warning("lease_lost", batch_id=event.batch_id, attempt=event.attempt)

    def _heartbeat_failed(self, event: HeartbeatFailed) -> None:
        log.warning("heartbeat_failed", error=str(event.error))

    def _problem(self, event: ProblemReported) -> None:
        if event.crash is None:
            log.warning(event.name, **event.fields)
        else:
            log.error(event.name, **event.fields, exc_info=event.crash)
