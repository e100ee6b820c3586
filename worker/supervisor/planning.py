"""The plan of a pool, computed by whichever supervisor finds it old and gets the pool's lock."""

from nightshift.common.allocation.deadlines import with_deadlines
from nightshift.common.allocation.plan import allocate, beside_cordoned, desired_slots
from nightshift.common.ledger import Ledger, deadlines, fleet
from nightshift.common.ledger.control import cordons


def renew(ledger: Ledger, pool: str, alive_seconds: float) -> bool:
    """Computes and stores the plan of a pool; False when another supervisor does so, or just has.

    Slots that are cordoned, or of machines that were not seen for `alive_seconds`, are left out.
    """
    with ledger.transaction() as connection:
        if not fleet.try_to_plan(connection, pool):
            return False
        works = deadlines.works(connection, pool=pool)
        demand = with_deadlines(fleet.demand(connection, pool), works)
        slots = fleet.slots(connection, pool, alive_seconds)
        engine_of = allocate(slots, demand, fleet.engines(connection, pool))
        waiting = {job.engine_key for job in demand}.difference(engine_of.values())
        cordoned = cordons.count_in_pool(connection, pool, alive_seconds)
        desired = beside_cordoned(desired_slots(demand), cordoned)
        fleet.store_plan(connection, pool, engine_of, desired, sorted(waiting))
    return True
