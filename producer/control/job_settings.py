"""Set: fields of a job that change after its submit, and what follows for people."""

from collections.abc import Callable, Mapping
from datetime import datetime

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.jobs import deadlines, job_changes, jobs, spending
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked
from nightshift.common.spec import finish_by
from nightshift.common.spec.changes import NONE
from nightshift.common.states import JobState
from nightshift.producer.control.answer import Answer, Changes, detail
from nightshift.producer.control.seen import NOTHING, Seen


def change(
    ledger: Ledger,
    job: Job,
    wanted: Mapping[str, str],
    *,
    seen: Seen = NOTHING,
    allowed: Callable[[Connection, Changes], object] = lambda *_: None,
) -> Answer:
    """Changes fields of a job in one transaction; `wanted` are values as a user writes them.

    Raises BadInput for a cancelled job, and for values that a spec cannot have; Stale where the job is not as
    it was seen; and whatever `allowed` raises, which is asked about the changes under the lock of the job.
    """
    with ledger.transaction() as connection:
        try:
            changes = _change(connection, job.id, wanted)
        except BadInput:
            seen.check({"state": jobs.lock(connection, job.id)})  # that may be why
            raise
        progress = jobs.progress(connection, job.id)
        if changes:
            before = {name: old for name, (old, _) in changes.items()}
            seen.check({"state": progress["status"], **before})
            allowed(connection, changes)
            audit_log.record(connection, "set", job.id, detail=detail(changes))
        spent = spending.spent_out(connection, [job.id]) if "budget" in changes else []
    then = _then(changes, JobState(progress["status"]), spent[0][1] if spent else None)
    return Answer("set", job.label, job.id, changes, then)


def _change(connection: Connection, job_id: int, wanted: Mapping[str, str]) -> Changes:
    in_spec = {name: value for name, value in wanted.items() if name != "finish_by"}
    changes = job_changes.change(connection, job_id, in_spec)
    if "finish_by" in wanted:
        changes |= _change_deadline(connection, job_id, wanted["finish_by"])
    return changes


def _change_deadline(connection: Connection, job_id: int, value: str) -> Changes:
    """Sets the moment that a user wrote, by the clock of this machine; `none` takes it away."""
    moment = None
    if value != NONE:
        try:
            moment = finish_by.moment(value, datetime.now().astimezone())
        except ValueError as error:
            raise BadInput(f"--finish-by: {marked(error)}") from error
    before = deadlines.finish_by(connection, job_id)
    if before == moment:
        return {}
    deadlines.set_finish_by(connection, job_id, moment)
    return {"finish_by": (shown(before), shown(moment))}


def shown(moment: datetime | None) -> str | None:
    """A moment on the clock of this machine, to the second."""
    return None if moment is None else moment.astimezone().isoformat(" ", "seconds")


def _then(changes: Changes, state: JobState, spent: str | None) -> str:
    """What follows of the changes for the job in this state. `spent` says that the budget is reached."""
    if not changes:
        return "nothing changed, the job has these values"
    if state.over:
        return f"the job is {state}: it counts when rows run again (`nightshift retry`)"
    said = []
    if "revision" in changes:
        said.append("rows that have an answer keep it")
    if state is JobState.PAUSED:
        said.append("the job is paused")
    elif spent is not None:
        said.append("the job pauses within a second")
    if spent is not None:
        said.append(spent)
    return ", ".join(said)
