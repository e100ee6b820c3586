"""Files about the end of a job that is open again: they go, and come back at its next end."""

from collections.abc import Sequence

from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.output_owner import OwnedDirectory


def withdraw(ledger: Ledger, job: Job, stale: Sequence[int] = ()) -> None:
    """Deletes the files about the end of a job that is open again, and of its generations `stale`.

    Files come after COMMIT. The lock keeps those of a job or a generation that is over again by now.
    """
    directory = OwnedDirectory.of_job(ledger, job)
    with ledger.transaction() as connection:
        jobs.lock(connection, job.id)
        now = jobs.get(connection, job.id)
        if now is not None and now.closed_at is None:
            uri = part_names.final(job.output_uri, part_names.MANIFEST)
            owned_files.delete_one(connection, directory, job, uri)
        for number in stale:
            found = generations.get(connection, job.id, number)
            if found is None or found.finished_at is None:
                uri = part_names.generation(job.output_uri, number)
                owned_files.delete_one(connection, directory, job, uri)
