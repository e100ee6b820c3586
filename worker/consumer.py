"""The part of a Celery worker that reads hints, changed so that no error of Redis ends the child."""

import time
from typing import Any

import structlog
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
"""Pause after the first error, twice as long after each further one, and the longest."""

STEADY_SECONDS = 60.0
"""A consumer that ran for so long without an error starts with the first pause again."""

SHUTDOWN_CHECK_SECONDS = 0.2


def next_pause_seconds(pause_seconds: float, since_last_error_seconds: float) -> float:
    """Return the pause after an error, of which the one before was followed by `pause_seconds`."""
    if since_last_error_seconds - pause_seconds >= STEADY_SECONDS:
        return FIRST_PAUSE_SECONDS
    return min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * pause_seconds))


class PatientConsumer(Consumer):
    """A consumer that reconnects after every error.

    Celery's own shuts the worker down on an error that is not one of the connection, such as OOM,
    READONLY or MISCONF. A child that cannot read hints asks Postgres, so no error is worth its engine.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (Exception,)
        self._pause_seconds = 0.0
        self._failed_at = float("-inf")

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Pause after the broker rejected the connection with an error such as OOM or READONLY."""
        self._pause(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection, and pause before the next one."""
        super().on_connection_error_after_connected(exc)
        self._pause(exc)

    def _pause(self, exc: Exception) -> None:
        """Wait before the next connection, unless the worker is shutting down."""
        now = time.monotonic()
        self._pause_seconds = next_pause_seconds(self._pause_seconds, now - self._failed_at)
        self._failed_at = now
        log.warning(
            "consumer_restarts",
            error=f"{type(exc).__name__}: {exc}",
            pause_seconds=self._pause_seconds,
        )
        while time.monotonic() < now + self._pause_seconds:
            maybe_shutdown()
            time.sleep(SHUTDOWN_CHECK_SECONDS)
