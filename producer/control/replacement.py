"""`run --replace` and `submit --replace`: a failed or cancelled job without a committed part makes room for the job of
a spec in the same output directory.
"""

from functools import partial

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import jobs, replacements
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.control import deletion
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.submit import spec_and_identity


def replace(ledger: Ledger, spec: JobSpec, settings: Settings) -> Job | None:
    """Delete the job that has the output directory of a spec, with its files, and return it; None if there is no such
    job, or if it is the job of this very spec and not to be replaced: then a submit finds it, and it goes on.

    The job is marked as deleted under its row lock, then its files go, its marker last: a command that was cut off
    is given again, and goes on. Raises BadInput for a job that cannot be replaced, and for a spec that a submit
    refuses at once.
    """
    wanted, _ = spec_and_identity(spec, settings, ledger)
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, wanted.output.uri)
        if job is None:
            return None
        try:
            _refuse(connection, job, lasting=True)
        except BadInput:
            if job.spec_identity == wanted.identity:
                return None
            raise
    # Somebody may have emptied the directory: then only the ledger has the job.
    output = OwnedDirectory.of_job(ledger, job).marker() is not None
    try:
        deletion.delete(ledger, job, settings, output=output, allowed=partial(_refuse, job=job))
    except BadInput:
        with ledger.transaction() as connection:
            if jobs.get(connection, job.id) is not None:
                raise
        return None  # an equal command replaced it at the same time
    return job


def _refuse(connection: Connection, job: Job, *, lasting: bool = False) -> None:
    """BadInput for a job that cannot be replaced; with `lasting` only for a reason that does not pass."""
    found = replacements.facts(connection, job.id)
    why = None if found is None else replacements.refusal(found, "")
    if why is None or (lasting and why.passes):
        return
    then = "try again in a moment" if why.passes else "name another output directory with --out"
    raise BadInput(
        f"job {job.id} ({job.spec.name}), which has the output directory {job.output_uri}, cannot be replaced: "
        f"{why.why}; {then}"
    )
