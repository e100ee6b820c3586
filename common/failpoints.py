"""Named moments at which a test build can end, freeze or fail a process of the fleet.

In every other build `reached` does nothing: nobody sets `observer`, and no setting can.
"""

from collections.abc import Callable
from enum import StrEnum


class Moment(StrEnum):
    """What a process is about to do next, or has just done."""

    CLAIMED = "claimed"
    READING = "reading"
    ANSWERED = "answered"
    WRITING = "writing"
    WRITTEN = "written"
    COMMITTING = "committing"
    COMMITTED = "committed"
    MOVED = "moved"
    RENEWING = "renewing"
    DISPATCHING = "dispatching"
    REAPING = "reaping"
    FINISHING = "finishing"
    SWEEPING = "sweeping"
    CLOSING = "closing"


observer: Callable[[Moment], None] | None = None
"""Set by the fault suite (tests/support/build/sitecustomize.py), by nobody else."""


def reached(moment: Moment) -> None:
    """Tells the observer, if there is one; what it raises is raised here."""
    if observer is not None:
        observer(moment)
