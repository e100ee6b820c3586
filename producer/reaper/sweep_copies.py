"""Copies of the input below an output directory go when nobody reads them any more.

Who removes copies: the finish of a job, here, under the lock of the job's appends; a submit over HTTP that was
refused, by `serve/submitting.py`, those that it made and no job has; `nightshift delete --output` with the
directory. Copies that were only begun go with other begun files (`output_directory.left_by_killed`).
"""

from functools import partial

from nightshift.common.formats import convert, input_copies
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import job_submit, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.reaper.output_directory import warn_left


def sweep_copies(ledger: Ledger, job: Job) -> None:
    """Removes copies of the input that the job does not read; a retry needs the others. An append
    that has made copies stores its files under the same lock.
    """
    with ledger.transaction() as connection:
        job_submit.lock(connection, job.identity)
        if jobs.get(connection, job.id) is None:
            return  # the directory may be that of another job by now
        files = jobs.files(connection, job.id)
        copies = (input_copies.copy_of(job.spec.input, job.output_uri, file) for file in files)
        needed = {*copies, *(file.arranged for file in files)}
        wanted = {uri for uri in needed if uri is not None}
        # Each time: a transaction that was ended, as that of a frozen reaper, has lost the lock.
        still = partial(job_submit.lock, connection, job.identity)
        refused = convert.sweep(job.output_uri, wanted, still)
    warn_left(job, refused)
