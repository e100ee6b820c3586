"""When a process that ended by itself is started again: at once after a long life, else later each time."""

from dataclasses import dataclass

from nightshift.common.text import counted

LIVED_SECONDS = 60.0
"""A process that lived this long has begun well: its ends before that count no more."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""Pause before the second start in a row, twice as long before each further one, and the longest."""


def pause_seconds(ends: int) -> float:
    """How long a process stays down that ended `ends` times in a row; not at all after one end."""
    # After 20 doublings the longest pause is reached; the bound keeps the power from overflowing.
    pause = FIRST_PAUSE_SECONDS * 2.0 ** min(ends - 2, 20) if ends > 1 else 0.0
    return min(LONGEST_PAUSE_SECONDS, pause)


@dataclass(slots=True)
class Restarts:
    """The ends in a row of one process, and when it is due again. Times are monotonic seconds.

    `why` says how it ended last: `with exit code 1`.
    """

    ends: int = 0
    why: str = ""
    due_at: float = float("-inf")
    began_at: float | None = None

    def began(self, now: float) -> None:
        """The process runs since this moment."""
        self.began_at = now

    def ended(self, now: float, why: str) -> None:
        """The process ended by itself, or could not be started."""
        self.ends = 1 if self._has_lived(now) else self.ends + 1
        self.why, self.began_at = why, None
        self.due_at = now + pause_seconds(self.ends)

    def is_due(self, now: float) -> bool:
        """Whether a process that is down is to be started."""
        return now >= self.due_at

    def trouble(self, name: str, now: float) -> str | None:
        """What is wrong, in one sentence; None for a process that has lived for long enough."""
        if not self.ends or self._has_lived(now):
            return None
        times = f"{counted(self.ends, 'time')} in a row, last " if self.ends > 1 else ""
        left = max(0.0, self.due_at - now)
        then = f"it is started again in {left:.0f} s" if self.began_at is None else "it runs again"
        return f"the {name} ended {times}{self.why}; {then}"

    def _has_lived(self, now: float) -> bool:
        return self.began_at is not None and now - self.began_at >= LIVED_SECONDS
