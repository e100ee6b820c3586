"""What a form rests on: the values that its page showed, and what is said where they are others by now."""

from collections.abc import Sequence

from nightshift.common.ledger.audit_log import Change
from nightshift.producer.control.seen import Seen, Stale, written
from nightshift.producer.serve.console.page_calls import Visit

WAS = "was-"
"""What the name of a field begins with that holds what the page showed: was-state, was-priority."""


def seen(visit: Visit, of: str = "") -> Seen:
    """What the page of a form showed; `of` ends the names of the fields where the form is about many things."""
    return Seen(
        {
            name.removeprefix(WAS).removesuffix(of): values[0]
            for name, values in visit.form.items()
            if name.startswith(WAS) and name.endswith(of)
        }
    )


def changed_by(changes: Sequence[Change], name: str, now: str) -> Change | None:
    """The change that gave a field the value of now; None where that was nobody: the system did it, or it is
    too long ago. `changes` are of one thing, the oldest first.
    """
    for each in reversed(changes):
        values = each["detail"].get(name)
        if isinstance(values, list):
            return each if written(values[-1]) == now else None
    return None


def refusal(what: str, stale: Stale, changes: Sequence[Change]) -> str:
    """One sentence about what is no longer as somebody saw it: what is there now, and by whom."""
    said = []
    for name, (_, now) in stale.differs.items():
        by = changed_by(changes, name, now)
        who = f", by {by['who']} at {by['happened_at'].astimezone():%H:%M:%S}" if by else ""
        said.append(f"is {now} by now{who}" if name == "state" else f"has {name} {now} by now{who}")
    return f"{what} {' and '.join(said)}: nothing was changed"
