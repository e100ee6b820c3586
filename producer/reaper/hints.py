"""Hints of a reaper: messages that tell children of queued batches; they may be lost."""

import time

import structlog

from nightshift.common.broker import Announcer
from nightshift.common.errors import Retryable
from nightshift.common.settings import Settings
from nightshift.producer.reaper.admission import Queue

log = structlog.get_logger(__name__)

BROKER_PAUSE_SECONDS = 30.0
"""Longest pause after a broker did not answer: each try of a silent broker costs 5 s."""


class Hints:
    """Sends hints to the broker of the settings; after a failure none are sent for a while, longer
    after each further failure.
    """

    def __init__(self, settings: Settings) -> None:
        self._announcer = Announcer(settings.broker_url) if settings.broker_url else None
        self._first_pause_seconds = settings.poll_seconds
        self._pause_seconds = 0.0
        self._paused_until = 0.0

    def send(self, queue: Queue) -> None:
        """Brings the queue's messages up to its queued batches."""
        if self._announcer is None or time.monotonic() < self._paused_until:
            return
        try:
            self._announcer.top_up(queue.pool, queue.engine_key, queue.queued)
            self._pause_seconds = 0.0
        except Retryable as error:
            self._pause_seconds = min(
                BROKER_PAUSE_SECONDS, 2 * self._pause_seconds or self._first_pause_seconds
            )
            self._paused_until = time.monotonic() + self._pause_seconds
            log.warning("announce_failed", error=str(error))

    def close(self) -> None:
        """Closes the connection to the broker."""
        if self._announcer is not None:
            self._announcer.close()
