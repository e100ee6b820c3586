"""What somebody saw of a thing before changing it: a change that meets something else does not happen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nightshift.common.errors import BadInput
from nightshift.common.spec.changes import NONE


class Stale(BadInput):
    """The thing is no longer as it was seen: `differs` has, by name, what was seen and what is there now."""

    def __init__(self, differs: Mapping[str, tuple[str, str]]) -> None:
        self.differs = dict(differs)
        said = ", ".join(f"{name} is {now}, not {old}" for name, (old, now) in differs.items())
        super().__init__(f"something has changed meanwhile: {said}; nothing was done")


@dataclass(frozen=True, slots=True)
class Seen:
    """Values by name, as a page has written them. Who saw nothing is never too late."""

    values: Mapping[str, str] = field(default_factory=dict)

    def check(self, now: Mapping[str, object]) -> None:
        """Raises Stale where one of these values is another than was seen. The caller holds the lock of the
        thing, and has found that something would change.
        """
        differs = {
            name: (old, written(now[name]))
            for name, old in self.values.items()
            if name in now and old != written(now[name])
        }
        if differs:
            raise Stale(differs)


NOTHING = Seen()


def written(value: object) -> str:
    """A value as pages write it, always in the same way."""
    if value is None:
        return NONE
    if isinstance(value, int | float):
        return f"{float(value):.15g}"
    return str(value)
