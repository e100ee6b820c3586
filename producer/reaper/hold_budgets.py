"""Duty: jobs and tenants that have spent their budget are paused."""

from functools import partial

import structlog

from nightshift.common.ledger.jobs import spending, tenant_costs
from nightshift.producer.reaper.duty import Duty, Reaper

log = structlog.get_logger(__name__)

HOLD = "hold"
"""One budget of a turn of the duty, whose failures are counted by themselves."""


def duty(reaper: Reaper) -> Duty:
    """Each round."""
    reaper.rounds.expect(HOLD)
    return Duty("hold_budgets", 0.0, partial(hold_budgets, reaper))


def hold_budgets(reaper: Reaper) -> None:
    """Pauses every job that is over its budget, or whose tenant is."""
    with reaper.ledger.transaction() as connection:
        over = spending.over_budget(connection) + tenant_costs.over_budget(connection)
    # Each by itself: a job whose row is locked for long stops no other.
    for job_id, why in over:
        reaper.watchdog.alive()
        reaper.attempt(HOLD, partial(_hold, reaper, job_id, why))


def _hold(reaper: Reaper, job_id: int, why: str) -> None:
    with reaper.ledger.transaction() as connection:
        paused = spending.hold(connection, job_id, why)
    if paused:
        log.warning("job_paused", job_id=job_id, why=why)
