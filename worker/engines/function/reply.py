"""What a function answered, as Arrow: each value leaves the process as it is, or its row is refused.

Loaded by its path in the function's process, so nothing of ours is imported here.
"""

import datetime
import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

HALF = re.compile("[\ud800-\udfff]")
"""Half of a character, which UTF-8 cannot hold."""

Columns = dict[str, list[Any]]

PLAIN = frozenset({bool, int, float, str, bytes, datetime.date, datetime.timedelta})
"""Types whose values share an Arrow array with each other and with nulls, and come back unchanged."""

MISSING = object()
"""Stands for the value of a column that an answer does not have."""


DEEPEST = 200
"""Lists and objects within one another that a value may have: Python's own bound would be met with little of
the stack left for anything else."""


class Reply:
    """The answers of some calls. Rows whose values have the same kinds share a stream of Arrow, so each
    value comes back as it is, whatever the others of its column are.
    """

    def __init__(self, given: pa.Table) -> None:
        self._given = given
        self._groups: list[dict[str, Any]] = []
        self._refused: list[tuple[int, str, str]] = []
        self._sink = pa.BufferOutputStream()

    def message(
        self, problems: Mapping[int, str], seconds: float
    ) -> tuple[dict[str, Any], pa.Buffer]:
        """All of it, for the channel."""
        head = {"problems": problems, "seconds": seconds}
        return {**head, "groups": self._groups, "refused": self._refused}, self._sink.getvalue()

    def take(self, results: Mapping[int, object], where: str) -> None:
        """Packs what a function returned by row; what is no answer is refused by itself."""
        answers: dict[int, Mapping[str, Any]] = {}
        for at, result in results.items():
            if isinstance(result, Mapping) and all(isinstance(key, str) for key in result):
                answers[at] = result
            else:
                what = f"{type(result).__name__} for this row, not a dict of columns"
                self._refused.append((at, "function_error", f"{where} returned {what}"))
        rows = list(answers)
        columns = {
            name: [answer.get(name, MISSING) for answer in answers.values()]
            for name in dict.fromkeys(itertools.chain.from_iterable(answers.values()))
        }
        arrays = {name: _plain_array(values) for name, values in columns.items()}
        mixed = [values for name, values in columns.items() if arrays[name] is None]
        if not mixed:
            self._add(rows, columns, arrays)
            return
        groups: dict[object, list[int]] = {}
        for place in range(len(rows)):
            try:
                kinds = tuple(_kind(values[place]) for values in mixed)
                groups.setdefault(kinds, []).append(place)
            except Exception:  # as of a list that holds itself, for which Arrow would crash
                self._take_alone(rows[place], _part(columns, [place]))
        for places in groups.values():
            self._take_group([rows[place] for place in places], _part(columns, places))

    def _take_group(self, rows: list[int], columns: Columns) -> None:
        """Packs rows of the same kinds; one by one when Arrow refuses a value of them."""
        try:
            arrays = {name: _array(values) for name, values in columns.items()}
        except Exception:
            for place, row in enumerate(rows):
                self._take_alone(row, _part(columns, [place]))
        else:
            self._add(rows, columns, arrays)

    def _take_alone(self, row: int, columns: Columns) -> None:
        """Packs one row; the row is refused for a value that no array holds."""
        arrays: dict[str, pa.Array] = {}
        for name, (value,) in columns.items():
            try:
                arrays[name] = self._array_alone(row, name, value)
            except Exception:
                is_short = isinstance(value, str | int | float)
                what = repr(value)[:100] if is_short else f"a {type(value).__name__}"
                why = "which Arrow cannot hold"
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    why = "a whole number beyond 64 bits: return it as a text or a float"
                message = f"the column {name!r} holds {what}, {why}"
                self._refused.append((row, "bad_type", message))
                return
        self._add([row], columns, arrays)

    def _array_alone(self, row: int, name: str, value: Any) -> pa.Array:
        """An array of one value. What the row itself holds, such as a map, goes back in its own type."""
        try:
            return _array([_clean(value)])
        except Exception:
            own = self._given.column(name).slice(row, 1).combine_chunks()
            if own[0].as_py() != value:
                raise
            return own

    def _add(self, rows: list[int], columns: Columns, arrays: Mapping[str, pa.Array]) -> None:
        if arrays:
            # Names go in the head: Arrow's must be UTF-8.
            places = [str(place) for place in range(len(arrays))]
            batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=places)
            with pa.ipc.new_stream(self._sink, batch.schema) as writer:
                writer.write_batch(batch)
        numpy = [at for at, values in enumerate(columns.values()) if _is_numpy(values[0])]
        self._groups.append({"rows": rows, "names": list(arrays), "numpy": numpy})


