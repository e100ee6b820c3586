"""Where estimates take part: a command, and pilots before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightshift.producer.cli.command import Command


def commands() -> Sequence[Command]:
    """Estimate."""
    from nightshift.producer.cli.command import Command
    from nightshift.producer.estimate.commands import estimate

    return [Command("Run", estimate, before="submit")]


def pilot(*where: Any, **given: Any) -> bool:
    """Runs a sample before a job; see `before_job`."""
    from nightshift.producer.estimate import pilot_place

    return pilot_place.before_job(*where, **given)
