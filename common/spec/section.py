"""What every section of a spec has in common."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

STORED = {"stored": True}
"""Context of reading and writing a spec in the ledger. A stored spec was checked at its submit; what takes long
to check, or what a later release may check in another way, is not checked again."""

Value = TypeVar("Value")

Absent = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]
"""A field that the ledger's JSON does not have if it is null, so that a field that a later release adds changes no
identity."""


class Section(BaseModel):
    """A section refuses unknown keys and cannot be changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def put(sections: dict[str, Any], place: str, value: Any) -> None:
    """Set the value at a dotted path of a spec, creating the sections that the path names."""
    *path, key = place.split(".")
    for name in path:
        sections = sections.setdefault(name, {})
    sections[key] = value
