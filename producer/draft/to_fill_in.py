"""What a draft leaves to a person, and the refusal of a spec in which it still stands."""

import pyarrow as pa

from nightshift.common.errors import BadInput
from nightshift.common.settings import Settings
from nightshift.common.spec import FunctionEngineSpec, JobSpec

MARK = "FILL IN"
"""Stands in a draft for what only a person knows. No model and no folder is called so."""


def places(spec: JobSpec) -> list[str]:
    """Where the mark still stands, as a spec and the flags of `run` name the places."""
    found = []
    if not isinstance(spec.engine, FunctionEngineSpec) and spec.engine.model == MARK:
        found.append("engine.model")
    if any(MARK in template for template in spec.task.templates):
        found.append("task.prompt")
    return found


def check_job(spec: JobSpec, _schema: pa.Schema, settings: Settings) -> None:
    """The same at submit."""
    check_spec(spec, settings)


def check_spec(spec: JobSpec, _settings: Settings) -> None:
    """BadInput for a spec that nobody has filled in."""
    if found := places(spec):
        flags = " ".join(f"--{place.rpartition('.')[2]} …" for place in found)
        raise BadInput(
            f"{' and '.join(found)} still {'says' if len(found) == 1 else 'say'} {MARK}: write yours there, or "
            f"give {flags}"
        )
