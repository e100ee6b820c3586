"""Named moments at which a test build can end, freeze or fail a process of the fleet.

In every other build `reached` does nothing, since only the fault suite sets `observer`.
"""

from collections.abc import Callable
from enum import StrEnum


class Moment(StrEnum):
    """A moment just before or after an action of a process."""

    ENTERED = "entered"
    SUBMITTING = "submitting"
    APPENDING = "appending"
    CLAIMED = "claimed"
    READING = "reading"
    ANSWERED = "answered"
    WRITING = "writing"
    WRITTEN = "written"
    COMMITTING = "committing"
    COMMITTED = "committed"
    LOOKING = "looking"
    NAMING = "naming"
    DELETING = "deleting"
    MOVED = "moved"
    RENEWING = "renewing"
    DISPATCHING = "dispatching"
    REAPING = "reaping"
    FINISHING = "finishing"
    SWEEPING = "sweeping"
    CLOSING = "closing"
    ARCHIVING = "archiving"
    LEAVING = "leaving"
    HANDING_OVER = "handing_over"
    DELIVERING = "delivering"
    TABLE_INTENDED = "table_intended"
    TABLE_CHECKED = "table_checked"
    TABLE_WRITTEN = "table_written"
    TABLE_NOTED = "table_noted"


observer: Callable[[Moment], None] | None = None
"""Set by the fault suite (tests/support/build/sitecustomize.py), by nobody else."""


def reached(moment: Moment) -> None:
    """Calls the observer, if there is one, and raises what the observer raises."""
    if observer is not None:
        observer(moment)
