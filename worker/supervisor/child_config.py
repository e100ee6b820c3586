"""What a supervisor tells a child on its command line."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """What a child is told: its id, its place, a job whose engine it loads, the file for its
    `profile`, and the folder for its `metrics`.
    """

    id: str
    supervisor: str
    pool: str
    slot: int
    host: str
    engine_key: str
    job_id: int
    profile: str | None = None
    metrics: str | None = None

    def argument(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        """From the command line."""
        return cls(**json.loads(argument))
