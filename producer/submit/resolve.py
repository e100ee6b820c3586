"""Resolving: a spec with absolute paths and with what its input files say, and the files."""

from collections.abc import Sequence
from pathlib import Path

from nightshift.common import remotes, storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import hive
from nightshift.common.settings import Settings
from nightshift.common.spec import (
    JobSpec,
    OpenaiEngineSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.storage import FileInfo
from nightshift.producer.submit.openai_batch_file import with_endpoint


def prepared(
    spec: JobSpec, settings: Settings, output: str | None = None
) -> tuple[JobSpec, list[FileInfo]]:
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
    if isinstance(spec.engine, OpenaiEngineSpec):
        remotes.check(spec.engine.base_url, settings.allowed_remotes)
    infos = storage.expand(spec.input.uris)
    # A link below an allowed folder may lead out of it.
    storage.check_roots([info.uri for info in infos], settings.allowed_roots)
    return with_endpoint(with_partitioning(spec, infos), infos), infos


def resolved(spec: JobSpec) -> JobSpec:
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


def with_partitioning(spec: JobSpec, infos: Sequence[FileInfo]) -> JobSpec:
    """The spec with what the paths of its input say about partitions, so that workers know it."""
    if spec.input.partitioning == "none" or not hive.detected(
        spec.input, [info.uri for info in infos]
    ):
        return spec
    return spec.model_copy(update={"input": spec.input.model_copy(update={"partitioning": "hive"})})
