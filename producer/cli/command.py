"""A command in the list of all: its panel of `--help`, and its place there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer


@dataclass(frozen=True, slots=True)
class Command:
    """`run` is a function with the command's options, or a group of commands, which has a `name`. The
    command stands before the command `before` of its panel, or at the end.
    """

    panel: str
    run: "Callable[..., None] | Typer"
    before: str = ""
    name: str = ""

    @property
    def called(self) -> str:
        """What people type."""
        return self.name or getattr(self.run, "__name__", "").strip("_").replace("_", "-")
