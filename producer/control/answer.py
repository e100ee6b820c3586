"""The answer of a command that changes something: one line for people, JSON for machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Changes = Mapping[str, tuple[object, object]]
"""Old and new value by the name of what changed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command changed. `subject` is a job, a batch, a machine; `then` says what follows.

    `facts` are figures beside the changes; they stand in the JSON alone.
    """

    action: str
    subject: str
    job_id: int | None = None
    changes: Changes = field(default_factory=dict)
    then: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """`job 3 (tickets): priority 0 -> 5; what follows`, in one line."""
        said = ", ".join(
            f"{name} {_shown(old)} -> {_shown(new)}" for name, (old, new) in self.changes.items()
        )
        return f"{self.subject}: {'; '.join(filter(None, (said, self.then)))}"

    @property
    def as_json(self) -> dict[str, object]:
        """The same for machines."""
        return {
            "action": self.action,
            "subject": self.subject,
            "job": self.job_id,
            "changed": {
                name: {"old": old, "new": new} for name, (old, new) in self.changes.items()
            },
            **self.facts,
            "message": self.line,
        }


def detail(changes: Changes) -> dict[str, object]:
    """Changes as the audit log keeps them."""
    return {name: [old, new] for name, (old, new) in changes.items()}


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
