"""Which engine a slot loads: pure functions of the work that is open and of the machine's slots."""

from collections import Counter
from collections.abc import Collection, Sequence

from nightshift.common.ledger.workers import ChildStatus, EngineDemand


def for_free_slot(demand: Sequence[EngineDemand], loaded: Sequence[str]) -> EngineDemand | None:
    """The work of the highest priority, then with the fewest children, then the oldest.

    `loaded` are the engine keys of this machine's children: the ledger does not know yet of those
    that were just started.
    """
    here = Counter(loaded)
    return min(
        demand,
        key=lambda work: (
            -work.priority,
            max(work.children, here[work.engine_key]),
            work.job_id,
        ),
        default=None,
    )


def in_place_of(
    engine_key: str,
    child: ChildStatus | None,
    demand: Sequence[EngineDemand],
    served: Collection[str | None],
    idle_limit_seconds: float,
) -> str | None:
    """The engine key that should have a child's slot instead; None to keep the child.

    `served` are the engine keys that this machine's slots have or will have. Other work is
    unserved while no child anywhere has its engine and no slot here will have it.

    | child is                | open work for its engine     | result                        |
    |-------------------------|------------------------------|-------------------------------|
    | not ready, or not known | any                          | keep                          |
    | idle beyond the limit   | none                         | the first other work          |
    | idle beyond the limit   | some                         | the first unserved work       |
    | busy, or idle for less  | none                         | keep                          |
    | busy, or idle for less  | some                         | unserved work of more urgency |
    """
    if child is None or child.state != "ready":
        return None
    own = [work.priority for work in demand if work.engine_key == engine_key]
    idle = child.idle_seconds > idle_limit_seconds
    for work in demand:
        if work.engine_key == engine_key:
            continue
        unserved = work.engine_key not in served and not work.children
        if idle and (unserved or not own):
            return work.engine_key
        if own and unserved and work.priority > max(own):
            return work.engine_key
    return None
