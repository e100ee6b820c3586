"""Files that changed since a job planned them: their rows run again over the new version."""

from collections.abc import Sequence

from nightshift.common import storage
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import changed_files, generations, job_submit, jobs, watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.storage import FileInfo
from nightshift.producer.submit import unique_ids_of_job
from nightshift.producer.submit.append import (
    MOST_PLANS,
    copies_are_there,
    open_job,
    plan_files,
    restore_for_growth,
    vanishing,
)
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.unique_ids_of_job import Known
from nightshift.producer.submit.withdraw import withdraw


def redo_changed(ledger: Ledger, job: Job, infos: Sequence[FileInfo]) -> int:
    """Runs the rows of changed files again, all files or none.

    Returns how many rows. The old answers go, at the end of the job where this command is cut off.
    Raises BadInput for a file with another number of rows than before, with columns that do not fit, or
    with a leased batch; StorageUnavailable where the copies of the files vanish again and again.
    """
    restore_for_growth(ledger, job)
    for _ in range(MOST_PLANS):
        plan = plan_files(ledger, job, infos)
        known = unique_ids_of_job.check(ledger, job, plan, redo=True)
        old_parts = _store(ledger, job, plan, known)
        if old_parts is not None:
            # Behind the files that name the parts. Names are never used again, so no part of another goes.
            for place in (part_names.staged, part_names.final):
                storage.delete_all(place(job.output_uri, name) for name in old_parts)
            return plan.rows_total
    raise vanishing(job, infos)


def _store(ledger: Ledger, job: Job, plan: Plan, known: Known) -> list[str] | None:
    """One transaction, then the files about what is open again go. Returns the names of the old parts; None
    where a copy of the new version is gone, or the job has other files than those whose ids were read, and
    then nothing has changed.
    """
    old_parts: list[str] = []
    with ledger.transaction() as connection:
        job_submit.lock(connection, job.identity)
        if not copies_are_there(job, plan.files):
            return None
        if not unique_ids_of_job.still_known(connection, job, known):
            return None
        # The engine before the job, as where failed loads fail jobs.
        loads.lock(connection, job.id)
        reopened = open_job(connection, job)
        for file in plan.files:
            own = plan.only({file.uri})
            pieces = [each.locator for each in own.batches() if each.locator is not None]
            old_parts += changed_files.reopen(connection, job.id, own.files[0], pieces)
        job_submit.note_marked(connection, job.id, plan.marked)
        jobs.judge_anew(connection, job.id)
        stale = generations.reopen(connection, job.id)
        redone = {"files": [file.uri for file in plan.files[:100]], "rows": plan.rows_total}
        audit_log.record(connection, "redo_changed", job.id, detail=redone)
        watches.forget(connection, job.id, [file.uri for file in plan.files])
        reached(Moment.APPENDING)
    if reopened or stale:
        withdraw(ledger, job, stale)
    return old_parts
