"""The budget of a row, over all templates of its job: units of what they make or scan, and CPU time.

Operators, calls, filters and steps of loops are charged before they run
(`common/templates/limits.py`). A clock ends all other long renderings. The clock is read at charges,
so no single call is interrupted.
"""

import math
import threading
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from decimal import Decimal
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Cycler, Joiner

RENDER_UNITS = 50_000_000
"""Units that the templates of a row may make; a character, of at most four bytes, is one unit."""

ENTRY_UNITS = 5
"""Cost of an entry of a list, beside the cost of its value."""

STEP_UNITS = 10
"""Cost of a step of a loop or of a call, beside the cost of what it makes."""

REPR_CHARACTERS = 10
"""Most characters that one character of a text becomes where the text stands in a list or a struct that is printed:
`\\U0010ffff`."""

RENDER_SECONDS = 2.0
"""Longest CPU time of the templates of a row; CPU time, so that a frozen or busy machine fails no row. A usual
rendering takes less than a millisecond."""

UNITS_A_LOOK = 1000
"""Units between two reads of the clock, since a read costs more than most charges."""


class _Budget(threading.local):
    """The rest of the budget of the row that is rendered on this thread."""

    units = RENDER_UNITS
    looks_below = RENDER_UNITS
    ends_at = math.inf

    def begin(self) -> None:
        self.units = RENDER_UNITS
        self.looks_below = RENDER_UNITS - UNITS_A_LOOK
        self.ends_at = time.thread_time() + RENDER_SECONDS

    def charge(self, units: int) -> None:
        # Every charge is at least 1: a negative size or "nan" must not add to the budget.
        self.units -= units if units >= 1 else 1
        if self.units >= self.looks_below:
            return
        self.looks_below = max(0, self.units - UNITS_A_LOOK)
        if self.units < 0:
            raise SecurityError(f"it makes more than {RENDER_UNITS:,} characters or steps")
        if time.thread_time() > self.ends_at:
            raise SecurityError(f"it takes longer than {RENDER_SECONDS:g} seconds")


_budget = _Budget()
_FLAT = (str, bytes, bytearray, range)


def weight(value: object, a_character: int = 1) -> int:
    """Characters and entries of a value at all depths, so many units a character; counted a little beyond the
    budget at most. SecurityError for a method, which nobody wants as a value.
    """
    if isinstance(value, _FLAT):
        return len(value) * a_character
    total = 0
    waiting: list[Any] = [value]
    while waiting and total <= _budget.units:
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


def _inside(value: Any) -> Iterable[Any]:
    """What a container holds; SecurityError for a method or a function."""
    match value:
        case list() | tuple() | set() | frozenset() | KeysView() | ValuesView() | ItemsView():
            return value
        case Mapping():
            return (*value.keys(), *value.values())
        case Cycler():
            return value.items
        case Joiner():
            return (value.sep,)
        case BuiltinMethodType():
            raise SecurityError(
                f"it uses the method {value.__name__!r} as a value (write column['{value.__name__}'] for a "
                "field of this name)"
            )
        case FunctionType() | MethodType():
            raise SecurityError(f"it uses the function {value.__name__!r} as a value: call it")
    return ()


def begin() -> None:
    """Starts the budget of another row on this thread."""
    _budget.begin()


def charge(units: int) -> None:
    """Takes units from the budget; SecurityError when the units or the time are over."""
    _budget.charge(units)


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """The values of a loop; each step is charged."""
    for value in values:
        _budget.charge(STEP_UNITS)
        yield value


def paid(value: Any) -> Any:
    """A value that a template made or prints, after charging its size."""
    _budget.charge(weight(value))
    return value
