"""Submit: a checked spec and a plan become a job and its batches in one transaction, or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from nightshift.common import remotes, storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import hive, output_parts
from nightshift.common.ledger import Ledger, jobs, workers
from nightshift.common.ledger.jobs import Job, NewJob
from nightshift.common.settings import Settings
from nightshift.common.spec import (
    JobSpec,
    OpenaiEngineSpec,
    RequestsTask,
    TransformersEngineSpec,
    VllmEngineSpec,
    digest,
)
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo
from nightshift.producer.submit import openai_batch_file, planner
from nightshift.producer.submit.convert import Converter
from nightshift.producer.submit.planner import Plan


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job that stands for a spec, new or found."""

    job_id: int
    is_new: bool
    rows: int
    batches: int
    state: JobState


def submit(ledger: Ledger, spec: JobSpec, settings: Settings, *, new: bool = False) -> Submitted:
    """Plans and stores a job; the same spec over unchanged files gives the existing one back.

    Raises BadInput with one sentence for everything that can be known without a worker.
    """
    spec, infos = _looked_at(spec, settings)
    existing = _existing(ledger, spec, infos, new)
    if existing is not None:
        return existing
    check_output(spec, infos)
    plan = _planned(spec, infos)
    job = NewJob(
        spec=spec,
        identity=_identity(spec, infos),
        spec_identity=spec.identity,
        output_uri=spec.output.uri,
        input_schema=output_parts.serialize(plan.schema),
        output_schema=_output_schema(spec, plan.schema),
    )
    try:
        with ledger.transaction() as connection:
            job_id = jobs.insert(connection, job, plan.files)
            count = jobs.insert_batches(connection, job_id, plan.files, plan.batches())
            workers.forgive_loads(connection, spec.pool, spec.engine_key)
    except BadInput:
        # Somebody submitted the same a moment ago: theirs is the job.
        existing = _existing(ledger, spec, infos, new)
        if existing is None:
            raise
        return existing
    return Submitted(job_id, True, plan.rows_total, count, JobState.RUNNING)


def survey(spec: JobSpec, settings: Settings, *, copies: str | None = None) -> tuple[JobSpec, Plan]:
    """The settled spec and its plan, without a ledger; refuses what `submit` of a new job would.

    With a folder for `copies` of the input, that is the output directory of the spec that comes
    back, and its own is not looked at.
    """
    if copies is None:
        spec, infos = _looked_at(spec, settings)
        check_output(spec, infos)
    else:
        spec, infos = _looked_at(spec, settings, copies)
    return spec, _planned(spec, infos)


def identified(spec: JobSpec, settings: Settings) -> tuple[JobSpec, str]:
    """The settled spec, and the identity of the job that a submit of it would make or find."""
    spec, infos = _looked_at(spec, settings)
    return spec, _identity(spec, infos)


def is_known(ledger: Ledger, spec: JobSpec) -> bool:
    """Whether the ledger has a job for the output directory of this spec."""
    with ledger.transaction() as connection:
        return jobs.by_output(connection, settled(spec).output.uri) is not None


def _looked_at(
    spec: JobSpec, settings: Settings, output: str | None = None
) -> tuple[JobSpec, list[FileInfo]]:
    """The spec with what its own files say of it, and the files, all of them below allowed folders.

    An `output` of our own takes the place of the spec's, and may lie anywhere.
    """
    spec = settled(spec)
    storage.check_roots(spec.input.uris, settings.allowed_roots)
    if output is None:
        storage.check_roots([spec.output.uri], settings.allowed_roots)
    else:
        spec = spec.model_copy(update={"output": spec.output.model_copy(update={"uri": output})})
    if isinstance(spec.engine, OpenaiEngineSpec):
        remotes.check(spec.engine.base_url, settings.allowed_remotes)
    infos = storage.expand(spec.input.uris)
    # A link below an allowed folder may lead out of it.
    storage.check_roots([info.uri for info in infos], settings.allowed_roots)
    return openai_batch_file.with_endpoint(partitioned(spec, infos), infos), infos


def _planned(spec: JobSpec, infos: Sequence[FileInfo]) -> Plan:
    if isinstance(spec.task, RequestsTask):
        openai_batch_file.refuse_doubled_ids(infos, spec.input.limit)
    plan = planner.plan(
        spec.input,
        spec.batch.rows,
        columns=spec.read_columns,
        infos=infos,
        output_uri=spec.output.uri,
    )
    planner.check_columns(spec, plan.schema)
    planner.check_images(spec, plan.schema)
    check_jsonl(spec, plan.schema)
    return plan


def settled(spec: JobSpec) -> JobSpec:
    """The spec with local paths made absolute, so that it means the same in every folder."""
    uris = [storage.resolve(uri) for uri in spec.input.uris]
    engine = spec.engine
    if isinstance(engine, VllmEngineSpec | TransformersEngineSpec):
        folder = Path(engine.model)
        if engine.model.startswith(("./", "../")) and not folder.is_dir():
            raise BadInput(f"engine.model {engine.model} is no folder here")
        if folder.is_dir():
            engine = engine.model_copy(update={"model": str(folder.resolve())})
    return spec.model_copy(
        update={
            "input": spec.input.model_copy(update={"uri": uris}),
            "output": spec.output.model_copy(
                update={"uri": storage.resolve(spec.output.uri).rstrip("/")}
            ),
            "engine": engine,
        }
    )


