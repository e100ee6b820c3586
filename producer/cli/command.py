"""A command in the list of all: its panel of `--help`, and its place there."""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer


@dataclass(frozen=True, slots=True)
class Command:
    """`run` is a function with the command's options, or a group of commands, which has a `name`; or where one
    of them stands (`module:name`). The command stands before the command `before` of its panel, or at the end.
    """

    panel: str
    run: "Callable[..., None] | Typer | str"
    before: str = ""
    name: str = ""

    @property
    def function(self) -> "Callable[..., None] | Typer":
        """The function or the group itself."""
        return resolve_name(self.run) if isinstance(self.run, str) else self.run

    @property
    def called(self) -> str:
        """What people type."""
        return self.name or getattr(self.function, "__name__", "").strip("_").replace("_", "-")
