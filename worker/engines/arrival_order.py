"""Rows in an engine that begins them in the order in which they came."""

from collections import deque
from dataclasses import dataclass, field

from nightshift.worker.engines.protocol import Work


@dataclass(slots=True, eq=False)
class Place:
    """A row in the line, by its batch and its row_index."""

    work: Work
    row_index: int
    begun: bool = False


@dataclass(slots=True, eq=False)
class Line:
    """Says which rows begin, for an engine that runs `running` rows at once, first come first
    served, and does not tell when a row leaves its queue. For one thread.

    The first `running` rows of the line count as begun, whether the engine has room for all of them
    or not.
    """

    running: int
    _begun: int = 0
    _behind: deque[Place] = field(default_factory=deque)

    def enter(self, work: Work, row_index: int) -> Place:
        """The engine has the row from now on, until the place is left."""
        self._behind.append(place := Place(work, row_index))
        self._begin()
        return place

    def leave(self, place: Place) -> None:
        """The engine has the row no more."""
        if place.begun:
            self._begun -= 1
            self._begin()
        else:
            self._behind.remove(place)

    def _begin(self) -> None:
        while self._behind and self._begun < self.running:
            place = self._behind.popleft()
            place.begun = True
            self._begun += 1
            place.work.begin(place.row_index)
