"""The shape of a fact about a job, for every renderer."""

from dataclasses import dataclass
from typing import Any, Protocol

from nightshift.producer.views.cells import duration


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact: its name, its value, the unit of a number, and what it means. It `warns` if a person should know it."""

    name: str
    value: str | float
    unit: str = ""
    meaning: str = ""
    warns: bool = False

    @property
    def text(self) -> str:
        """The value with its unit; seconds as a duration."""
        if isinstance(self.value, str):
            return self.value
        if self.unit == "s":
            return duration(self.value) if self.value >= 1 else f"{self.value:.2f} s"
        return f"{self.value:,.1f} {self.unit}".rstrip()


class Contribution(Protocol):
    """What a wing knows of a job: an object of `status --json`, and a fact."""

    @property
    def as_json(self) -> dict[str, Any]:
        """The object of `status --json` and of the manifest."""

    @property
    def fact(self) -> Fact:
        """The fact for people."""
