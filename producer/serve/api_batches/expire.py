"""Expiring: the time of batches is over; what has run of them is delivered."""

from nightshift.common.ledger import Ledger
from nightshift.producer.serve.ledger import api_batch_steps

MOST_EXPIRED = 100
"""Batches that one transaction expires."""


def expire_once(ledger: Ledger) -> bool:
    """Ends the time of some batches, and cancels jobs that run although their batch was told to end; True
    where more are left.
    """
    with ledger.transaction() as connection:
        more = len(api_batch_steps.expire(connection, MOST_EXPIRED)) == MOST_EXPIRED
        api_batch_steps.cancel_strays(connection, MOST_EXPIRED)
    return more
