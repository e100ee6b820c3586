"""Fields of requests to `/api`: read from the query and the body, refused in one sentence."""

from collections.abc import Sequence
from typing import Any

from nightshift.common.spec import changes
from nightshift.producer.serve.calls import Call
from nightshift.producer.serve.errors import ApiError

CHANGEABLE = frozenset({*changes.CHANGEABLE, "finish_by"})
"""Fields of a job that a request may change."""


def one_of(call: Call, name: str, allowed: Sequence[str]) -> str | None:
    """A word of the query; ApiError 400 for another one."""
    given = call.query.get(name)
    if given is not None and given not in allowed:
        raise ApiError(400, f"{name} is not one of {', '.join(allowed)}", param=name)
    return given


def number(call: Call, name: str, digits: int = 9) -> int | None:
    """A whole number of the query, from 0 on, with at most `digits` digits; ApiError 400 for anything else."""
    given = call.query.get(name)
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > digits:
        raise ApiError(400, f"{name} is {given[:20]!r}, but must be a whole number", param=name)
    return int(given)


def as_written(name: str, value: Any) -> str:
    """A changed value as text, as for `nightshift set`. ApiError 400 unless the value is null, a number or a
    text.
    """
    if value is None:
        return changes.NONE
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ApiError(400, f"{name} must be null, a number or a text", param=name)
    return str(value)
