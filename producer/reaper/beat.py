"""Duty: this reaper notes that it lives, for those who look."""

import socket
from contextlib import suppress
from functools import partial

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger.batches import dispatch
from nightshift.common.provenance import code_version
from nightshift.producer.reaper.duty import Duty, Reaper

BEAT_SECONDS = 5.0
"""Pause between two notes."""


def duty(reaper: Reaper) -> Duty:
    """Every BEAT_SECONDS; at its end the reaper says that it leaves."""
    reaper.at_end.callback(leave, reaper)
    return Duty("beat", BEAT_SECONDS, partial(beat, reaper))


def beat(reaper: Reaper) -> None:
    """Notes name, host and version."""
    with reaper.ledger.transaction() as connection:
        dispatch.beat(connection, reaper.name, socket.gethostname(), code_version())


def leave(reaper: Reaper) -> None:
    """Says that this reaper is gone, where Postgres can be told."""
    with suppress(NightshiftError), reaper.ledger.transaction() as connection:
        dispatch.leave(connection, reaper.name)
