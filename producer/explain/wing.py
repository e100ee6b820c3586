"""Where explanations take part: a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.producer.cli.command import Command


def commands() -> Sequence[Command]:
    """Explain."""
    from nightshift.producer.cli.command import Command
    from nightshift.producer.explain.commands import explain

    return [Command("Look", explain, before="watch")]
