"""How many rows one call of a function may have: what was found to fit, and what is tried again."""

import math
from dataclasses import dataclass

GROW_CALLS = 128
"""After so many calls of about the largest size, calls of twice the size are tried: a wrong try costs
one process."""


@dataclass(slots=True)
class CallSize:
    """The largest number of rows that a call may have; no limit before one was found."""

    most_rows: float = math.inf
    _fitting: int = 0

    def too_large(self, rows: int) -> None:
        """A call with `rows` rows ended its process, and none of the rows did so by itself."""
        self.most_rows = min(self.most_rows, rows - 1)
        self._fitting = 0

    def fitted(self, rows: int) -> None:
        """A call with `rows` rows came back."""
        self._fitting += 2 * rows > self.most_rows
        if self._fitting >= GROW_CALLS:
            self.most_rows *= 2
            self._fitting = 0
