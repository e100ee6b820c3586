"""Cordon, drain, uncordon: workers and hosts that take no new work."""

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.fleet import cordons
from nightshift.common.ledger.fleet.cordons import Target
from nightshift.common.text import counted, first_few
from nightshift.producer.control.answer import Answer, detail
from nightshift.producer.control.seen import NOTHING, Seen

IN_SERVICE = "in service"


def cordon(ledger: Ledger, name: str, *, drains: bool, seen: Seen = NOTHING) -> Answer:
    """The target takes no new work; with `drains` its children also leave, as by SIGTERM.

    BadInput where the ledger knows no host, worker or slot of this name; Stale where the target is not as it
    was seen.
    """
    with ledger.transaction() as connection:
        cordons.lock(connection)
        target = _known(connection, name)
        before = _state(connection, target)
        cordons.cordon(connection, target, drains=drains)
        return _answer(connection, target, "drain" if drains else "cordon", before, seen)


def uncordon(ledger: Ledger, name: str, *, seen: Seen = NOTHING) -> Answer:
    """The target takes work again. BadInput and Stale as for `cordon`."""
    with ledger.transaction() as connection:
        cordons.lock(connection)
        target = _known(connection, name)
        before = _state(connection, target)
        cordons.uncordon(connection, target)
        return _answer(connection, target, "uncordon", before, seen)


def _known(connection: Connection, name: str) -> Target:
    target = cordons.find(connection, name)
    if target is None:
        raise BadInput(
            f"{name!r} is neither a host nor a worker that the ledger knows; "
            "`nightshift workers` lists them"
        )
    return target


def _state(connection: Connection, target: Target) -> str:
    return cordons.state(connection, target) or IN_SERVICE


def _answer(connection: Connection, target: Target, action: str, before: str, seen: Seen) -> Answer:
    """What changed, for how many slots; written down where something changed."""
    after, slots = _state(connection, target), cordons.slots(connection, target)
    changes = {} if before == after else {"state": (before, after)}
    if changes:
        seen.check({"state": before})
        audit_log.record(connection, action, subject=target.label, detail=detail(changes))
    figures = {"slots": slots["slots"], "workers": slots["workers"]}
    then = f"{counted(slots['slots'], 'slot')} of {counted(slots['workers'], 'worker')}"
    if after == "drained":
        then = f"{then}; `nightshift workers` shows when they are free"
    if after != IN_SERVICE:
        then = f"{then}; `nightshift uncordon {target.name}` takes it back into service"
    elif slots["cordoned"]:
        others = cordons.holding(connection, target)
        then = (
            f"{then}, {slots['cordoned']} of which the cordon of "
            f"{first_few([each.label for each in others])} still holds; "
            f"`nightshift uncordon {others[0].name}` ends it"
        )
    if not changes:
        held = "it has no cordon" if after == IN_SERVICE else f"it was {after} before"
        then = f"nothing changed, {held}: {then}"
    return Answer(action, target.label, None, changes, then, figures)
