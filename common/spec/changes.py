"""Which fields of a job may change after its submit, and the spec that a change makes. Pure.

None of them changes which rows go in, what is asked and where answers go; the identity of the job
stays that of its submit.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from nightshift.common.errors import BadInput
from nightshift.common.spec.job import JobSpec
from nightshift.common.spec.parse import mistakes, unusual
from nightshift.common.spec.section import STORED

CHANGEABLE: Mapping[str, tuple[str, ...]] = {
    "priority": ("priority",),
    "pool": ("pool",),
    "weight": ("weight",),
    "max_parallel": ("limits", "max_parallel"),
    "budget": ("limits", "budget"),
    "revision": ("engine", "revision"),
}
"""The place in a spec of each field that may change."""

NONE = "none"
"""What a user writes to take a value away."""


def changed(
    stored: Mapping[str, Any], wanted: Mapping[str, str]
) -> tuple[JobSpec, dict[str, Any], dict[str, tuple[object, object]]]:
    """A stored spec with these fields changed: as a spec, as JSON for the ledger, and the old and the
    new value of each field that differs.

    `wanted` are values as a user writes them. Raises BadInput for values that a spec cannot have.
    """
    before = JobSpec.model_validate(stored, context=STORED)
    asked = _copy(stored)
    for field, value in wanted.items():
        if field == "revision" and not hasattr(before.engine, "revision"):
            raise BadInput(f"--revision is for models; the engine is {before.engine.backend}")
        _put(asked, CHANGEABLE[field], None if value == NONE else value)
    try:
        after = JobSpec.model_validate(asked, context=STORED)
    except ValidationError as error:
        raise BadInput(f"the job cannot be changed: {'; '.join(mistakes(error))}") from error
    written, now = _copy(stored), after.model_dump(mode="json", by_alias=True, context=STORED)
    changes = {}
    for field in wanted:
        place = CHANGEABLE[field]
        _put(written, place, _at(now, place))
        old, new = _value(before, place), _value(after, place)
        if old != new:
            changes[field] = (old, new)
    for strange in unusual(written):
        raise BadInput(f"the job cannot be changed: {strange}")
    return after, written, changes


def with_engine_args(
    stored: Mapping[str, Any], args: Mapping[str, Any]
) -> tuple[JobSpec, dict[str, Any]]:
    """A stored spec whose engine has these arguments: as a spec, and as JSON for the ledger."""
    written = _copy(stored)
    written["engine"]["args"] = dict(args)
    return JobSpec.model_validate(written, context=STORED), written


def _copy(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which values of sections can be put."""
    return {key: dict(each) if isinstance(each, dict) else each for key, each in stored.items()}


def _put(spec: dict[str, Any], place: tuple[str, ...], value: object) -> None:
    """Sets a value; a section without the key means its default."""
    *sections, key = place
    for name in sections:
        spec = spec.setdefault(name, {})
    if value is None:
        spec.pop(key, None)
    else:
        spec[key] = value


def _at(dumped: Mapping[str, Any], place: tuple[str, ...]) -> object:
    found: Any = dumped
    for name in place:
        found = found.get(name, {}) if name != place[-1] else found.get(name)
    return found


def _value(spec: JobSpec, place: tuple[str, ...]) -> object:
    found: Any = spec
    for name in place:
        found = getattr(found, name)
    return found
