"""Set: fields of a job that change after its submit, and what follows for people."""

from collections.abc import Mapping

from nightshift.common.ledger import Ledger, audit_log, job_changes, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.states import JobState
from nightshift.producer.control.answer import Answer, Changes, detail


def change(ledger: Ledger, job: Job, wanted: Mapping[str, str]) -> Answer:
    """Changes fields of a job in one transaction; `wanted` are values as a user writes them.

    Raises BadInput for a cancelled job, and for values that a spec may not have.
    """
    with ledger.transaction() as connection:
        changes = job_changes.change(connection, job.id, wanted)
        if changes:
            audit_log.record(connection, "set", job.id, detail=detail(changes))
        progress = jobs.progress(connection, job.id)
    state, waiting = JobState(progress["status"]), progress["waiting"]
    return Answer("set", job.label, job.id, changes, _then(changes, state, waiting))


def _then(changes: Changes, state: JobState, waiting: str | None) -> str:
    """What follows of the changes for the job in this state."""
    if not changes:
        return "nothing changed, the job has these values"
    if state.over:
        return f"the job is {state}: it counts when rows run again (`nightshift retry`)"
    said = []
    if "revision" in changes:
        said.append("rows that have an answer keep it")
    if "pool" in changes and waiting:
        said.append(waiting)
    if state is JobState.PAUSED:
        said.append("the job is paused")
    return ", ".join(said)
