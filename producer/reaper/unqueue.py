"""Duty: batches of paused, changed and ended jobs leave their queue."""

from functools import partial

from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.jobs import job_changes
from nightshift.producer.reaper.duty import Duty, Reaper

UNQUEUES_A_ROUND = 25
MOST_UNQUEUED = 2_000
"""Most transactions of one round that take batches back from their queue, and most batches that one of
them takes."""


def duty(reaper: Reaper) -> Duty:
    """Each round."""
    return Duty("unqueue", 0.0, partial(unqueue, reaper))


def unqueue(reaper: Reaper) -> None:
    """Takes back from the queues what is no longer to be claimed, in pieces."""
    for _ in range(UNQUEUES_A_ROUND):
        with reaper.ledger.transaction() as connection:
            taken = dispatch.unqueue(connection, MOST_UNQUEUED)
        with reaper.ledger.transaction() as connection:
            taken = max(taken, job_changes.take_back(connection, MOST_UNQUEUED))
        if taken < MOST_UNQUEUED:
            return
