"""Whether the output of a job takes parts: proved before rows are computed for it, doubted after a
refusal.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.common import storage
from nightshift.common.errors import BadInput, OutputRefused, StorageUnavailable
from nightshift.common.formats import owner_marker, part_names
from nightshift.common.formats.owner_marker import Owner

WRITE_RETRY_SECONDS = 60.0
"""How long a part is tried again on a failing store before its batch is given back."""

MOST_REFUSALS = 3
"""Rounds in a row in which an output refuses files before its job is paused. A round is a part that
was tried for as long as the publisher tries, or a proof that fails so long after the one before. One
round may be an outage of a minute; each round of refused parts computes its rows anew.
"""


@dataclass(slots=True)
class Refusals:
    """How often an output has refused files since the last part that it took.

    Batches that were under way together are refused together: they count once. Times are in
    monotonic seconds.
    """

    rounds: int = 0
    at: float = float("-inf")
    unproved_at: float | None = None

    def part_refused(self, claimed_at: float, now: float) -> bool:
        """Counts the refused part of a batch that was claimed then; True when that was once too
        often.
        """
        return claimed_at >= self.at and self._count(now)

    def proof_failed(self, now: float) -> bool:
        """Counts a failed proof, WRITE_RETRY_SECONDS after the one before at the earliest; True when
        that was once too often. The first one counts nothing.
        """
        if self.unproved_at is None:
            self.unproved_at = now
        if now - self.unproved_at < WRITE_RETRY_SECONDS:
            return False
        self.unproved_at = now
        return self._count(now)

    def proved(self) -> None:
        """The output took the file of a proof. Refused parts still count: parts are larger."""
        self.unproved_at = None

    def _count(self, now: float) -> bool:
        self.rounds, self.at = self.rounds + 1, now
        return self.rounds >= MOST_REFUSALS


@dataclass(slots=True)
class Outputs:
    """The outputs of the jobs that a child works for, by the number of the job. For many threads at
    once. `clock` gives monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _proved: set[int] = field(default_factory=set)
    _refusals: dict[int, Refusals] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def prove(self, job_id: int, output_uri: str, owner: Owner) -> None:
        """Writes a file to the staging folder and removes it, unless the output has taken a file
        since it last refused a part. Raises StorageUnavailable where that fails or the directory
        belongs to somebody else by now, OutputRefused when the job should wait for a person, and
        BadInput for a link in place of the staging folder.
        """
        if job_id in self._proved:
            return
        try:
            _prove(job_id, output_uri, owner)
        except StorageUnavailable as error:
            with self._changing:
                waits = self._of(job_id).proof_failed(self.clock())
            if waits:
                raise _refused(job_id, "cannot be used", error) from error
            raise
        with self._changing:
            self._proved.add(job_id)
            self._of(job_id).proved()

    def took(self, job_id: int) -> None:
        """The output of the job took a part."""
        with self._changing:
            self._proved.add(job_id)
            self._refusals.pop(job_id, None)

    def refused(
        self, job_id: int, error: StorageUnavailable, claimed_at: float
    ) -> StorageUnavailable:
        """The output refused the part of a batch that was claimed then (monotonic seconds). Returns
        what the batch ends with: the error, or OutputRefused when the job should wait for a person.
        """
        with self._changing:
            self._proved.discard(job_id)
            waits = self._of(job_id).part_refused(claimed_at, self.clock())
        return _refused(job_id, "refuses parts again and again", error) if waits else error

    def _of(self, job_id: int) -> Refusals:
        return self._refusals.setdefault(job_id, Refusals())


def _prove(job_id: int, output_uri: str, owner: Owner) -> None:
    try:
        owner_marker.refuse_foreign(output_uri, owner, job_id)
    except BadInput as error:  # another machine may see another directory: no batch is charged
        raise StorageUnavailable(str(error)) from error
    uri = part_names.staged(output_uri, f".proof-{secrets.token_hex(6)}")
    storage.write_bytes(uri, b"may be written\n", replace=False)
    storage.delete_all([uri])


def _refused(job_id: int, why: str, error: Exception) -> OutputRefused:
    then = f"mend the output, then `nightshift resume {job_id}`"
    return OutputRefused(f"its output {why}: {error}; {then}")
