"""Engines turn requests into outcomes. Only `load` knows them by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightshift.common import permits
from nightshift.common.errors import BadInput, EngineNotHere
from nightshift.common.public_text import marked, private
from nightshift.common.settings import Settings
from nightshift.common.spec import (
    FunctionEngineSpec,
    JobSpec,
    OpenaiEngineSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.worker.engines.protocol import Engine


def load(spec: JobSpec, settings: Settings, revision: str | None = None) -> Engine:
    """Loads the engine that a job names; EngineLoadFailed when the engine cannot be loaded.

    EngineNotHere when the operator of this worker does not allow the engine: whoever wrote the spec
    is not trusted here.

    `revision` is the commit that the first load of this model resolved to, if there was one. JobRefused
    and NeedsOtherEngine say before the weights are read that the engine would run no row of the job.
    """
    try:
        permits.check(spec, settings)
    except BadInput as error:
        raise EngineNotHere(marked(error)) from error
    revision = _allowed_revision(spec, settings, revision)
    match spec.engine:
        case FunctionEngineSpec():
            from nightshift.worker.engines.function.engine import FunctionEngine

            return FunctionEngine.load(spec.engine, settings)
        case VllmEngineSpec(model=model):
            _check_folder(model)
            with _installed("vLLM", "gpu", "cpu"):
                from nightshift.worker.engines.vllm.engine import VllmEngine
            return VllmEngine.load(spec.engine, revision, spec.task.runner, spec.task)
        case TransformersEngineSpec(model=model):
            _check_folder(model)
            with _installed("transformers", "transformers"):
                from nightshift.worker.engines.transformers.engine import (
                    TransformersEngine,
                )
            return TransformersEngine.load(spec.engine, revision, spec.task.runner)
        case OpenaiEngineSpec():
            with _installed("the OpenAI client", "openai"):
                from nightshift.worker.engines.openai.engine import OpenaiEngine
            return OpenaiEngine(spec.engine, settings)


def _allowed_revision(spec: JobSpec, settings: Settings, revision: str | None) -> str | None:
    """The revision that the ledger holds, or None where the operator's word is not for it: it may
    bring code, and whoever can write the ledger is not trusted here.
    """
    if revision is None:
        return None
    engine = spec.engine.model_copy(update={"revision": revision})
    try:
        permits.check(spec.model_copy(update={"engine": engine}), settings)
    except BadInput:
        return None
    return revision


@contextmanager
def _installed(library: str, *extras: str) -> Iterator[None]:
    """Around the import of an engine: EngineNotHere where its library is not installed."""
    try:
        yield
    except ImportError as error:
        install = " or ".join(f"nightshift-fleet[{extra}]" for extra in extras)
        raise EngineNotHere(
            f"{library} cannot be imported on this worker ({marked(error)}): install {install}"
        ) from error


def _check_folder(model: str) -> None:
    """EngineNotHere for a missing folder, which the libraries would look for on the hub."""
    if model.startswith(("/", "./", "../")) and not Path(model).is_dir():
        raise EngineNotHere(f"the model folder {private(model)} is not on this worker")
