"""Duties of a reaper for tables."""

from collections.abc import Sequence
from functools import partial

from nightshift.producer.reaper.duty import Duty, Reaper
from nightshift.producer.tables import commit, keep

COMMIT_PAUSE_SECONDS = 2.0
"""Pause between two looks for generations that are finished."""

REMOVE_PAUSE_SECONDS = 3600.0
"""Pause between two looks for replaced parts whose days are over."""


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Beside the rounds, since files and tables take their time."""
    finished = partial(commit.commit_finished, reaper.ledger, reaper.settings)
    expired = partial(keep.remove_expired, reaper.ledger, reaper.settings)
    return [
        Duty("commit_tables", COMMIT_PAUSE_SECONDS, finished, threads=1),
        Duty("remove_replaced", REMOVE_PAUSE_SECONDS, expired, threads=1),
    ]
