"""The commands that a person may want to type next, below the summary of a job."""

from nightshift.producer.advice.advice import Need, Subject, advise, spec_note
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.views.rates import Values


def next_steps(row: Values, here: Here = FLEET) -> list[str]:
    """Commands that a user may want to run next; `here` says who works on the ledger."""
    job = Subject(row["job"], row["pool"], row.get("engine_key") or "", row["reason"])
    steps: list[tuple[str, str]] = []
    if row["status"] == "paused":
        steps.append((advise(Need.RESUME, here, job), "resumes the job"))
    if row["rows_failed"]:
        steps.append((f"nightshift errors {row['job']}", "the rows that failed, and why"))
    is_archived = row.get("archived_at") is not None
    if row["status"] == "failed" and not is_archived:
        then = (
            "runs them again"
            if row["rows_failed"]
            else "continues the job after the cause is fixed"
        )
        steps.append((advise(Need.RETRY, here, job), then))
    elif row["rows_failed"] and row["status"] != "cancelled" and not is_archived:
        steps.append((advise(Need.RETRY_ROWS, here, job), "runs them again"))
    if row["status"] in ("failed", "cancelled") or (row["rows_failed"] and is_archived):
        steps.append((advise(Need.AFRESH, here, job), "starts afresh in another directory"))
    if row["status"] == "completed" and row["rows_done"]:
        steps += _results(row)
    notes = dict.fromkeys(note for command, _ in steps if (note := spec_note(command)))
    return [*(f"{command}    {then}" for command, then in steps), *notes]


def _results(row: Values) -> list[tuple[str, str]]:
    """What is done with the answers of a job that is over."""
    job = row["job"]
    return [
        (f"nightshift sample {job}", "some rows, input beside output"),
        (f"nightshift verify {job}", "checks that every row is there exactly once"),
        (
            f"nightshift collect {job} --to {row['name']}-answers.parquet",
            "all rows as one file, in their order",
        ),
    ]
