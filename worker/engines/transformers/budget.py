"""How many tokens a forward pass has: found by doubling, until memory or speed says stop."""

import math
from dataclasses import dataclass, replace

PAIRS = 5
"""Passes of each of two sizes that are compared, in turns, since rows differ. All pairs but one decide: other
work on the machine makes passes slow by chance."""

GAIN = 1.05
"""A pass of twice the size has to compute tokens faster than its neighbour by this factor."""

FULL = 0.75
"""Share of its size that a pass must have to be compared."""

LONG_SECONDS = 2.0
"""Passes that take so long are not doubled: their fixed costs are nothing beside that."""

Speeds = tuple[float, ...]
"""Tokens a second of passes, padding included."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Passes of `tokens` tokens, padding included, compared with passes of twice the size until one of
    them is `settled`. No pass has more than `most` tokens, which may be too much for the memory.
    """

    tokens: int
    most: float = math.inf
    settled: bool = False
    once: Speeds = ()
    twice: Speeds = ()

    @property
    def next(self) -> int:
        """Tokens that the next pass may have."""
        wanted = (
            self.tokens if self.settled or len(self.twice) >= len(self.once) else 2 * self.tokens
        )
        return int(min(wanted, self.most))

    def passed(self, tokens: int, seconds: float) -> "Budget":
        """What follows from a pass: it had so many tokens, and took so long."""
        if self.settled:
            return self
        if seconds > LONG_SECONDS:
            return self._settle(self.tokens)
        speed = tokens / max(seconds, 1e-9)
        if FULL * self.tokens <= tokens <= self.tokens and len(self.once) <= len(self.twice):
            return replace(self, once=(*self.once, speed))
        if not (FULL * 2 * self.tokens <= tokens and len(self.twice) < len(self.once)):
            return self
        now = replace(self, twice=(*self.twice, speed))
        if len(now.twice) < PAIRS:
            return now
        ratios = sorted(two / one for one, two in zip(now.once, now.twice, strict=True))
        if ratios[1] < GAIN:
            return self._settle(self.tokens)
        return replace(self, tokens=2 * self.tokens, once=(), twice=())

    def without_memory(self, tokens: int) -> "Budget":
        """A pass of so many tokens had too little memory: none is larger than half of it."""
        most = max(1, tokens // 2)
        return replace(self._settle(min(self.tokens, most)), most=most)

    def _settle(self, tokens: int) -> "Budget":
        return replace(self, tokens=tokens, settled=True, once=(), twice=())
