"""What `/healthz` says: that this process answers, and what is wrong beside it.

A request asks nobody: a thread asks Postgres, and the fleet of this machine is looked at in memory.
"""

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger

log = structlog.get_logger(__name__)

ASK_SECONDS = 2.0
"""Pause between two questions to Postgres."""

SILENT_SECONDS = 5.0
"""Postgres counts as away when its last answer is older: what is wrong is said within 10 s."""

ANSWER_SECONDS = 10.0
"""Longest wait for one answer; a frozen Postgres is asked again after it."""


class Health:
    """What is wrong beside a server process. `troubles` are sentences about the fleet of this machine.

    Sentences name no path and no address: a caller of `/healthz` brings no key.
    """

    def __init__(
        self,
        troubles: Callable[[], Sequence[str]] = list,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives monotonic seconds."""
        self.troubles = troubles
        self._clock = clock
        self._answered_at: float | None = None

    def watch(self, ledger: Ledger, ended: threading.Event) -> None:
        """Asks Postgres, over a connection of its own, until `ended` is set; what is wrong is logged when
        it begins and when it ends.
        """
        self._answered_at = self._clock()
        is_away = False
        own = Ledger(ledger.url, connections=1, answer_seconds=ANSWER_SECONDS)
        while not ended.wait(ASK_SECONDS):
            try:
                with own.transaction() as connection:
                    connection.exec_driver_sql("SELECT 1")
            except NightshiftError as error:
                if not is_away:
                    log.warning("postgres_away", error=str(error))
                is_away = True
            else:
                if is_away:
                    log.info("postgres_back")
                is_away, self._answered_at = False, self._clock()
        own.close()

    def sentences(self) -> list[str]:
        """What is wrong now, a sentence each; none while all is well."""
        found = list(self.troubles())
        if self._answered_at is not None:
            silent = self._clock() - self._answered_at
            if silent > SILENT_SECONDS:
                found.insert(0, f"Postgres has not answered for {silent:.0f} s")
        return found
