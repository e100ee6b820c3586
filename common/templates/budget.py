"""The budget of a row: units of what its templates make or read, and CPU time of the thread that renders them."""

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from decimal import Decimal
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

RENDER_UNITS = 50_000_000
"""Units that the templates of a row may use; a character, of at most four bytes, is one unit."""

ENTRY_UNITS = 5
"""Cost of an entry of a list, in addition to its value."""

STEP_UNITS = 10
"""Cost of a step of a loop or of a call, in addition to what it makes."""

REPR_CHARACTERS = 10
"""Most characters that one character of a text becomes if the text is in a list or a struct that is printed:
`\\U0010ffff`."""

NUMBER_BITS = 64
"""Longest whole number that a template may calculate: such numbers take no time."""

RENDER_SECONDS = 2.0
"""Longest CPU time of the templates of a row; CPU time, so that a frozen or busy machine fails no row. A usual
rendering takes less than a millisecond."""

UNITS_A_LOOK = 10_000
"""Units between two reads of the clock: usual renderings never read it."""

_FLAT = (str, bytes, bytearray, range)


class Budget:
    """What is left for the templates of one row. Every value is charged at most once before it is made, at all its
    depths; what goes beyond raises SecurityError.
    """

    __slots__ = ("_ends_at", "_look_below", "units")

    def __init__(self) -> None:
        self.units = RENDER_UNITS
        self._look_below = RENDER_UNITS - UNITS_A_LOOK
        self._ends_at: float | None = None

    def charge(self, units: int) -> None:
        """Take units, 0 or more."""
        self.units -= units
        if self.units < self._look_below:
            self._look()

    def _look(self) -> None:
        self._look_below = max(0, self.units - UNITS_A_LOOK)
        if self.units < 0:
            raise SecurityError(f"it makes more than {RENDER_UNITS:,} characters or steps")
        now = time.thread_time()
        if self._ends_at is None:
            self._ends_at = now + RENDER_SECONDS
        if now > self._ends_at:
            raise SecurityError(f"it takes longer than {RENDER_SECONDS:g} seconds")

    def weight(self, value: Any, a_character: int = 1) -> int:
        """Return the characters and entries of a value at all depths; slightly more than the budget at most.
        SecurityError for a method, which is not a value.
        """
        if isinstance(value, _FLAT):
            return len(value) * a_character
        total = 0
        waiting: list[Any] = [value]
        while waiting and total <= self.units:
            one = waiting.pop()
            total += ENTRY_UNITS
            if isinstance(one, _FLAT):
                total += len(one) * a_character
            elif isinstance(one, int):
                total += one.bit_length() // 3
            elif isinstance(one, Decimal):
                total += abs(one.adjusted())
            else:
                waiting.extend(_inside(one))
        return total

    def text(self, value: Any) -> str:
        """Return the text of a value, as Jinja makes it, after charging its longest length."""
        if isinstance(value, str):
            return value
        self.charge(self.weight(value, REPR_CHARACTERS))
        return str(value)

    def steps(self, values: Iterable[Any], units: int = STEP_UNITS) -> Iterator[Any]:
        """Yield the values of a loop; each step is charged."""
        for value in values:
            self.charge(units)
            yield value

    def made(self, value: Any, charged: int = 0) -> Any:
        """Return what a template made, after charging what its making was not charged."""
        if isinstance(value, str):
            self.charge(max(0, len(value) - charged))
            # Markup would escape whatever it is joined with.
            return str(value) if isinstance(value, Markup) else value
        if isinstance(value, int):
            if value.bit_length() > NUMBER_BITS:
                raise SecurityError(f"it makes a number of more than {NUMBER_BITS} bits")
            return value
        if isinstance(value, Iterator):
            return self.steps(value)
        self.charge(max(0, self.weight(value) - charged))
        return value


def _inside(value: Any) -> Iterable[Any]:
    """What a container holds; SecurityError for a method or a function."""
    match value:
        case list() | tuple() | set() | frozenset() | KeysView() | ValuesView() | ItemsView():
            return value
        case Mapping():
            return (*value.keys(), *value.values())
        case BuiltinMethodType():
            raise SecurityError(
                f"it uses the method {value.__name__!r} as a value (write column['{value.__name__}'] for a "
                "field of this name)"
            )
        case FunctionType() | MethodType():
            raise SecurityError(f"it uses the function {value.__name__!r} as a value: call it")
    return ()
