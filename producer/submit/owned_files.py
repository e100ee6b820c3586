"""Files about a job in its output directory, written and deleted only while the directory is the job's.

A process may be suspended at any moment, and another job may have the directory when it continues: one of
another ledger, or, once the job was deleted, the next job of the same spec. So right before a file gets its
name, or is deleted, the row of the job is locked and the marker is read again. Until then the file has a name
of its own with the number of the job, and who stores the next job removes such files.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from nightshift.common import storage
from nightshift.common.errors import BadInput, LeaseLost
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked
from nightshift.common.storage.streams import Content
from nightshift.producer.submit.output_owner import OwnedDirectory

FILES_A_PIECE = 50
"""Files that one transaction deletes, which holds the row of the job: a second with a store that takes
20 ms for each."""

MARKER_SECONDS = 1.0
"""How long many deletions rely on one look at the marker, which is two requests to a store."""


def write(ledger: Ledger, job: Job, uri: str, content: Content) -> storage.Written:
    """Write a file whole, in place of an earlier one. Raise LeaseLost if the job was deleted meanwhile,
    BadInput if its directory has another owner by now.
    """
    directory = OwnedDirectory.of_job(ledger, job)

    @contextmanager
    def naming() -> Iterator[None]:
        reached(Moment.NAMING)
        with ledger.transaction() as connection:
            _hold(connection, directory, job)
            yield

    return storage.write_owned(uri, content, job.id, naming)


def delete(ledger: Ledger, job: Job, uris: Iterable[str]) -> list[str]:
    """Delete files; return an error for each one that the store refuses to delete. Raise what `write` raises."""
    return storage.delete_all(held(ledger, job, list(uris)))


def delete_one(connection: Connection, directory: OwnedDirectory, job: Job, uri: str) -> None:
    """Delete a file in a transaction of the caller, who decides under the lock of the job that it goes."""
    reached(Moment.DELETING)
    _hold(connection, directory, job)
    storage.delete(uri)


def held(ledger: Ledger, job: Job, uris: Sequence[str]) -> Iterator[str]:
    """Yield the same files, each while the directory is the job's, for a caller that deletes them."""
    directory, read_at = OwnedDirectory.of_job(ledger, job), float("-inf")
    for first in range(0, len(uris), FILES_A_PIECE):
        with ledger.transaction() as connection:
            for uri in uris[first : first + FILES_A_PIECE]:
                reached(Moment.DELETING)
                # Each time: a transaction that was ended has lost the lock.
                lock(connection, job)
                if time.monotonic() - read_at > MARKER_SECONDS:
                    directory.refuse_foreign(job.id)
                    read_at = time.monotonic()
                yield uri


def remove_unnamed(output_uri: str) -> None:
    """Remove the files of earlier jobs that have not got their name, for a job that is stored now. A
    suspended process that was about to name one fails.
    """
    for folder in ("", part_names.GENERATIONS, part_names.ARCHIVE):
        storage.delete_all(storage.owned_unfinished(part_names.final(output_uri, folder)))


def lock(connection: Connection, job: Job) -> None:
    """Lock the row of the job to the end of the transaction. Raise LeaseLost if the job was deleted."""
    try:
        jobs.lock(connection, job.id)
    except BadInput as error:
        raise LeaseLost(marked(error)) from error


def _hold(connection: Connection, directory: OwnedDirectory, job: Job) -> None:
    lock(connection, job)
    directory.refuse_foreign(job.id)
