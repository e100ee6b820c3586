"""Submit: a resolved spec and a plan become a job and its batches in one transaction, or nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from nightshift.common import permits, storage
from nightshift.common.errors import BadInput, LeaseLost
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import hive, output_schema
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import generations, job_submit, jobs, watches
from nightshift.common.ledger.jobs.job_roots import UNBOUND, Admitted
from nightshift.common.ledger.jobs.job_submit import NewJob
from nightshift.common.settings import Settings
from nightshift.common.spec import (
    GenerateTask,
    JobSpec,
    RequestsTask,
    digest,
    finish_by,
)
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo, Listing
from nightshift.producer.submit import checks, openai_batch_file, output_owner, unique_ids
from nightshift.producer.submit.arrange.arrange import ArrangedPlan, arranged_plan
from nightshift.producer.submit.auto_args import filled_in, remark
from nightshift.producer.submit.existing import existing_job
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.planning import convert, planner, reading
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.planning.schema_merge import with_late_texts
from nightshift.producer.submit.submitted import Submitted

Within = Callable[[Connection, int], object]
"""What else belongs into the transaction of a submit; called with the number of the new job."""


def submit(
    ledger: Ledger,
    spec: JobSpec,
    settings: Settings,
    *,
    new: bool = False,
    adopt: bool = False,
    tenant: str = "",
    admitted: Admitted = UNBOUND,
    within: Within | None = None,
) -> Submitted:
    """Plans and stores a job; for the same spec over unchanged files the existing job comes back.

    Files are opened within the allowed roots of `settings` alone; the job is held to what it is `admitted`
    under for good. With `adopt` the output directory is taken over from the same job of a ledger that is lost.
    `within` runs in the transaction of a new job: what it raises leaves no job.
    Raises BadInput with one sentence for everything that can be refused without a worker.
    """
    with within_roots(settings):
        return _submitted(ledger, spec, settings, new, adopt, (tenant, admitted), within)


def within_roots(settings: Settings, *besides: str) -> AbstractContextManager[None]:
    """Holds what is opened inside to the allowed roots, and to folders `besides`."""
    roots = (*settings.allowed_roots, *besides) if settings.allowed_roots else None
    return storage.within(roots, storage.SETTING)


def _submitted(
    ledger: Ledger,
    spec: JobSpec,
    settings: Settings,
    new: bool,
    adopt: bool,
    owner_of_job: tuple[str, Admitted],
    within: Within | None,
) -> Submitted:
    spec, listing = _prepared(filled_in(ledger, spec), settings)
    infos = listing.files
    existing = existing_job(ledger, spec, listing, new)
    if existing is not None:
        return existing
    due = _finish_by(spec)
    watch_seconds = spec.input.watch_seconds
    adopting = _check_output(ledger, spec, infos, adopt)
    beside = () if adopting else checks.files_beside(spec.output.uri)
    plan = _plan(spec, infos)
    ordered = arranged_plan(
        spec, plan, output_uri=spec.output.uri, cache_tokens=_cache_tokens(ledger, spec)
    )
    identity = _identity(spec, infos)
    job = NewJob(
        # The watch is a row of its own, which changes while the job runs.
        spec=spec.model_copy(update={"input": spec.input.model_copy(update={"watch": None})}),
        identity=identity,
        spec_identity=spec.identity,
        output_uri=spec.output.uri,
        input_schema=output_schema.serialize(plan.schema),
        output_schema=_output_schema(spec, plan.schema),
        finish_by=due,
        tenant=owner_of_job[0],
        admitted=owner_of_job[1],
    )
    owner = output_owner.owner(ledger, identity)
    marked = output_owner.take(ledger, spec.output.uri, owner, adopting=adopting)
    try:
        with ledger.transaction() as connection:
            output_owner.hold(connection, spec.output.uri, owner)
            files = ordered.files
            # Whoever removes copies of a refused submit holds the same lock.
            job_submit.lock_output(connection, spec.output.uri)
            if not convert.are_there(spec.input, spec.output.uri, files):
                raise BadInput(f"copies of the input in {spec.output.uri} are gone: submit again")
            job_id = job_submit.insert(connection, job, files)
            with_marks = {uri: rows for uri, rows in plan.marked.items() if rows}
            job_submit.note_marked(connection, job_id, with_marks)
            batches = job_submit.insert_batches(connection, job_id, files, ordered.batches())
            if watch_seconds is not None:
                generations.begin(connection, job_id)
                watches.start(connection, job_id, watch_seconds)
            loads.forgive(connection, spec.pool, spec.engine_key)
            planned = {"rows": plan.rows_total, "batches": batches}
            audit_log.record(connection, "submit", job_id, detail=planned)
            if within is not None:
                within(connection, job_id)
            reached(Moment.SUBMITTING)
    except (BadInput, LeaseLost, KeyboardInterrupt) as error:
        # Another process submitted the same a moment ago: its job is the one to return.
        existing = existing_job(ledger, spec, listing, new)
        if existing is None and marked:
            output_owner.give_up(ledger, spec.output.uri, owner)
        if existing is None or not isinstance(error, BadInput):
            raise
        return existing
    return Submitted(
        job_id,
        True,
        plan.rows_total,
        batches,
        JobState.RUNNING,
        beside=beside,
        watch_seconds=watch_seconds,
        arranged=isinstance(ordered, ArrangedPlan),
        auto_args=remark(spec),
        rows_marked=sum(plan.marked.values()),
        linked_twice=listing.remark,
    )


def survey(
    spec: JobSpec,
    settings: Settings,
    *,
    copies: str | None = None,
    ledger: Ledger | None = None,
    adopt: bool = False,
) -> tuple[JobSpec, Plan]:
    """The resolved spec and its plan, without a job; refuses what `submit` of a new job refuses. The
    owner of the output directory is asked for with a `ledger` alone.

    A folder for `copies` of the input takes the place of the output directory, which is then not
    checked.
    """
    if ledger is not None:
        spec = filled_in(ledger, spec)
    with within_roots(settings, *([] if copies is None else [copies])):
        spec, listing = _prepared(spec, settings, copies)
        if copies is None:
            _check_output(ledger, spec, listing.files, adopt)
        return spec, _plan(spec, listing.files)


def _check_output(
    ledger: Ledger | None, spec: JobSpec, infos: Sequence[FileInfo], adopt: bool
) -> bool:
    """BadInput for an output directory that a new job cannot have. Whether there is something to
    adopt in it.
    """
    adopting = False
    storage.check_directory(spec.output.uri)
    if ledger is not None:
        owner = output_owner.owner(ledger, _identity(spec, infos))
        adopting = output_owner.check(ledger, spec.output.uri, owner, adopt=adopt)
    checks.check_output(spec, infos, adopting=adopting)
    return adopting


def check_before(spec: JobSpec, settings: Settings, *, has_ledger: bool, adopt: bool) -> None:
    """BadInput for what a look at this machine shows before any server is started: local input that
    is not there, an output directory that cannot be made or, without a ledger here, that has an owner.
    """
    spec = resolved(spec)
    storage.check_roots([*spec.input.uris, spec.output.uri], settings.allowed_roots)
    with within_roots(settings):
        storage.expand(uri for uri in spec.input.uris if storage.is_local(uri))
        storage.check_directory(spec.output.uri)
    if not has_ledger and not adopt and storage.is_local(spec.output.uri):
        output_owner.refuse_owned(spec.output.uri)


def spec_and_identity(spec: JobSpec, settings: Settings) -> tuple[JobSpec, str]:
    """The resolved spec, and the identity of the job that a submit of it would make or find."""
    with within_roots(settings):
        spec, listing = _prepared(spec, settings)
    return spec, _identity(spec, listing.files)


def is_known(ledger: Ledger, spec: JobSpec) -> bool:
    """Whether the ledger has a job for the output directory of this spec."""
    with ledger.transaction() as connection:
        return jobs.by_output(connection, resolved(spec).output.uri) is not None


def _prepared(
    spec: JobSpec, settings: Settings, output: str | None = None
) -> tuple[JobSpec, Listing]:
    """The resolved spec with what its input files say of it, and the files.

    Everything must lie below the allowed folders. An `output` takes the place of the spec's own
    and may lie anywhere.
    """
    spec = resolved(spec)
    storage.check_roots(spec.input.uris, settings.allowed_roots)
    if output is None:
        storage.check_roots([spec.output.uri], settings.allowed_roots)
    else:
        spec = spec.model_copy(update={"output": spec.output.model_copy(update={"uri": output})})
    permits.check_at_submit(spec, settings)
    listing = storage.listing(spec.input.uris)
    infos = listing.files
    # A link below an allowed folder may lead out of it.
    storage.check_roots([info.uri for info in infos], settings.allowed_roots)
    return openai_batch_file.with_endpoint(with_partitioning(spec, infos), infos), listing


def with_partitioning(spec: JobSpec, infos: Sequence[FileInfo]) -> JobSpec:
    """The spec with what the paths of its input say about partitions, so that workers know it."""
    if spec.input.partitioning == "none" or not hive.detected(
        spec.input, [info.uri for info in infos]
    ):
        return spec
    return spec.model_copy(update={"input": spec.input.model_copy(update={"partitioning": "hive"})})


def _plan(spec: JobSpec, infos: Sequence[FileInfo]) -> Plan:
    reading.current().begin()
    if isinstance(spec.task, RequestsTask):
        openai_batch_file.check_unique_ids(infos, spec.input.limit)
    plan = planner.plan(
        spec.input,
        spec.batch.rows,
        batch_bytes=spec.batch.bytes,
        columns=spec.read_columns,
        infos=infos,
        output_uri=spec.output.uri,
    )
    checks.check_columns(spec, plan.schema)
    checks.check_images(spec, plan.schema)
    checks.check_types(spec, plan.schema)
    checks.check_jsonl(spec, plan.schema)
    if not isinstance(spec.task, RequestsTask):
        unique_ids.check(spec, plan)
    formats = {file.format for file in plan.files}
    chats = spec.task.messages_column if isinstance(spec.task, GenerateTask) else None
    return replace(plan, schema=with_late_texts(plan.schema, spec.passed_columns, formats, chats))


def _cache_tokens(ledger: Ledger, spec: JobSpec) -> int | None:
    with ledger.transaction() as connection:
        return loads.cache_tokens(connection, spec.pool, spec.engine_key)


def _output_schema(spec: JobSpec, inputs: pa.Schema) -> bytes | None:
    try:
        schema = output_schema.output_schema(spec, inputs)
    except ValueError as error:
        raise BadInput(f"output.schema: {error}") from error
    return None if schema is None else output_schema.serialize(schema)


def _finish_by(spec: JobSpec) -> datetime | None:
    """The moment of limits.finish_by by the clock of this machine; BadInput when it has passed."""
    if spec.limits.finish_by is None:
        return None
    try:
        return finish_by.moment(spec.limits.finish_by, datetime.now().astimezone())
    except ValueError as error:
        raise BadInput(f"limits.finish_by: {error}") from error


def _identity(spec: JobSpec, infos: Sequence[FileInfo]) -> str:
    files = sorted((info.uri, info.size, info.fingerprint) for info in infos)
    return digest([spec.identity, files])
