"""What every section of a spec has in common."""

from pydantic import BaseModel, ConfigDict

STORED = {"stored": True}
"""Context of reading and writing a spec in the ledger. What was stored was held against the rules of
its day, and those that came later must not keep its job from being read."""


class Section(BaseModel):
    """Every section refuses unknown keys and cannot be changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
