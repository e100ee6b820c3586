"""Append: files that came after the submit become the next generation of a job, or nothing.

Their rows are numbered behind the last row of the job. Appends of one job wait for each other under
the lock of its submit; the row of the job is held only for the end of the transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import hive, input_copies, output_schema
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs import archives, generations, job_submit, jobs, watches
from nightshift.common.ledger.jobs.generations import End, Source
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import RequestsTask
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo
from nightshift.common.text import first_few
from nightshift.producer.archived import bring_back
from nightshift.producer.submit import unique_ids_of_job
from nightshift.producer.submit.arrange import again
from nightshift.producer.submit.arrange.arrange import ArrangedPlan, arranged_plan
from nightshift.producer.submit.column_fit import misfit
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.unique_ids_of_job import Known
from nightshift.producer.submit.withdraw import withdraw

MOST_PLANS = 3
"""How often files are planned anew because a copy of them was swept away meanwhile."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append added. `reopened` says that the job was over; no `generation` where another append
    had the files already, or the watch of a look has ended. `empty` are files without a row, which are
    left out: they may get rows, and those of a planned file have their numbers.
    """

    files: int
    rows: int
    batches: int
    generation: int | None
    reopened: bool
    empty: tuple[str, ...] = ()


NOTHING = Appended(0, 0, 0, None, False)


def refuse(job: Job) -> None:
    """BadInput for a job that cannot grow."""
    if job.state is JobState.CANCELLED:
        raise BadInput(
            f"job {job.id} is cancelled, which is final: the same spec with another output "
            "directory is a new job"
        )
    if isinstance(job.spec.task, RequestsTask):
        raise BadInput(
            f"job {job.id} runs an OpenAI batch file, which is complete when it is submitted: "
            "submit the new file as a job of its own"
        )
    if job.spec.input.limit is not None:
        raise BadInput(
            f"job {job.id} takes the first {job.spec.input.limit:,} rows of its input "
            "(input.limit) and no more: submit a job without a limit"
        )


def plan_files(ledger: Ledger, job: Job, infos: Sequence[FileInfo]) -> Plan:
    """The plan of new files of a job; BadInput where they cannot be read or do not fit its columns."""
    refuse(job)
    spec = job.spec
    if spec.input.partitioning == "hive":
        # Together with the first file, so that all have the same keys.
        with ledger.transaction() as connection:
            first = generations.first_uri(connection, job.id)
        hive.detected(spec.input, [first, *(info.uri for info in infos)])
    plan = planner.plan(
        spec.input,
        spec.batch.rows,
        batch_bytes=spec.batch.bytes,
        columns=spec.read_columns,
        infos=infos,
        output_uri=job.output_uri,
        may_be_empty=True,
    )
    why = None
    if plan.rows_total:
        why = misfit(
            output_schema.deserialize(job.input_schema),
            plan.schema,
            {file.format for file in plan.files if file.rows},
            spec.read_columns,
            {name for info in infos for name in hive.columns(spec.input, info.uri)},
        )
    if why is not None:
        verb = "has" if len(infos) == 1 else "have"
        raise BadInput(
            f"{first_few([info.uri for info in infos], 3)} {verb} {why}: the columns of a job are those "
            "of its first files"
        )
    return plan


def append(
    ledger: Ledger,
    job: Job,
    infos: Sequence[FileInfo],
    source: Source,
    *,
    look: Hold | None = None,
) -> Appended:
    """Plans new files and stores them as the next generation; a job that was over runs again. What
    somebody asked for `by_command` stands in the audit log; what a look found is left out once the watch
    has ended.

    Files that the job has by now are left out, and files without a row. Raises BadInput where the files
    cannot be read or do not fit, for a file that changed since it was planned, and for a job that cannot
    grow.
    """
    restore_for_growth(ledger, job)
    for _ in range(MOST_PLANS):
        plan = plan_files(ledger, job, infos)
        empty = tuple(file.uri for file in plan.files if not file.rows)
        filled = plan.only({file.uri for file in plan.files}.difference(empty))
        known = unique_ids_of_job.check(ledger, job, filled)
        ordered = _arranged(ledger, job, filled, by_command=look is None)
        done = _store(ledger, job, ordered, source, look, known)
        if done is not None:
            if done.reopened:
                withdraw(ledger, job)
            return replace(done, empty=empty)
    raise vanishing(job, infos)


def restore_for_growth(ledger: Ledger, job: Job) -> None:
    """Batches of an archived job come back, and copies of the input of one that failed: its batches that had
    not run go on when it grows.
    """
    bring_back(ledger, job)
    if job.state is JobState.FAILED:
        again.restore(ledger, job)


def vanishing(job: Job, infos: Sequence[FileInfo]) -> StorageUnavailable:
    """The error of a plan whose copies were gone MOST_PLANS times when it was to be stored."""
    return StorageUnavailable(
        f"copies of {infos[0].uri} in {job.output_uri}/{input_copies.FOLDER} vanish: append again"
    )


def _arranged(ledger: Ledger, job: Job, plan: Plan, *, by_command: bool) -> Plan | ArrangedPlan:
    """Each generation is arranged by itself, with the columns of the job. A reaper that looks at an input
    does so only where the spec asks for it: its memory and its disk are small.
    """
    if job.spec.batch.arrange == "auto" and not by_command:
        return plan
    with ledger.transaction() as connection:
        cache_tokens = loads.cache_tokens(connection, job.spec.pool, job.spec.engine_key)
    planned = replace(plan, schema=output_schema.deserialize(job.input_schema))
    return arranged_plan(job.spec, planned, output_uri=job.output_uri, cache_tokens=cache_tokens)


def _store(
    ledger: Ledger,
    job: Job,
    plan: Plan | ArrangedPlan,
    source: Source,
    look: Hold | None,
    known: Known,
) -> Appended | None:
    """One transaction: all of the generation or nothing. None where a copy that the plan needs is
    gone, or holds files that another append has stored, and where the job has other files than those
    whose ids were read.
    """
    with ledger.transaction() as connection:
        job_submit.lock(connection, job.identity)
        if look is not None and not watches.is_looking(connection, look):
            # Somebody ended the watch while the look was under way, or took the look over.
            return NOTHING
        left = _unknown(connection, job, plan.files)
        if not left:
            return NOTHING
        if not unique_ids_of_job.still_known(connection, job, known):
            return None
        if isinstance(plan, Plan):
            plan = plan.only(left)
        elif len(left) < len(plan.files):
            return None
        if not copies_are_there(job, plan.files):
            return None
        generations.begin(connection, job.id)
        first = generations.end(connection, job.id)
        plan = plan.behind(first.row)
        job_submit.insert_files(connection, job.id, plan.files, first.file)
        marked = {uri: rows for uri, rows in plan.marked.items() if rows}
        job_submit.note_marked(connection, job.id, marked)
        count = job_submit.insert_batches(
            connection,
            job.id,
            plan.files,
            plan.batches(),
            first_file=first.file,
            first_seq=first.seq,
        )
        stop = End(first.file + len(plan.files), first.row + plan.rows_total, first.seq + count)
        number = generations.add(connection, job.id, source, first, stop)
        watches.forget(connection, job.id, [file.uri for file in plan.files])
        # The engine before the job, as where failed loads fail jobs.
        loads.lock(connection, job.id)
        reopened = open_job(connection, job)
        if look is None:
            added = {"files": len(plan.files), "rows": plan.rows_total, "generation": number}
            audit_log.record(connection, "append", job.id, detail=added)
        reached(Moment.APPENDING)
    return Appended(len(plan.files), plan.rows_total, count, number, reopened)


def _unknown(connection: Connection, job: Job, files: Sequence[SourceFile]) -> set[str]:
    """The files without those that another append stored meanwhile."""
    known = watches.planned_facts(connection, job.id, [file.uri for file in files])
    for file in files:
        if known.get(file.uri, (file.size, file.fingerprint)) != (file.size, file.fingerprint):
            raise BadInput(f"{file.uri} changed since job {job.id} planned it: append again")
    return {file.uri for file in files} - known.keys()


def copies_are_there(job: Job, files: Sequence[SourceFile]) -> bool:
    """Whether every copy that a plan needs is there. Asked under the lock of the job's submit: finish sweeps
    copies under the same lock, so that what is there now stays until the plan is stored.
    """
    copies = [input_copies.copies_of(job.spec.input, job.output_uri, file) for file in files]
    copies += [(uri,) for uri in {file.arranged for file in files} if uri is not None]
    folder = f"{job.output_uri.rstrip('/')}/{input_copies.FOLDER}"
    there = {f"{folder}/{name}" for name in storage.list_names(folder)} if any(copies) else set()
    return all(not there.isdisjoint(names) for names in copies if names)


def open_job(connection: Connection, job: Job) -> bool:
    """Opens a job that is over; True if it was. From here on the row of the job is held."""
    state = jobs.lock(connection, job.id)
    if state is JobState.CANCELLED:
        raise BadInput(f"job {job.id} was cancelled meanwhile, which is final")
    # Under the lock: a deletion or an archive of the job may have begun since the files were planned.
    archives.refuse_away(connection, job.id)
    jobs.count_change(connection, job.id)
    if state.over:
        jobs.reopen(connection, job.id)
        jobs.judge_anew(connection, job.id)
        loads.forgive(connection, job.spec.pool, job.spec.engine_key)
    return state.over
