"""Duty: counters are folded, and workers that are silent for long count as ended."""

from functools import partial

from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.engines import engine_versions
from nightshift.common.ledger.fleet import workers
from nightshift.producer.reaper.duty import Duty, Reaper


def duty(reaper: Reaper) -> Duty:
    """Each round."""
    return Duty("tidy", 0.0, partial(tidy, reaper))


def tidy(reaper: Reaper) -> None:
    """Folds the counters of jobs; ends workers only where leases may be taken back."""
    with reaper.ledger.transaction() as connection:
        dispatch.fold_counters(connection)
        engine_versions.fold_counters(connection)
        if reaper.silence.may_reap:
            workers.end_silent(connection, reaper.settings.lease_seconds)
