"""Where tuning takes part: a command. Submits read what it keeps in the ledger, see `submit/auto_args.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.producer.cli.command import Command


def commands() -> Sequence[Command]:
    """Tune."""
    from nightshift.producer.cli.command import Command
    from nightshift.producer.tune.commands import tune

    return [Command("Run", tune)]
