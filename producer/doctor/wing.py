"""Where the doctor takes part: a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.producer.cli.command import Command


def commands() -> Sequence[Command]:
    """Doctor."""
    from nightshift.producer.cli.command import Command
    from nightshift.producer.doctor.commands import doctor

    return [Command("Fleet", doctor)]
