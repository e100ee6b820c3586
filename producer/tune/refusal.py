"""When a trial counts as one that no machine of its pool can load: a pure decision.

In a fleet a job waits for a machine that can load its engine, since one may come. A trial does not: that
its arguments cannot be loaded is a result of the tuning.
"""

from collections.abc import Sequence

from nightshift.common.allocation.load_errors import MOST_TRIES
from nightshift.common.ledger.engines.tunings import MachineLoads

ENOUGH_MACHINES = 3
"""So many machines speak for the others: those of a pool that is tuned are equal."""

ALONE_SECONDS = 600.0
"""How long a trial waits while no machine lives that may load its engine, such as during an upgrade."""


def refusal(machines: Sequence[MachineLoads], alone_seconds: float) -> str | None:
    """Why no machine loads the engine of a trial, None while one may.

    `machines` are the living ones of the pool that may have the engine, and `alone_seconds` says how
    long there was none. A failure that may pass counts once MOST_TRIES loads have failed.
    """
    if not machines:
        return "no worker of its pool lives" if alone_seconds >= ALONE_SECONDS else None
    if any(each.has_engine for each in machines):
        return None
    failed = [each for each in machines if each.failures]
    if len(failed) < min(len(machines), ENOUGH_MACHINES):
        return None
    may_pass = any(each.passes for each in failed)
    if may_pass and sum(each.failures for each in failed) < MOST_TRIES:
        return None
    return f"the engine could not be loaded: {failed[0].error}"