def _part(columns: Columns, places: Sequence[int]) -> Columns:
    """The values of some rows of the same kinds, without the columns that these rows do not have."""
    return {
        name: [values[place] for place in places]
        for name, values in columns.items()
        if values[places[0]] is not MISSING
    }


def _plain_array(values: Sequence[Any]) -> pa.Array | None:
    """The values as an array, where all values except nulls are of one plain type; else None."""
    types = set(map(type, values)) - {NoneType}
    with suppress(Exception):  # half of a character, or a number that is too large
        if len(types) <= 1 and types <= PLAIN:
            return pa.array(values)
    return None


def _kind(value: Any, depth: int = 0) -> object:
    """Values of one kind make one Arrow type, and come back from its array as they were; ValueError for one that
    is nested too deeply, as a list that holds itself.
    """
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    known = type(value)
    if known in PLAIN or value is None or value is MISSING:
        return known
    if isinstance(value, dict):
        return (dict, *((key, _kind(each, depth + 1)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        kinds: set[object] = set(map(type, value))
        if not kinds <= PLAIN | {NoneType}:
            kinds = {_kind(each, depth + 1) for each in value}
        return (list, frozenset(kinds - {NoneType}))
    if isinstance(value, np.ndarray):
        return (known, value.dtype.char, value.ndim)
    if known is datetime.datetime:
        return (known, str(value.tzinfo))
    if known is Decimal:
        return (known, value.as_tuple().exponent)
    return (known, str(pa.scalar(value).type))


def _array(values: Sequence[Any]) -> pa.Array:
    """The values as an array; ValueError where one would come back as another one: beside bytes Arrow
    makes bytes of texts, beside dates dates of times, and it drops nanoseconds and zones of times.
    """
    array = pa.array(values)
    types = set(map(type, values)) - {NoneType}
    # Arrow refuses NumPy's numbers and moments of different types, and keeps those of one.
    is_safe = types <= PLAIN or (len(types) == 1 and issubclass(next(iter(types)), np.generic))
    if not is_safe and not all(map(_is_kept, values, array.to_pylist())):
        raise ValueError("the value would come back as another one")
    return array


def _is_kept(value: Any, got: Any) -> bool:
    """Whether `got` came back as the value; a key that is absent is as good as one that is null."""
    if isinstance(value, dict):
        return all(_is_kept(value.get(key), got[key]) for key in got)
    if isinstance(got, list):
        types = set(map(type, value))
        # Lists of plain values are compared at once: a vector has many numbers, and a call for each is slow.
        if len(types) == 1 and types <= PLAIN and list(value) == got:
            return True
        return all(map(_is_kept, value, got))
    is_equal = bool(value == got or value != value)
    return is_equal and isinstance(value, bool | np.bool_) == isinstance(got, bool)


def _is_numpy(value: Any) -> bool:
    """Whether the value must come back as NumPy's: its width is the type of its column."""
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _clean(value: Any, depth: int = 0) -> Any:
    """The same value as Arrow takes it: U+FFFD for half of a character, lists for arrays of several
    dimensions. ValueError for a value that contains itself, for which Arrow would crash, and where two
    keys become one.
    """
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        cleaned = {_clean(key): _clean(each, depth + 1) for key, each in value.items()}
        if len(cleaned) < len(value):
            raise ValueError("two keys become one")
        return cleaned
    if isinstance(value, list | tuple):
        return [_clean(each, depth + 1) for each in value]
    if isinstance(value, str):
        return HALF.sub("\N{REPLACEMENT CHARACTER}", value)
    is_deep = isinstance(value, np.ndarray) and value.ndim != 1
    return value.tolist() if is_deep else value
