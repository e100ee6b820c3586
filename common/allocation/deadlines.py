"""Deadlines: how many slots a job needs to be done in time, and what is to be expected of it.

The rate of a slot is that of slots at work, so that a job keeps its rate while it waits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from nightshift.common.allocation.demand import JobDemand

RESERVE = 0.1
"""Part of the time left that a plan keeps in reserve, beside one load of the engine: for rates that are
a few percent off, for slots that are lost, and for the last batches, which fill no slot. Without the
load twice as many jobs were late by minutes (`make bench-deadlines`).
"""

MOST_RESERVE = 2.0
"""The reserve at most doubles the slots that a job needs: near its deadline a load in reserve would ask
for a slot for each batch.
"""

STALE_SECONDS = 86_400.0
"""A rate whose last commit is older counts for nothing: rows, models and machines may have changed."""

LEAST_ROWS = 0.02
"""Part of a job, or one window of its engine, whichever is less: with fewer rows over, the time in
which the first window fills makes the rate too low.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What is known of a job with a deadline.

    `seconds_left` are below 0 after the deadline. `slots` are those at work for the job, in parts of
    a slot, and `most_slots` those that it could use, with a batch for each. `rate` is the rows a
    second of a slot at work, None where nothing was measured; the last of it `measured_seconds_ago`.
    """

    rows: int
    seconds_left: float
    slots: float
    most_slots: int
    load_seconds: float = 0.0
    rate: float | None = None
    measured_seconds_ago: float = 0.0

    @property
    def fresh_rate(self) -> float | None:
        """The rate, None where it is missing or stale."""
        return None if self.measured_seconds_ago > STALE_SECONDS else self.rate


def slots_needed(work: Work) -> float:
    """The slots without which a job would miss its deadline, in parts of a slot; 0 where no rate is
    known. They are `most_slots` where even those would be late. The reserve is part of them.

    Slots that the job does not have yet load its engine first. A job that is on time with its slots
    needs no more of them, so that small changes of the rate change no plan; and none that would load
    until the job is done.
    """
    rate = work.fresh_rate
    if work.rows <= 0 or rate is None:
        return 0.0
    least = _slots_in(work, work.seconds_left)
    reserved = _slots_in(work, work.seconds_left * (1 - RESERVE) - work.load_seconds)
    needed = min(reserved, MOST_RESERVE * least)
    is_on_time = least <= work.slots
    ends_before_a_load = work.rows <= work.slots * rate * work.load_seconds
    if needed > work.slots and (is_on_time or ends_before_a_load):
        return work.slots
    return min(needed, float(work.most_slots))


def is_beyond_reach(work: Work) -> bool:
    """True when a job would be late even with every slot that it could use."""
    return work.fresh_rate is not None and _slots_in(work, work.seconds_left) > work.most_slots


def with_deadlines(demand: Sequence[JobDemand], works: Mapping[int, Work]) -> list[JobDemand]:
    """The demand of jobs with what their deadlines need, of which `works` has the facts by job."""
    return [
        job
        if (work := works.get(job.job_id)) is None
        else replace(
            job,
            deadline_slots=slots_needed(work),
            exact_slots=_slots_in(work, work.seconds_left) if work.fresh_rate else 0.0,
            due_seconds=work.seconds_left,
            beyond_reach=is_beyond_reach(work),
        )
        for job in demand
    ]


def _slots_in(work: Work, seconds: float) -> float:
    """The slots that end the rows in `seconds` seconds; infinite where no number of slots does."""
    rate = work.fresh_rate
    if rate is None or seconds <= 0:
        return math.inf
    alone = work.rows / (rate * seconds)
    if alone <= work.slots:
        return alone
    at_work = seconds - work.load_seconds
    if at_work <= 0:
        return math.inf
    return work.slots + (work.rows - work.slots * rate * seconds) / (rate * at_work)


class Standing(StrEnum):
    """How a job stands to its deadline."""

    ON_TIME = "on time"
    LATE = "late"
    NO_RATE = "no rate"
    STALE_RATE = "stale rate"
    PAUSED = "paused"
    """Neither on time nor late: nobody works on the job."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected end of a job. A late job with a pace ends `late_seconds` after its deadline, and would be on time with
    `more_slots` more slots; None if no number would be enough.
    """

    standing: Standing
    late_seconds: float | None = None
    more_slots: int | None = None


def outlook(work: Work, eta_seconds: float | None) -> Outlook:
    """Return where a running job will stand at its deadline if it keeps its slots.

    `eta_seconds` is the likely time to its end at its pace now, None without a pace; then the measured rate of a slot
    tells whether it is late, but not by how much.
    """
    if work.rows <= 0:
        late = -work.seconds_left
        return Outlook(Standing.LATE, late) if late > 0 else Outlook(Standing.ON_TIME)
    if work.rate is None:
        return Outlook(Standing.NO_RATE)
    if work.fresh_rate is None:
        return Outlook(Standing.STALE_RATE)
    pace = work.rate * work.slots if eta_seconds is None else work.rows / max(eta_seconds, 0.1)
    left = work.rows - pace * max(work.seconds_left, 0.0)
    if left <= 0:
        return Outlook(Standing.ON_TIME)
    late_seconds = None if eta_seconds is None else eta_seconds - work.seconds_left
    return Outlook(Standing.LATE, late_seconds, _more_slots(work, left))


def _more_slots(work: Work, rows: float) -> int | None:
    """Return how many more slots would run these rows by the deadline, after one load; None if no number would."""
    at_work = work.seconds_left - work.load_seconds
    if work.rate is None or at_work <= 0:
        return None
    more = rows / (work.rate * at_work)
    return None if work.slots + more > work.most_slots else max(1, math.ceil(more))
