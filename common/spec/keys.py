"""Which key somebody meant who wrote one that a section does not have."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from nightshift.common.spec.job import JobSpec
from nightshift.common.text import did_you_mean

MOST_DEPTH = 6
"""Sections in one another."""


def hint(place: str) -> str:
    """For the dotted place of an unknown key: a key of its section that is written alike, or the sections that
    have the key; empty where nothing is like it.
    """
    above, _, key = place.rpartition(".")
    section = ".".join(step for step in above.split(".") if not step.isdigit())
    known = _known()
    own = known.get(section, frozenset())
    if key in own:  # of another kind of task or backend
        return f" for this kind of {section.rpartition('.')[2]}"
    elsewhere = sorted(f"{path}.{key}".lstrip(".") for path, keys in known.items() if key in keys)
    near = did_you_mean(key, sorted(own))
    if not near and len(elsewhere) == 1:
        return f" (did you mean {elsewhere[0]}?)"
    return near


@cache
def _known() -> dict[str, frozenset[str]]:
    """The keys of each section, by its dotted place; those of every kind of task and engine as one."""
    found: dict[str, set[str]] = {}
    for place, key in _keys(JobSpec, "", 0):
        found.setdefault(place, set()).add(key)
    return {place: frozenset(keys) for place, keys in found.items()}


def _keys(model: type[BaseModel], place: str, depth: int) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield place, key
        if depth < MOST_DEPTH:
            for each in _models(field.annotation):
                yield from _keys(each, f"{place}.{key}".lstrip("."), depth + 1)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that an annotation holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)
