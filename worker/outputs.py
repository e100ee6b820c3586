"""Whether the output of a job takes parts: proved before rows are computed for it, doubted after a
refusal.
"""

import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.common import storage
from nightshift.common.errors import BadInput, OutputRefused, StorageUnavailable
from nightshift.common.formats import owner_marker, part_names
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.public_text import marked

MOST_REFUSALS = 3
"""Rounds in a row in which an output refuses parts, each tried for as long as the publisher tries,
before its job is paused. One round may be an outage of a minute; each round computes its rows anew.
"""

UNPROVED_SECONDS = 3600.0
"""How long an output takes no file at all before its job is paused. Nothing is computed meanwhile, and
a job goes on by itself after an outage that is shorter."""

PAUSE_SECONDS = 1200.0
"""Failed proofs further apart than this are not one outage: the job was paused, or others had it."""

PROVED_SECONDS = 60.0
"""An output is proved again after so long: its directory may have another owner since an `--adopt`."""


FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 60.0
"""A child claims nothing of a job for so long after a proof that failed, and twice as long after each
further one: each claim in vain is a row of `attempts`."""


@dataclass(slots=True)
class Refusals:
    """How often an output has refused files since the last part that it took.

    Batches that were under way together are refused together: they count once. Times are in
    monotonic seconds.
    """

    rounds: int = 0
    at: float = float("-inf")
    unproved_since: float = float("-inf")
    unproved_at: float = float("-inf")
    wait_seconds: float = 0.0
    why: str = ""

    def part_refused(self, claimed_at: float, now: float) -> bool:
        """Counts the refused part of a batch that was claimed then; True when that was once too
        often.
        """
        if claimed_at < self.at:
            return False
        self.rounds, self.at = self.rounds + 1, now
        return self.rounds >= MOST_REFUSALS

    def proof_failed(self, now: float, why: str) -> bool:
        """True when proofs have failed for too long. After a pause between two of them the
        count begins anew: no proof was tried meanwhile.
        """
        if now - self.unproved_at > PAUSE_SECONDS:
            self.unproved_since, self.wait_seconds = now, 0.0
        self.unproved_at, self.why = now, why
        self.wait_seconds = min(LONGEST_WAIT_SECONDS, 2 * self.wait_seconds or FIRST_WAIT_SECONDS)
        return now - self.unproved_since >= UNPROVED_SECONDS

    def proved(self) -> None:
        """The output took the file of a proof. Refused parts still count: parts are larger."""
        self.unproved_at, self.wait_seconds = float("-inf"), 0.0

    def waits(self, now: float) -> bool:
        """True for a while after a proof that failed."""
        return now - self.unproved_at < self.wait_seconds


@dataclass(slots=True)
class Outputs:
    """The outputs of the jobs that a child works for, by the number of the job. For many threads at
    once. `clock` gives monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _proved: dict[int, float] = field(default_factory=dict)
    _folders: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    _refusals: dict[int, Refusals] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def prove(self, job_id: int, output_uri: str, owner: Owner) -> bool:
        """Writes a file to the staging folder and removes it, unless the output was proved a moment
        ago and has refused no part since; True where that ended a row of failed proofs. Raises StorageUnavailable where that fails or the directory
        belongs to somebody else by now, OutputRefused when the job should wait for a person, and
        BadInput for a link in place of the staging folder.
        """
        now = self.clock()
        folder = storage.folder_identity(output_uri)
        is_fresh = now - self._proved.get(job_id, -math.inf) < PROVED_SECONDS
        if is_fresh and folder == self._folders.get(job_id, folder):
            return False
        with self._changing:
            known = self._refusals.get(job_id)
            if known is not None and known.waits(now):
                raise StorageUnavailable(known.why)
        try:
            _prove(job_id, output_uri, owner)
            folder = storage.folder_identity(output_uri)
        except StorageUnavailable as error:
            with self._changing:
                self._proved.pop(job_id, None)
                waits = self._of(job_id).proof_failed(now, marked(error))
            if waits:
                raise _refused("cannot be used", error) from error
            raise
        with self._changing:
            self._proved[job_id] = now
            self._folders[job_id] = folder
            known = self._of(job_id)
            had_failed = known.wait_seconds > 0
            known.proved()
            return had_failed

    def refuse_replaced(self, job_id: int, output_uri: str, owner: Owner) -> None:
        """StorageUnavailable where another directory has taken the place of the one that was proved, and
        belongs to somebody else; BadInput where it lies outside the roots of the job.
        """
        folder = storage.folder_identity(output_uri)
        if folder is None or folder == self._folders.get(job_id, folder):
            return
        _refuse_foreign(job_id, output_uri, owner)

    def avoided(self) -> list[int]:
        """The jobs of which nothing is to be claimed now: a proof of their output has just failed."""
        with self._changing:
            now = self.clock()
            return [job_id for job_id, known in self._refusals.items() if known.waits(now)]

    def took(self, job_id: int) -> None:
        """The output of the job took a part."""
        with self._changing:
            self._proved.setdefault(job_id, self.clock())
            self._refusals.pop(job_id, None)

    def refused(
        self, job_id: int, error: StorageUnavailable, claimed_at: float
    ) -> StorageUnavailable:
        """The output refused the part of a batch that was claimed then (monotonic seconds). Returns
        what the batch ends with: the error, or OutputRefused when the job should wait for a person.
        """
        with self._changing:
            self._proved.pop(job_id, None)
            waits = self._of(job_id).part_refused(claimed_at, self.clock())
        return _refused("refuses parts again and again", error) if waits else error

    def _of(self, job_id: int) -> Refusals:
        return self._refusals.setdefault(job_id, Refusals())


def _prove(job_id: int, output_uri: str, owner: Owner) -> None:
    _refuse_foreign(job_id, output_uri, owner)
    uri = part_names.staged(output_uri, f"{part_names.PROOF}{secrets.token_hex(6)}")
    storage.write_bytes(uri, b"may be written\n", replace=False)
    storage.delete_all([uri])


def _refuse_foreign(job_id: int, output_uri: str, owner: Owner) -> None:
    try:
        owner_marker.refuse_foreign(output_uri, owner, job_id)
    except BadInput as error:  # another machine may see another directory: no batch is charged
        raise StorageUnavailable(marked(error)) from error


def _refused(why: str, error: Exception) -> OutputRefused:
    return OutputRefused(
        f"its output {why}: {marked(error)}; repair the output directory, then resume the job"
    )
