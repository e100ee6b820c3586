"""What verify says: checks, and the findings of those that do not hold."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

MOST_FINDINGS = 20
"""Findings that one check spells out; the rest is one line that counts them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be: the check that saw it, and one sentence."""

    check: str
    message: str


@dataclass(slots=True)
class Check:
    """One thing that was looked at; `said` sums up what was seen. No findings: it holds."""

    name: str
    said: str = ""
    findings: list[Finding] = field(default_factory=list)
    unsaid: int = 0

    def bad(self, message: str) -> None:
        """Adds a finding, or counts it when there are many."""
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(self.name, message))
        else:
            self.unsaid += 1

    def all_bad(self, messages: Iterable[str]) -> None:
        """Adds several findings."""
        for message in messages:
            self.bad(message)

    def closed(self) -> "Check":
        """Itself, with a line for the findings that were only counted."""
        if self.unsaid:
            self.findings.append(Finding(self.name, f"and {self.unsaid:,} more of this kind"))
            self.unsaid = 0
        return self


def some(values: Iterable[object], most: int = 5) -> str:
    """The first few of many values, for a sentence."""
    iterator: Iterator[object] = iter(values)
    shown = [str(value) for value in islice(iterator, most)]
    left = sum(1 for _ in iterator)
    return ", ".join(shown) + (f" and {left:,} more" if left else "")
