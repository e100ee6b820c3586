"""Where watches take part: a duty of reapers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.producer.reaper.duty import Duty, Reaper


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Looks at watched inputs."""
    from nightshift.producer.watch import look

    return look.duties(reaper)
