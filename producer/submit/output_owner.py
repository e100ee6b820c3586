"""The owner of an output directory: a marker in it says which ledger and which job it belongs to.

The first submit makes the marker, if there is none. The same submit finds it again, also after a
crash; every other one is refused. A marker of this ledger whose job was never stored, because its
submit was killed, goes to the next job. The lock of a submit (`job_submit.lock`) tells such a marker
from one whose job is stored at this moment.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from nightshift.common import storage
from nightshift.common.errors import BadInput, LedgerUnavailable, StorageUnavailable
from nightshift.common.formats import owner_marker, part_names
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import job_submit, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private

MOST_FOLDERS = 1000
"""Folders in an output directory that are looked into for the marker of another job."""


class Claim(Enum):
    """What a marker says to the job that wants the directory."""

    FREE = auto()
    OWN = auto()
    SAME_JOB_ELSEWHERE = auto()
    OTHER_JOB = auto()
    OTHER_LEDGER = auto()


def claim_of(found: Owner | None, wanted: Owner) -> Claim:
    """Whose a directory with the marker `found` is, seen by the owner that it should get."""
    if found is None:
        return Claim.FREE
    if found == wanted:
        return Claim.OWN
    if found.identity == wanted.identity:
        return Claim.SAME_JOB_ELSEWHERE
    return Claim.OTHER_JOB if found.ledger == wanted.ledger else Claim.OTHER_LEDGER


def refuse_owned(output_uri: str) -> None:
    """BadInput for a directory with an owner, where there is no ledger that the owner may be of."""
    if owner_marker.read(output_uri) is not None:
        raise BadInput(
            f"{private(output_uri)} belongs to a job in another ledger, and this folder has none: run the "
            "command where that job ran, name another output directory or, if that ledger is "
            "lost, take the directory over with --adopt (adopt=True in Python)"
        )


@dataclass(frozen=True, slots=True)
class OwnedDirectory:
    """An output directory, and the job of a ledger that wants it or has it."""

    uri: str
    owner: Owner
    ledger: Ledger = field(repr=False)

    @classmethod
    def of(cls, ledger: Ledger, uri: str, identity: str) -> "OwnedDirectory":
        """The directory for the job with this identity, which `ledger` has or will have."""
        with ledger.transaction() as connection:
            return cls(uri, Owner(schema.ledger_id(connection), identity), ledger)

    @classmethod
    def of_job(cls, ledger: Ledger, job: Job) -> "OwnedDirectory":
        """The directory of a known job."""
        return cls.of(ledger, job.output_uri, job.identity)

    def marker(self) -> Owner | None:
        """Whom the directory belongs to; None where no marker says so."""
        return owner_marker.read(self.uri)

    def is_owned(self) -> bool:
        """Whether the marker names this job."""
        return self.marker() == self.owner

    def check_free(self, *, adopt: bool) -> bool:
        """Raise BadInput if a new job cannot use the directory; change nothing.

        With `adopt`, a marker of the same job in another ledger is accepted. Return True if the directory has such a
        marker to adopt.
        """
        found = self.marker()
        claim = claim_of(found, self.owner)
        if not (adopt and claim is Claim.SAME_JOB_ELSEWHERE):
            with self.ledger.transaction() as connection:
                self._refuse(connection, found)
        _refuse_neighbours(self.ledger, self.uri)
        return adopt and claim in (Claim.OWN, Claim.SAME_JOB_ELSEWHERE)

    def take(self, *, adopting: bool = False) -> bool:
        """Makes the marker where there is none; True if this call made it. `hold` refuses later what
        another owner has. Raises BadInput for a directory inside or around another job's. `adopting` is
        what `check_free` returned.
        """
        if adopting:
            self._adopt()
        # Looked for first: a store may ignore that a marker is made only where there is none.
        made = self.marker() is None and self._make()
        # A submit that was killed on its way to the marker left one behind.
        storage.delete_all(storage.left_unfinished(self.uri, lambda name: name == part_names.OWNER))
        try:
            # Again: of two submits at once both may have looked before the other made its marker.
            _refuse_neighbours(self.ledger, self.uri)
        except BaseException:
            if made:
                self.release()
            raise
        return made

    def hold(self, connection: Connection) -> None:
        """Lets the marker name this job until the end of the transaction, which stores the job. Raises
        BadInput where the directory has another owner.

        A marker of this ledger whose job is neither stored nor being stored is replaced. The file is
        written inside the transaction, since the locks of both jobs must be held meanwhile.
        """
        job_submit.lock(connection, self.owner.identity)
        found = self.marker()
        # An equal submit that came to nothing may have removed the marker.
        if found is None and self._make():
            return
        found = found or self.marker()
        if found is None:
            uri = owner_marker.place(self.uri)
            raise BadInput(
                f"{private(uri)} cannot be read: remove it if no job writes to its directory"
            )
        self._take_over(connection, found)

    def release(self) -> None:
        """Removes the marker of a submit that came to nothing, and the directory if that was all; not
        where an equal submit stored the job. Without an answer of Postgres the marker stays.
        """
        with suppress(LedgerUnavailable), self.ledger.transaction() as connection:
            job_submit.lock(connection, self.owner.identity)
            known = jobs.by_identity(connection, self.owner.identity)
            if known is None and self.is_owned():
                storage.delete(owner_marker.place(self.uri))
                storage.remove_directory(self.uri)

    def keep(self, job_id: int) -> None:
        """Makes the marker of a known job where there is none, if that is possible, and where
        a submit that was frozen in `hold` replaced it late; raises what `refuse_foreign` raises.
        """
        if claim_of(self.marker(), self.owner) is Claim.OTHER_JOB:
            with self.ledger.transaction() as connection:
                self.hold(connection)
        elif not owner_marker.refuse_foreign(self.uri, self.owner, job_id):
            with suppress(StorageUnavailable):
                self._make()

    def refuse_foreign(self, job_id: int) -> None:
        """BadInput where the directory of a known job belongs to another job by now. A missing marker is not
        refused.
        """
        owner_marker.refuse_foreign(self.uri, self.owner, job_id)

    def _make(self) -> bool:
        """Makes the marker; False where there is one."""
        return storage.create(owner_marker.place(self.uri), self.owner.encoded())

    def _take_over(self, connection: Connection, found: Owner) -> None:
        """Replaces the marker of a job of this ledger that was never stored; BadInput for other owners."""
        is_other = claim_of(found, self.owner) is Claim.OTHER_JOB
        # Take the lock before reading the ledger: the process that had the lock may have stored the job.
        is_left = is_other and job_submit.try_lock(connection, found.identity)
        # Read the marker again, under the lock: another submit may have taken it over meanwhile.
        now = self.marker() if is_left else None
        if now not in (None, found):
            found, is_left = now, False
        self._refuse(connection, found)
        if is_left:
            storage.write_bytes(owner_marker.place(self.uri), self.owner.encoded())
        elif is_other:
            raise BadInput(
                f"{private(self.uri)} is the output of a job that is submitted at this moment: name another "
                "output directory, or submit again when that job was refused"
            )

    def _adopt(self) -> None:
        """Removes what the same job of another ledger wrote, and writes the marker anew. The marker
        comes last: after a crash the same call goes on.
        """
        with self.ledger.transaction() as connection:
            job_submit.lock(connection, self.owner.identity)
            if jobs.by_identity(connection, self.owner.identity) is not None:
                # An equal submit adopted the directory: what is in it now is the job's own.
                return
            for uri in _results(self.uri):
                # A transaction that was ended has lost the lock, and must delete nothing more.
                job_submit.lock(connection, self.owner.identity)
                storage.delete(uri)
            storage.write_bytes(owner_marker.place(self.uri), self.owner.encoded())

    def _refuse(self, connection: Connection, found: Owner | None) -> None:
        """BadInput for a directory of another job or ledger; not for one of a job of this ledger that was
        never stored.
        """
        claim = claim_of(found, self.owner)
        if found is None or claim is Claim.OWN:
            return
        if claim is Claim.SAME_JOB_ELSEWHERE:
            raise BadInput(
                f"{private(self.uri)} belongs to this job in another ledger: let the job continue there or, if "
                "that ledger is lost, take the directory over with --adopt (adopt=True in Python)"
            )
        if claim is Claim.OTHER_LEDGER:
            raise BadInput(
                f"{private(self.uri)} belongs to another job in another ledger: name another output directory"
            )
        job = jobs.by_identity(connection, found.identity)
        if job is not None:
            raise BadInput(
                f"{private(self.uri)} and {private(job.output_uri)} are the same directory, the output of job {job.id} "
                f"({job.spec.name}): choose another output directory"
            )


def _results(output_uri: str) -> list[str]:
    """What a job wrote to a directory: staged parts, the archive, the files about generations, and the
    parts in their place.
    """
    found = [
        place(output_uri, name)
        for place in (part_names.staged, part_names.archived)
        for name in storage.list_names(place(output_uri, ""))
    ]
    folder = part_names.final(output_uri, part_names.GENERATIONS)
    found += [f"{folder}/{name}" for name in storage.list_names(folder)]
    names = filter(part_names.is_result, storage.list_names(output_uri))
    return found + [part_names.final(output_uri, name) for name in names]


def _refuse_neighbours(ledger: Ledger, output_uri: str) -> None:
    """BadInput for a directory inside the output of another job, or around one."""
    for folder in storage.enclosing(output_uri):
        if _has_marker(folder):
            raise BadInput(
                f"{private(output_uri)} lies inside {private(folder)}, the output directory of another job: name a "
                "directory outside it"
            )
    for folder in _owned_below(output_uri):
        raise BadInput(
            f"{private(output_uri)} contains {private(folder)}, the output directory of another job: name a "
            "directory beside it"
        )
    # The ledger is asked, too: the marker may have been removed.
    with ledger.transaction() as connection:
        known = jobs.overlapping_output(connection, output_uri)
    if known is not None:
        job_id, uri = known
        raise BadInput(
            f"{private(output_uri)} {'lies inside' if output_uri.startswith(uri) else 'contains'} {private(uri)}, the output "
            f"of job {job_id}: name a directory beside it"
        )


def _has_marker(folder: str) -> bool:
    # Who may write an output need not be allowed to read the folders around it.
    with suppress(StorageUnavailable), storage.unheld():
        return storage.exists(owner_marker.place(folder))
    return False


def _owned_below(output_uri: str) -> Iterator[str]:
    for count, (folder, names) in enumerate(storage.folders(output_uri)):
        if count > MOST_FOLDERS:
            raise BadInput(
                f"{private(output_uri)} has more than {MOST_FOLDERS:,} folders in it: name a directory for "
                "this output alone"
            )
        if count and part_names.OWNER in names:
            yield folder
