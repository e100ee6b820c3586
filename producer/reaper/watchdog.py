"""The watchdog of a reaper: a file says for `nightshift alive` that the rounds go on, and when the file is
to be written next.
"""

import time

import structlog

from nightshift.common.settings import Settings
from nightshift.common.telemetry.run_state import StateFile

log = structlog.get_logger(__name__)

DUTY_ANSWERS = 2
BROKER_SECONDS = 10.0
DUTIES = 3
"""A duty may wait DUTY_ANSWERS times for Postgres, and BROKER_SECONDS for a silent Redis. A reaper
that needs DUTIES times as long for one duty counts as hanging.
"""


class Watchdog:
    """Writes the state of one reaper, if it has a file."""

    def __init__(self, settings: Settings, state: StateFile | None) -> None:
        self._state = state
        duty_seconds = DUTY_ANSWERS * settings.answer_seconds + BROKER_SECONDS
        self._late_seconds = DUTIES * duty_seconds + settings.dispatch_seconds

    def alive(self) -> None:
        """The round goes on."""
        if self._state is None:
            return
        failure = self._state.write(time.monotonic() + self._late_seconds)
        if failure is not None:
            log.warning("run_dir_not_written", error=failure)
