"""What every section of a spec has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Every section refuses unknown keys and cannot be changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
