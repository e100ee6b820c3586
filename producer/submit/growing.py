"""What a job asks of files by which it grows, and how it is opened for their rows."""

from collections.abc import Sequence

from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import hive, output_schema
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import generations, jobs, table_commits, watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.spec import RequestsTask
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo
from nightshift.common.text import counted, first_few
from nightshift.producer.submit.column_fit import misfit
from nightshift.producer.submit.planning.planner import Plan


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
            f"job {job.id} takes the first {counted(job.spec.input.limit, 'row')} of its input "
            "(input.limit) and no more: submit a job without a limit"
        )


def check_paths(ledger: Ledger, job: Job, infos: Sequence[FileInfo]) -> None:
    """BadInput for files whose path has other keys than that of the first file of a partitioned job."""
    if job.spec.input.partitioning != "hive":
        return
    with ledger.transaction() as connection:
        first = generations.first_uri(connection, job.id)
    hive.detected(job.spec.input, [first, *(info.uri for info in infos)])


def check_columns(job: Job, plan: Plan) -> None:
    """BadInput for new files whose columns are not those of the job, which its first files fixed."""
    if not plan.rows_of_files:
        return
    spec = job.spec
    why = misfit(
        output_schema.deserialize(job.input_schema),
        plan.schema,
        {file.format for file in plan.files if file.rows},
        None if spec.read_columns is None else [*spec.read_columns, *spec.input.where_columns],
        {name for file in plan.files for name in hive.columns(spec.input, file.uri)},
    )
    if why is not None:
        verb = "has" if len(plan.files) == 1 else "have"
        raise BadInput(
            f"{first_few([file.uri for file in plan.files], 3)} {verb} {why}: the columns of a job are "
            "those of its first files"
        )


def unknown(connection: Connection, job: Job, files: Sequence[SourceFile]) -> set[str]:
    """The files without those that another append stored meanwhile."""
    known = watches.planned_facts(connection, job.id, [file.uri for file in files])
    for file in files:
        if known.get(file.uri, (file.size, file.fingerprint)) != (file.size, file.fingerprint):
            raise BadInput(
                f"{private(file.uri)} changed since job {job.id} planned it: append again"
            )
    return {file.uri for file in files} - known.keys()


def open_job(connection: Connection, job: Job) -> bool:
    """Opens a job that is over; True if it was. From here on the row of the job is held."""
    state = jobs.lock(connection, job.id)
    if state is JobState.CANCELLED:
        raise BadInput(f"job {job.id} was cancelled meanwhile, which is final")
    # Under the lock: a deletion or an archive of the job may have begun since the files were planned.
    jobs.refuse_archived(connection, job.id)
    table_commits.refuse_under_way(connection, job.id)
    jobs.count_change(connection, job.id)
    if state.over:
        jobs.reopen(connection, job.id)
        jobs.judge_anew(connection, job.id)
        loads.forgive(connection, job.spec.pool, job.engine_key)
    return state.over
