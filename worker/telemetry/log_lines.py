"""The log lines of a child: a subscriber of its recorder.

Constant event names and fields, one line an event.
"""

from typing import Any

import structlog

from nightshift.worker.telemetry.recorder import BatchCommitted, EngineLoaded, Subscriber

log = structlog.get_logger(__name__)


class LogLines(Subscriber):
    """Formats the events that a person reads."""

    def engine_loaded(self, loaded: EngineLoaded) -> None:
        """A line at the start of work."""
        log.info(
            "engine_ready",
            engine=loaded.engine,
            version=loaded.version,
            window_rows=loaded.window_rows,
            load_seconds=round(loaded.load_seconds, 1),
        )

    def batch_committed(self, batch: BatchCommitted) -> None:
        """A line for each part."""
        log.info(
            "batch_done",
            batch_id=batch.batch_id,
            attempt=batch.attempt,
            rows=batch.part_rows,
            rows_failed=batch.part_errors,
        )

    def lease_lost(self, batch_id: int, attempt: int) -> None:
        """A warning with the lease."""
        log.warning("lease_lost", batch_id=batch_id, attempt=attempt)

    def heartbeat_failed(self, error: Exception) -> None:
        """A warning with the error's text."""
        log.warning("heartbeat_failed", error=str(error))

    def problem(self, name: str, **fields: Any) -> None:
        """A warning of this name."""
        log.warning(name, **fields)

    def crash(self, name: str, error: BaseException, **fields: Any) -> None:
        """An error of this name, with the traceback."""
        log.error(name, **fields, exc_info=error)
