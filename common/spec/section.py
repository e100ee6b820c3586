"""What every section of a spec has in common."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

STORED = {"stored": True}
"""Context of reading and writing a spec in the ledger. A stored spec obeyed the rules of its time;
later rules do not apply to it, so that its job can always be read."""

Value = TypeVar("Value")

Absent = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]
"""A field that the ledger's JSON does not have where it is null: a job from before the field keeps its
identity."""


class Section(BaseModel):
    """A section refuses unknown keys and cannot be changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
