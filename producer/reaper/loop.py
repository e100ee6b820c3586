"""The reaper: leaderless duties, in rounds and beside them; run two or more of them.

At SIGTERM or SIGINT no turn begins any more, the turns under way get their time, and the reaper says
that it leaves; nothing is lost with a turn that is cut off.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from nightshift.common.errors import Retryable
from nightshift.common.formats.parquet import footer_trial
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.telemetry.run_state import StateFile
from nightshift.producer.reaper import duties, metrics
from nightshift.producer.reaper.duty import Beside, Reaper, Round
from nightshift.producer.reaper.finish_jobs import MOST_FINISHING

log = structlog.get_logger(__name__)

PRESSED_SPEEDUP = 10
"""How much sooner the next round comes while workers claim faster than rounds admit."""

CONNECTIONS = MOST_FINISHING + 8
"""Connections to Postgres that a reaper keeps: one for its rounds, one for each finish, seven for the other
duties beside the rounds and for renewals, which seldom work at the same time. As many more are opened when
they are needed.
"""

CHECK_SECONDS = 1.0
"""Pause between two checks of the version of the tables."""


def run(
    ledger: Ledger,
    settings: Settings,
    stop: threading.Event,
    state: StateFile | None = None,
    *,
    delete: Callable[[Job], object],
) -> None:
    """Does every duty until `stop` is set; `delete` deletes a closed job with its output.

    Raises SchemaMismatch when the tables no longer fit this code, BadInput when the metrics that
    the settings ask for cannot be served.
    """
    with footer_trial.begun(), metrics.served(settings) as rounds:
        reaper = Reaper(ledger, settings, rounds, delete, state, stop)
        with reaper.at_end:
            turns, besides = at_work(reaper)
            log.info("reaper_started")
            for beside in besides:
                beside.start()
            check_at = 0.0
            try:
                while not stop.is_set():
                    if time.monotonic() >= check_at:
                        check_schema(ledger)
                        check_at = time.monotonic() + CHECK_SECONDS
                    with rounds.round():
                        turns.turn()
                    stop.wait(
                        settings.dispatch_seconds / (PRESSED_SPEEDUP if reaper.pressed else 1)
                    )
            finally:
                stop.set()
                asked_at = time.monotonic()
                for beside in besides:
                    beside.leave(asked_at)
        log.info("reaper_ended")


def at_work(reaper: Reaper) -> tuple[Round, list[Beside]]:
    """The duties of a reaper: those of a round, and those beside the rounds."""
    table = duties.table(reaper)
    in_turn = [duty for duty in table if not duty.threads]
    return Round(reaper, in_turn), [Beside(reaper, duty) for duty in table if duty.threads]


def check_schema(ledger: Ledger) -> None:
    """Raises SchemaMismatch when the database has a version that this code does not know."""
    with suppress(Retryable):
        schema.check(ledger)
