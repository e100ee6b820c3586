"""The sampling of one row, by the columns that hold it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from nightshift.common.spec import Sampling
from nightshift.common.validation import first_mistake

WHOLE = frozenset({"top_k", "max_tokens", "min_tokens", "seed"})
"""Fields that hold whole numbers."""


def own_sampling(columns: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, float | int]:
    """The values of a row by the field of `sampling`; a null takes none.

    ValueError for a value that is no number, or one that `sampling` could not have.
    """
    own: dict[str, float | int] = {}
    for name, column in columns.items():
        value = row[column]
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueError(f"the column {column!r} holds {value!r:.50}, which is no {name}")
        if name in WHOLE and value != value // 1:
            raise ValueError(f"the column {column!r} holds {value!r}, and {name} is a whole number")
        own[name] = int(value) if name in WHOLE else float(value)
    for name, value in own.items():
        _check(name, columns[name], value)
    return own


def _check(name: str, column: str, value: float) -> None:
    least = {"min_tokens": {"max_tokens": 1_000_000}}.get(name, {})
    try:
        Sampling.model_validate({name: value, **least})
    except ValidationError as error:
        _, why = first_mistake(error)
        raise ValueError(f"the column {column!r} holds {value!r} for {name}: {why}") from error
