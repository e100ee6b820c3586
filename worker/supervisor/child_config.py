"""What a supervisor tells a child on its command line."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """What the supervisor tells a child: who it is, a job whose engine it loads, the file
    that its profile goes to, and the folder in which it counts for metrics.
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
