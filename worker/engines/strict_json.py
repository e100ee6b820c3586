"""The JSON of answers, read strictly: text that two readers could read differently is an error."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nightshift.common.spec.json_schema import Scalar
from nightshift.common.text import HALF_CHARACTER, has_half_characters

INT64 = range(-(2**63), 2**63)


def loads(text: str) -> Any:
    """The value of a JSON text; ValueError with the reason for other text.

    Also refused are NaN and numbers beyond a double, a key that comes twice, lone surrogates, and
    nesting that is too deep for Python.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite
        )
        may_hold_halves = "\\u" in text or not text.isascii()
        if may_hold_halves and has_half_characters(json.dumps(value, ensure_ascii=False)):
            raise ValueError(f"it {HALF_CHARACTER}")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def typed(value: object, scalars: Mapping[str, Scalar]) -> dict[str, Any]:
    """The properties of an object in the types of their columns; missing ones are null.

    ValueError for an integer beyond 64 bits, a number beyond a double, and another type.
    """
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return {name: _scalar(name, value.get(name), kind) for name, kind in scalars.items()}


def _scalar(name: str, value: Any, kind: Scalar) -> Any:
    if value is None:
        return None
    match kind, value:
        case ("string", str()) | ("boolean", bool()):
            return value
        case "integer", int() | float() if not isinstance(value, bool) and value == value // 1:
            if int(value) in INT64:
                return int(value)
            raise ValueError(f"{name!r} is an integer of more than 64 bits")
        case "number", int() | float() if not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError as error:
                raise ValueError(f"{name!r} is a number beyond a double") from error
    raise ValueError(f"{name!r} is no {kind}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"it has the key {twice!r} twice")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has the number {text}, which is none or is too large")
    return value
