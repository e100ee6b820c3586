"""Duty: expired leases are taken back."""

from functools import partial

import structlog

from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger.batches import dispatch, leasing
from nightshift.producer.reaper.duty import Duty, Reaper

log = structlog.get_logger(__name__)

REAPS_A_ROUND = 10
MOST_REAPED = 1_000
"""Most transactions of one round that take back expired leases, and most leases that one of them
takes, in some 100 ms.
"""


def duty(reaper: Reaper) -> Duty:
    """Each round."""
    return Duty("reap", 0.0, partial(reap, reaper))


def reap(reaper: Reaper) -> None:
    """Takes expired leases back, in pieces, unless their holders could not renew them."""
    if not reaper.silence.may_reap:
        return
    for _ in range(REAPS_A_ROUND):
        lost = _some(reaper)
        if lost < MOST_REAPED or reaper.silence.is_long:
            return
        reaper.silence.answered()


def _some(reaper: Reaper) -> int:
    reaper.watchdog.alive()
    with reaper.ledger.transaction() as connection:
        young = dispatch.started_within(connection, reaper.settings.lease_seconds)
        # Checked after Postgres has answered once: the leases are judged at that time.
        if young or reaper.silence.is_long:
            return 0
        lost = leasing.reap(connection, MOST_REAPED)
        reached(Moment.REAPING)
    if lost:
        log.warning("leases_reaped", batches=lost)
        reaper.rounds.reaped(lost)
    return lost
