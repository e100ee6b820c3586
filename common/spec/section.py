"""What every section of a spec has in common."""

from pydantic import BaseModel, ConfigDict

STORED = {"stored": True}
"""Context of reading and writing a spec in the ledger. A stored spec obeyed the rules of its time;
later rules do not apply to it, so that its job can always be read."""


class Section(BaseModel):
    """A section refuses unknown keys and cannot be changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
