"""Failed rows in groups: by kind, and by what their messages say."""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.queries import failed_rows

EXAMINED = 50_000
"""Rows whose messages are read at most, about. Of a million rows 1.2 s were needed on one core for all
messages, of one in twenty 0.15 s: the rows themselves are passed over fast."""

COUNT_SECONDS, MOST_COUNTED = 5.0, 1000

OLD_SECONDS = 60.0
"""After this time the same number of rows is counted anew: they may have run again, and failed otherwise."""

SHOWN_GROUPS = 5
"""Groups of failed rows that the page shows, the largest."""

EXAMPLES = 3
"""Rows of a group that the page names."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How many rows failed by kind, and the largest groups of similar messages. Of `every` so many rows one was
    looked at: with more than 1 the counts of groups are estimates.
    """

    kinds: Mapping[str, int] = field(default_factory=dict)
    groups: Sequence[Row] = ()
    every: int = 1


NO_FAILURES = Failures()


def of(connection: Connection, job_id: int, *, most: int, kind: str | None = None) -> Failures:
    """The failed rows of a job in at most so many groups, of one kind if named."""
    kinds = failed_rows.count_by_kind(connection, job_id)
    rows = sum(kinds.values()) if kind is None else kinds.get(kind, 0)
    every = max(1, rows // EXAMINED)
    groups = failed_rows.count_by_message(
        connection, job_id, kind=kind, most=most, every=every, examples=EXAMPLES
    )
    return Failures(kinds, groups, every)


class Kinds:
    """How many rows of a job failed how, counted anew once their number has changed, and not more often
    than COUNT_SECONDS, nor for more than a twentieth of the time: of a million failed rows a count takes a while.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[int, tuple[float, int, Failures]] = OrderedDict()

    def of(self, connection: Connection, row: Mapping[str, Any]) -> Failures:
        """The counts of a job, by its row of job_progress."""
        job, failed, now = row["job"], row["rows_failed"], time.monotonic()
        due, known, found = self._counts.get(job, (0.0, 0, NO_FAILURES))
        is_old = bool(failed) and now > due + OLD_SECONDS
        if is_old or (failed != known and (not found.kinds or now > due)):
            found = of(connection, job, most=SHOWN_GROUPS) if failed else NO_FAILURES
            took = time.monotonic() - now
            self._counts[job] = (now + max(COUNT_SECONDS, 20 * took), failed, found)
            while len(self._counts) > MOST_COUNTED:
                self._counts.popitem(last=False)
        return found
