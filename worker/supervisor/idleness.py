"""When a worker leaves by itself (`--leave-idle`): for how long it has had nothing to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.common.ledger.fleet.slots import SlotOrder

COUNTED_SECONDS = 5.0
"""Between two looks no more than this counts: a process that was stopped for an hour saw nothing of it."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """How many `seconds` a worker has been seen with nothing to do. `seen_at` is the moment of the last look
    (monotonic seconds) if that look saw all of its slots so, else None.
    """

    seconds: float = 0.0
    seen_at: float | None = None

    def after(self, now: float, slots: Sequence[tuple[str, SlotOrder]] | None) -> "Idleness":
        """The same after a look at the moment `now` (monotonic seconds).

        `slots` are the state of each slot, as metrics show it, and what the ledger says of the slot. None:
        the ledger did not answer, or has no plan of this moment. Such a time counts neither as idle nor as
        work, so a worker stays through an outage, and goes on counting behind it.
        """
        if slots is None:
            return Idleness(self.seconds)
        if not all(has_nothing_to_do(state, order) for state, order in slots):
            return Idleness()
        passed = 0.0 if self.seen_at is None else now - self.seen_at
        return Idleness(self.seconds + min(passed, COUNTED_SECONDS), now)


def has_nothing_to_do(state: str, order: SlotOrder) -> bool:
    """Whether a slot has no work and the plan gives it none.

    A cordoned slot keeps its warm engine by a person's word, until that person drains the slot. A lost slot
    cannot work any more.
    """
    if order.planned_key is not None or order.has_work:
        return False
    if state == "ready":
        return order.holds_nothing and not order.cordoned
    return state in ("free", "lost")
