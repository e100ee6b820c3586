"""How many tokens a forward pass has: found by doubling, until memory or speed says stop."""

import math
from dataclasses import dataclass, replace

FIRST_TOKENS = 32
"""Tokens that a text of the first passes is taken to have, padding included."""

MOST_ON_CPU = 2**14
"""Tokens of a pass without a GPU, where a process without memory is killed and no error tells of it."""

PAIRS = 5
"""Passes of each of two sizes that are compared, in turns, since rows differ. All pairs but one decide: other
work on the machine makes passes slow by chance."""

GAIN = 1.05
"""A pass of twice the size has to compute tokens faster than its neighbour by this factor."""

FULL = 0.5
"""A pass is compared where it has more than this share of its size, as every pass has that does not end a queue."""

LONG_SECONDS = 2.0
"""Passes that take so long are not doubled: their fixed costs are nothing beside that."""

SAFE_SHARE = 0.25
"""Nor are passes that take this share of the time that their rows may take."""

SLOW_PASSES = 2
"""So many passes of one size have to take so long, since other work on the machine makes one slow."""

LONG_ROWS = 10
"""After so many passes in turn with one row each that is larger than a pass should be, passes are as large as
such a row. Fewer may be the few long rows among short ones.
"""

Speeds = tuple[float, ...]
"""Tokens a second of passes, padding included."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Passes of `tokens` tokens, padding included, compared with passes of twice the size until one of
    them is `settled`. No pass of several rows has more than `most` tokens, which may be too much for the memory.

    The first pass says nothing: what is made once makes it slow.
    """

    tokens: int
    most: float = math.inf
    is_warm: bool = False
    settled: bool = False
    once: Speeds = ()
    twice: Speeds = ()
    slow_passes: int = 0
    long_rows: int = 0

    @classmethod
    def first(cls, batch_size: int, *, is_on_gpu: bool) -> "Budget":
        """The budget of an engine that has run nothing yet."""
        tokens = FIRST_TOKENS * batch_size
        return cls(tokens, math.inf if is_on_gpu else max(tokens, MOST_ON_CPU))

    @property
    def next(self) -> int:
        """Tokens that the next pass may have."""
        wanted = (
            self.tokens if self.settled or len(self.twice) >= len(self.once) else 2 * self.tokens
        )
        return int(min(wanted, self.most))

    def passed(self, rows: int, tokens: int, seconds: float, allowed: float) -> "Budget":
        """What follows from a pass: it had so many rows and tokens, and took so long of the seconds that its
        rows were allowed.
        """
        if not self.is_warm:
            return replace(self, is_warm=True)
        if seconds > allowed:
            return self.without_memory(tokens)
        if self.settled:
            return self
        is_slow = seconds > min(LONG_SECONDS, SAFE_SHARE * allowed)
        if rows == 1 and tokens > self.tokens:
            return self if is_slow else self._after_long_row(tokens)
        if tokens <= FULL * self.tokens:
            return self
        now = replace(self, long_rows=0, slow_passes=self.slow_passes + is_slow)
        return (
            self._settle(self.tokens)
            if now.slow_passes == SLOW_PASSES
            else now._compared(tokens, tokens / max(seconds, 1e-9))
        )

    def _after_long_row(self, tokens: int) -> "Budget":
        if self.long_rows + 1 < LONG_ROWS:
            return replace(self, long_rows=self.long_rows + 1)
        return self._anew(tokens)

    def _compared(self, tokens: int, speed: float) -> "Budget":
        is_twice = tokens > self.tokens
        if is_twice != (len(self.twice) < len(self.once)):
            return self
        if not is_twice:
            return replace(self, once=(*self.once, speed))
        now = replace(self, twice=(*self.twice, speed))
        if len(now.twice) < PAIRS:
            return now
        ratios = sorted(two / one for one, two in zip(now.once, now.twice, strict=True))
        return self._settle(self.tokens) if ratios[1] < GAIN else self._anew(2 * self.tokens)

    def without_memory(self, tokens: int) -> "Budget":
        """A pass of so many tokens had too little memory, or time: none is larger than half of it."""
        most = min(self.most, max(1, tokens // 2))
        return replace(self._settle(int(min(self.tokens, most))), most=most)

    def _anew(self, tokens: int) -> "Budget":
        return replace(self, tokens=tokens, once=(), twice=(), slow_passes=0, long_rows=0)

    def _settle(self, tokens: int) -> "Budget":
        return replace(self._anew(tokens), settled=True)
