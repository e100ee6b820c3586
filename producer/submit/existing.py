"""A second submit: the job that has the output directory already, if it is the job of the spec."""

from itertools import count

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import output_schema
from nightshift.common.formats.convert import Converter
from nightshift.common.ledger import Ledger, Row, audit_log
from nightshift.common.ledger.jobs import (
    deadlines,
    generations,
    job_submit,
    jobs,
    replacements,
    watches,
)
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.states import JobState
from nightshift.common.storage import Listing
from nightshift.common.text import counted, first_few
from nightshift.producer.submit import table_input
from nightshift.producer.submit.arrange.arrange import restore
from nightshift.producer.submit.changes import Changes, changes
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.submitted import (
    Submitted,
    differing_sections,
    kept_deadline,
    kept_fields,
)
from nightshift.producer.submit.withdraw import withdraw

REPLACE = "; or delete that job, which has no committed rows, with `--replace` of `nightshift run` or `nightshift submit`"
"""Advice in addition, if the job that has the output directory can be replaced."""


def existing_job(
    ledger: Ledger,
    spec: JobSpec,
    listing: Listing,
    new: bool,
    settings: Settings,
    tenant: str = "",
) -> Submitted | None:
    """Return the job that owns the output directory, None if no job does; BadInput if it is a job of another spec. Jobs
    of a `tenant` are submitted over HTTP, where `--replace` is not available.
    """
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, spec.output.uri)
        if job is None:
            return None
        jobs.refuse_deleted(connection, job.id)
        progress = jobs.progress(connection, job.id)
        files = jobs.files(connection, job.id)
        has_grown = generations.get(connection, job.id, 2) is not None
        is_watched = watches.status(connection, job.id) is not None
        elsewhere = watches.named_files(connection, job.id)
        due = deadlines.finish_by(connection, job.id)
        facts = None if tenant else replacements.facts(connection, job.id)
    refusal = None if facts is None else replacements.refusal(facts, tenant)
    can_replace = facts is not None and (refusal is None or refusal.is_temporary)
    advice = REPLACE if can_replace else ""
    if new:
        raise BadInput(
            f"{private(spec.output.uri)} is the output of job {job.id}: --new wants another output directory"
        )
    if job.spec_identity != spec.identity:
        _refuse_other_spec(ledger, job, spec, advice)
    planned = {file.uri: (file.size, file.fingerprint) for file in files}
    found = changes(listing.as_planned(planned), planned, elsewhere)
    may_differ = is_watched or has_grown or spec.input.watch is not None
    if found.changed or (found.uris and not may_differ):
        raise BadInput(_changed(job, found) + advice)
    watch_seconds, state = _watch(ledger, job, spec)
    if not job.state.over:
        OwnedDirectory.of_job(ledger, job).keep(job.id)
    there = [file for file in files if file.uri not in found.gone]
    Converter(spec.input, spec.output.uri, table_input.copier(settings)).restore(there)
    if not found.gone and _reads_on(state, progress):
        restore(spec, files, output_schema.deserialize(job.input_schema))
    return Submitted(
        job.id,
        False,
        progress["rows_total"],
        progress["batches_total"],
        state,
        kept=(
            *kept_fields(job.spec, spec),
            *kept_deadline(due, spec.limits.finish_by, job.created_at),
        ),
        new_files=len(found.new),
        watch_seconds=watch_seconds,
        linked_twice=listing.remark,
    )


def _reads_on(state: JobState, progress: Row) -> bool:
    """Whether rows of the job may still be read: it is open, or the same command or a retry of its dead
    batches opens it again. Sorting the input of a completed job once more would be for nothing.
    """
    if state is JobState.COMPLETED:
        return not progress["rows_done"]
    return state is not JobState.CANCELLED


def _refuse_other_spec(ledger: Ledger, job: Job, spec: JobSpec, advice: str) -> None:
    """BadInput for another spec in the output directory of a job, with a directory that is free."""
    with ledger.transaction() as connection:
        free = next(
            uri
            for uri in (f"{spec.output.uri}-{number}" for number in count(2))
            if jobs.by_output(connection, uri) is None
        )
    places = first_few(differing_sections(job.spec, spec), 3)
    raise BadInput(
        f"{private(spec.output.uri)} is the output of job {job.id} ({job.spec.name}), whose spec differs"
        f"{places and f' in {places}'}: a changed spec is another job, which needs another output "
        f"directory: `--out {storage.as_typed(free)}`{advice}"
    )


def _watch(ledger: Ledger, job: Job, spec: JobSpec) -> tuple[int | None, JobState]:
    """Watches the input of a known job as its spec says now, and opens one that was completed; a spec
    without `input.watch` changes nothing. Returns the seconds between two looks and the state of the
    job. No reaper looks for files of a job that failed or was cancelled.
    """
    wanted, state, reopened = spec.input.watch_seconds, job.state, False
    if state in (JobState.CANCELLED, JobState.FAILED):
        return None, state
    with ledger.transaction() as connection:
        if wanted is not None:
            job_submit.lock(connection, job.identity)
            generations.begin(connection, job.id)
            started = watches.start(connection, job.id, wanted)
            if started:
                audit_log.record(connection, "watch", job.id, detail={"seconds": wanted})
            # The job may have closed meanwhile, and a finish that is under way must not close it.
            state = jobs.lock(connection, job.id)
            reopened = state is JobState.COMPLETED
            if started or reopened:
                jobs.count_change(connection, job.id)
            if reopened:
                jobs.refuse_archived(connection, job.id)
                jobs.reopen(connection, job.id)
                state = JobState.RUNNING
        watched = watches.status(connection, job.id)
    if reopened:
        withdraw(ledger, job)
    return None if watched is None else int(watched["every_seconds"]), state


def _changed(job: Job, found: Changes) -> str:
    """Why the files of a known job cannot be taken as they are now, and what to do."""
    if not found.changed and not found.gone:
        return (
            f"the input of job {job.id} has {counted(len(found.new), 'file')} more than when it was "
            f"submitted: {first_few(found.uris, 3)}; `nightshift submit --append {job.id}` takes "
            "them, or submit with --new and another output directory"
        )
    return (
        f"input files changed since job {job.id} was submitted: {first_few(found.uris, 3)}; --new with another "
        "output directory runs all rows again"
    )
