"""Pause, resume, cancel, unpin: a job moves, and the audit log says who moved it."""

from collections.abc import Callable
from dataclasses import replace

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import jobs, spending, table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked
from nightshift.producer import under_way
from nightshift.producer.advice.advice import Need, advise, goes_on, nobody_works, subject
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.control.answer import Answer, detail
from nightshift.producer.control.seen import NOTHING, Seen


def pause(ledger: Ledger, job: Job, here: Here = FLEET, *, seen: Seen = NOTHING) -> Answer:
    """No further claims; what is leased ends as usual. BadInput where the job is over."""
    return _moved(ledger, job, "pause", jobs.pause, goes_on(Need.RESUME, here, job), seen)


def cancel(ledger: Ledger, job: Job, *, seen: Seen = NOTHING) -> Answer:
    """Ends the job for good. BadInput where the job is completed or failed."""

    def end(connection: Connection, job_id: int) -> None:
        table_commits.refuse_cancel(connection, job_id)
        jobs.cancel(connection, job_id)

    under_way.wait(ledger, job.id)
    return _moved(ledger, job, "cancel", end, "parts that are written stay", seen)


def resume(
    ledger: Ledger,
    job: Job,
    budget: float | None = None,
    here: Here = FLEET,
    *,
    seen: Seen = NOTHING,
) -> Answer:
    """Resumes a paused job, with another limits.budget where one is given."""

    def go_on(connection: Connection, job_id: int) -> None:
        if budget is not None:
            spending.set_budget(connection, job_id, budget)
        try:
            spending.refuse_spent(connection, job_id)
        except BadInput as error:
            spent = replace(subject(job), reason=str(error))
            raise BadInput(f"{marked(error)}: `{advise(Need.RESUME, here, spent)}`") from error
        jobs.resume(connection, job_id)

    return _moved(ledger, job, "resume", go_on, nobody_works(here, job), seen)


def unpin(ledger: Ledger, job: Job) -> Answer:
    """Forgets the revision that the first load of the job's model resolved to."""
    with ledger.transaction() as connection:
        revision = loads.release_revision(connection, job.spec.pool, job.engine_key)
        changes = {"held revision": (revision, None)}
        audit_log.record(connection, "unpin", job.id, detail=detail(changes))
    return Answer("unpin", job.label, job.id, changes, "its next load decides")


def load_again(ledger: Ledger, job: Job, *, seen: Seen = NOTHING) -> Answer:
    """Machines that could not load the job's engine try again at once: a person has repaired the cause."""
    with ledger.transaction() as connection:
        loads.lock(connection, job.id)
        state = jobs.lock(connection, job.id)
        forgiven = loads.forgive(connection, job.spec.pool, job.engine_key)
        if forgiven:
            seen.check({"state": state})
            audit_log.record(connection, "load again", job.id)
    then = "its engine is loaded again at once"
    if not forgiven:
        then = "nothing changed, no machine is kept from loading its engine"
    return Answer("load again", job.label, job.id, {}, then)


def _moved(
    ledger: Ledger,
    job: Job,
    action: str,
    move: Callable[[Connection, int], object],
    then: str,
    seen: Seen = NOTHING,
) -> Answer:
    """Makes a move in one transaction. A job that is there already is no change, and in no log. Stale where
    the job is not as it was seen.
    """
    with ledger.transaction() as connection:
        before = _state_of(connection, job.id)
        try:
            move(connection, job.id)
        except BadInput:
            seen.check(before)  # what has changed meanwhile says more
            raise
        after = _state_of(connection, job.id)
        changes = {
            name: (before[name], after[name]) for name in before if before[name] != after[name]
        }
        if changes:
            seen.check(before)
            audit_log.record(connection, action, job.id, detail=detail(changes))
    if not changes:
        then = f"nothing changed, the job is {after['state']}"
    return Answer(action, job.label, job.id, changes, then)


def _state_of(connection: Connection, job_id: int) -> dict[str, object]:
    """What these commands change, under the lock of the job."""
    state = jobs.lock(connection, job_id)
    return {"state": str(state), "budget": spending.budget(connection, job_id)}
