"""What `nightshift run` does with the job of its spec: a new one runs, a known one is continued.

A job that failed by its code or by its model is run again by the same command once the cause is
repaired: the spec does not change with the code of a function.
"""

from dataclasses import replace
from enum import Enum, auto

from rich.console import Console

from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import JobSpec
from nightshift.common.states import JobState
from nightshift.common.text import counted, counted_batches, plural
from nightshift.producer import retry
from nightshift.producer.submit.submitted import Submitted


class Step(Enum):
    """How a known job goes on."""

    NONE = auto()
    GO_ON = auto()
    RESUME = auto()
    RETRY = auto()
    RESUME_AND_RETRY = auto()


def next_step(state: JobState, *, rows_done: int, rows_failed: int, failed_too_often: bool) -> Step:
    """What the same command does with a job that it finds.

    Failed rows run again where the job failed, where their share paused it (`failed_too_often`), and
    where no row has an answer. Of a completed job with some answers they do not: its errors may be
    those of its rows, which cost as much the second time; `nightshift retry` runs them.
    """
    match state:
        case JobState.RUNNING:
            return Step.GO_ON
        case JobState.PAUSED:
            return Step.RESUME_AND_RETRY if failed_too_often else Step.RESUME
        case JobState.FAILED:
            return Step.RETRY
        case JobState.COMPLETED if rows_failed and not rows_done:
            return Step.RETRY
        case _:
            return Step.NONE


def open_job(ledger: Ledger, submitted: Submitted, spec: JobSpec, console: Console) -> Job:
    """Prints which job this is, and lets a known one go on, with the budget that the spec has now if
    it was paused.
    """
    job_id = submitted.job_id
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
        too_often = jobs.failed_too_often(connection, job_id)
        row = jobs.progress(connection, job_id)
    assert job is not None
    if submitted.is_new:
        _say_new(submitted, job, console)
        return job
    if submitted.newer_version is not None:
        console.print(submitted.newer_version, style="yellow", soft_wrap=True, markup=False)
    step = next_step(
        job.state,
        rows_done=row["rows_done"],
        rows_failed=row["rows_failed"],
        failed_too_often=too_often,
    )
    if step is Step.NONE:
        return job
    with_budget = job.state is JobState.PAUSED and spec.limits.budget is not None
    if step in (Step.RETRY, Step.RESUME_AND_RETRY):
        console.print(_retry(ledger, job, row), soft_wrap=True, markup=False)
    else:
        console.print(f"job {job_id} continues where it stopped")
    for field in submitted.kept:
        if not (with_budget and field.place == "limits.budget"):
            console.print(field.message(job_id), soft_wrap=True, markup=False)
    with ledger.transaction() as connection:
        if job.state is JobState.PAUSED:
            if spec.limits.budget is not None:
                spending.set_budget(connection, job_id, spec.limits.budget)
            spending.refuse_spent(connection, job_id)
            jobs.resume(connection, job_id)
        return jobs.get(connection, job_id) or job


def _say_new(submitted: Submitted, job: Job, console: Console) -> None:
    console.print(
        f"job {job.id}: {counted(submitted.rows, 'row')} in {counted_batches(submitted.batches)}"
    )
    for message in replace(submitted, watch_seconds=None).remarks:
        console.print(message, style="yellow", soft_wrap=True, markup=False)


def _retry(ledger: Ledger, job: Job, row: Row) -> str:
    """Puts the failed rows of a job back, and says which job and how many."""
    done = retry.retry(ledger, job, failed=True, dead=False, kind=None)
    why = {
        JobState.FAILED: "had failed",
        JobState.PAUSED: "was paused because of its failed rows",
        JobState.COMPLETED: "has an answer for none of its rows",
    }[job.state]
    rows = (
        f"its {counted(done.rows, 'failed row')} {plural(done.rows, 'runs', 'run')} again"
        if done.rows
        else "it continues where it stopped"
    )
    left = row["rows_total"] - row["rows_done"] - row["rows_failed"]
    rest = f", and the {counted(left, 'row')} that had not run" if done.rows and left else ""
    return f"job {job.id} {why}: {rows}{rest}"
