"""The plan of a pool, computed by whichever supervisor finds it old and gets the pool's lock."""

from nightshift.common.allocation.deadlines import with_deadlines
from nightshift.common.allocation.plan import allocate, beside_cordoned, desired_slots
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.fleet import cordons, pool_plans
from nightshift.common.ledger.jobs import deadlines


def renew(ledger: Ledger, pool: str, alive_seconds: float) -> bool:
    """Computes and stores the plan of a pool; False when another supervisor does so, or just has.

    Slots that are cordoned, or of machines that were not seen for `alive_seconds`, are left out.
    """
    with ledger.transaction() as connection:
        if not pool_plans.try_lock(connection, pool):
            return False
        works = deadlines.works(connection, pool=pool)
        demand = with_deadlines(pool_plans.demand(connection, pool), works)
        slots = pool_plans.slots(connection, pool, alive_seconds)
        engine_of = allocate(slots, demand, pool_plans.engines(connection, pool))
        waiting = {job.engine_key for job in demand}.difference(engine_of.values())
        cordoned = cordons.count_in_pool(connection, pool, alive_seconds)
        desired = beside_cordoned(desired_slots(demand), cordoned)
        pool_plans.store(connection, pool, engine_of, desired, sorted(waiting))
    return True
