"""Whether the output of a job takes parts: proved before rows are computed for it, doubted after a
refusal.
"""

import secrets
import threading
from dataclasses import dataclass, field

from nightshift.common import storage
from nightshift.common.formats import owner_marker, part_names
from nightshift.common.formats.owner_marker import Owner

MOST_REFUSALS = 3
"""Rounds in a row in which an output refuses parts, each tried for as long as the publisher tries,
before its job is paused. One round may be an outage of a minute; each round computes its rows anew.
"""


@dataclass(slots=True)
class Refusals:
    """How often an output has refused parts since the last that it took.

    Batches that were under way together are refused together: they count once.
    """

    rounds: int = 0
    at: float = float("-inf")

    def count(self, claimed_at: float, now: float) -> bool:
        """Counts the refused part of a batch that was claimed then (monotonic seconds); True when
        that was once too often.
        """
        if claimed_at < self.at:
            return False
        self.rounds, self.at = self.rounds + 1, now
        return self.rounds >= MOST_REFUSALS


@dataclass(slots=True)
class Outputs:
    """The outputs of the jobs that a child works for, by the number of the job. For many threads at
    once.
    """

    _proved: set[int] = field(default_factory=set)
    _refusals: dict[int, Refusals] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def prove(self, job_id: int, output_uri: str, owner: Owner) -> None:
        """Writes a file to the staging folder and removes it, unless the output has taken a file
        since it last refused a part. Raises StorageUnavailable, and BadInput where the directory
        belongs to somebody else by now.
        """
        if job_id in self._proved:
            return
        owner_marker.refuse_foreign(output_uri, owner, job_id)
        uri = part_names.staged(output_uri, f".proof-{secrets.token_hex(6)}")
        storage.write_bytes(uri, b"may be written\n", replace=False)
        storage.delete_all([uri])
        self._proved.add(job_id)

    def took(self, job_id: int) -> None:
        """The output of the job took a part."""
        with self._changing:
            self._proved.add(job_id)
            self._refusals.pop(job_id, None)

    def refused(self, job_id: int, claimed_at: float, now: float) -> bool:
        """The output refused the part of a batch that was claimed then (monotonic seconds). True
        when the job should wait for a person.
        """
        with self._changing:
            self._proved.discard(job_id)
            return self._refusals.setdefault(job_id, Refusals()).count(claimed_at, now)
