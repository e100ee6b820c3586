"""What verify says: the result of each check, with a problem for everything that does not hold."""

from dataclasses import dataclass, field

MOST_PROBLEMS = 20
"""Problems that one check spells out; one more line counts the rest."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it must be: the check that found it, and one sentence."""

    check: str
    message: str


@dataclass(slots=True)
class CheckResult:
    """What one check found; `summary` says what was read. Without problems the check is good."""

    name: str
    summary: str = ""
    _messages: list[str] = field(default_factory=list)
    _only_counted: int = 0

    def add(self, message: str) -> None:
        """Adds a problem, or only counts it when there are many."""
        if len(self._messages) < MOST_PROBLEMS:
            self._messages.append(message)
        else:
            self._only_counted += 1

    @property
    def problems(self) -> list[Problem]:
        """Every problem that is spelled out, and a last one for those that were only counted."""
        rest = [f"and {self._only_counted:,} more of this kind"] if self._only_counted else []
        return [Problem(self.name, message) for message in (*self._messages, *rest)]
