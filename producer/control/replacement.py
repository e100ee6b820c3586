"""`run --replace` and `submit --replace`: delete the failed or cancelled job that has the output directory of a spec, if
it has no committed part.
"""

from functools import partial

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import jobs, replacements
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.jobs.replacements import Refusal
from nightshift.common.public_text import private
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.control import deletion
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.submit import spec_and_identity


def replace(ledger: Ledger, spec: JobSpec, settings: Settings) -> Job | None:
    """Delete the job that has the output directory of a spec, with its files, and return it. Return None if there is no
    such job, and for a job of the same spec that cannot be replaced, which a submit continues.

    The deletion is recorded under the job's row lock; then the files are deleted, the owner marker last. An interrupted
    command can be repeated. Raises BadInput for another job that cannot be replaced, and for an invalid spec.
    """
    wanted, _ = spec_and_identity(spec, settings, ledger)
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, wanted.output.uri)
        if job is None:
            return None
        found = _refusal(connection, job)
    if found is not None and not found.is_temporary:
        if job.spec_identity == wanted.identity:
            return None
        raise _error(job, found)
    # Without its marker the directory is not the job's any more, and only its rows in the ledger are deleted.
    output = OwnedDirectory.of_job(ledger, job).marker() is not None
    try:
        deletion.delete(ledger, job, settings, output=output, allowed=partial(_check, job=job))
    except BadInput:
        with ledger.transaction() as connection:
            if jobs.get(connection, job.id) is not None:
                raise
        return None  # a concurrent command has replaced it
    return job


def _refusal(connection: Connection, job: Job) -> Refusal | None:
    found = replacements.facts(connection, job.id)
    return None if found is None else replacements.refusal(found, "")


def _check(connection: Connection, job: Job) -> None:
    if (found := _refusal(connection, job)) is not None:
        raise _error(job, found)


def _error(job: Job, refusal: Refusal) -> BadInput:
    then = (
        "try again later" if refusal.is_temporary else "choose another output directory with --out"
    )
    return BadInput(
        f"{job.label}, which uses the output directory {private(job.output_uri)}, cannot be replaced: {refusal.reason}; {then}"
    )