def _existing(
    ledger: Ledger, spec: JobSpec, infos: Sequence[FileInfo], new: bool
) -> Submitted | None:
    """The job that owns the output directory, if it is this very work; BadInput if it is not."""
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, spec.output.uri)
        if job is None:
            return None
        progress = jobs.progress(connection, job.id)
        files = jobs.files(connection, job.id)
    if new:
        raise BadInput(
            f"{spec.output.uri} is the output of job {job.id}: --new wants another output directory"
        )
    if job.spec_identity != spec.identity:
        raise BadInput(
            f"{spec.output.uri} is the output of job {job.id} ({job.spec.name}), whose spec "
            "differs: name another output directory"
        )
    if job.identity != _identity(spec, infos):
        _refuse_changed(job, infos, {file.uri: (file.size, file.fingerprint) for file in files})
    Converter(spec.input, spec.output.uri).restore(files)
    return Submitted(job.id, False, progress["rows_total"], progress["batches_total"], job.state)


def partitioned(spec: JobSpec, infos: Sequence[FileInfo]) -> JobSpec:
    """The spec with what the paths of its input say about partitions, so that workers know it."""
    said = spec.input.partitioning
    if said == "none" or not hive.detected(spec.input, [info.uri for info in infos]):
        return spec
    return spec.model_copy(update={"input": spec.input.model_copy(update={"partitioning": "hive"})})


def _refuse_changed(job: Job, infos: Sequence[FileInfo], known: dict[str, tuple[int, str]]) -> None:
    now = {info.uri: (info.size, info.fingerprint) for info in infos}
    changed = sorted(
        {uri for uri, facts in now.items() if known.get(uri, facts) != facts}
        | (known.keys() ^ now.keys())
    )
    named = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    raise BadInput(
        f"input files changed since job {job.id} was submitted: {named or 'an empty one'}; submit "
        "with --new and another output directory"
    )


def check_output(spec: JobSpec, infos: Sequence[FileInfo]) -> None:
    """BadInput for an output directory that cannot be one beside this input."""
    output = spec.output.uri
    names = storage.list_names(output)
    if any(name.startswith("part-") or name == output_parts.MANIFEST for name in names):
        raise BadInput(
            f"{output} holds the parts of a job that this ledger does not know: name another "
            "output directory, or empty it"
        )
    for info in infos:
        own = info.uri.startswith(f"{output}/{output_parts.JUDGED}/")
        if info.uri.startswith(f"{output}/") and not own:
            raise BadInput(f"the input {info.uri} lies inside the output directory {output}")
    storage.check_directory(output)
    refuse_read_as_input(spec, "the output directory", output, f"part-0.{spec.output.format}")


def refuse_read_as_input(spec: JobSpec, what: str, folder: str, name: str) -> None:
    """BadInput where a file of that name in a folder of ours would be among the input."""
    places = [f"{folder}/{name}"]
    while len(places[-1]) > len(folder):
        places.append(places[-1].rpartition("/")[0])
    for uri in spec.input.uris:
        plain = uri.rstrip("/")
        # A folder that a pattern matches is read to its bottom.
        if any(storage.is_pattern_over(uri, place) for place in places):
            raise BadInput(
                f"{what} {folder} lies under the input {uri}: its files would be read as input"
            )
        if folder == plain or folder.startswith(f"{plain}/"):
            raise BadInput(
                f"{what} {folder} lies inside the input {plain}: its files would be read as input"
            )


def check_jsonl(spec: JobSpec, inputs: pa.Schema) -> None:
    """JSON lines must come back as the values that they were."""
    if spec.output.format != "jsonl":
        return
    for name in spec.passed_columns:
        kind = inputs.field(name).type
        if not _comes_back(kind):
            raise BadInput(
                f"the column {name!r} is {kind}, which JSON lines cannot bring back: write "
                "output.format parquet, or leave the column out of the output"
            )


def _comes_back(kind: pa.DataType) -> bool:
    lost = (
        pa.types.is_duration,
        pa.types.is_time,
        pa.types.is_fixed_size_list,
        pa.types.is_fixed_size_binary,
        pa.types.is_map,
        pa.types.is_uint64,
    )
    if any(is_lost(kind) for is_lost in lost) or isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_struct(kind):
        return all(_comes_back(each.type) for each in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _comes_back(kind.value_type)
    return True


def _output_schema(spec: JobSpec, inputs: pa.Schema) -> bytes | None:
    try:
        schema = output_parts.output_schema(spec, inputs)
    except ValueError as error:
        raise BadInput(f"output.schema: {error}") from error
    return None if schema is None else output_parts.serialize(schema)


def _identity(spec: JobSpec, infos: Sequence[FileInfo]) -> str:
    files = sorted((info.uri, info.size, info.fingerprint) for info in infos)
    return digest([spec.identity, files])
