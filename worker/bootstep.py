"""The moment of a Celery worker's start at which its signal handlers are set, before the broker is asked."""

import os
from collections.abc import Callable
from typing import Any

import structlog
from celery import Celery, bootsteps

from nightshift.common.exit_codes import ExitCode

log = structlog.get_logger(__name__)


def once_signals_are_handled(app: Celery, begin: Callable[[], None]) -> None:
    """Calls `begin` at that moment. A SIGTERM that comes earlier ends the process by the signal's default."""

    class Begin(bootsteps.StartStopStep):
        """Celery sets its handlers before the first step of the worker, and its consumer is the last."""

        def start(self, parent: Any) -> None:
            """In the main thread."""
            try:
                begin()
            except BaseException:
                # Celery would shut the worker down in order, and wait for what never began.
                log.exception("start_failed")
                os._exit(ExitCode.CRASHED)

    app.steps["worker"].add(Begin)
