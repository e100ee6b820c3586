"""Run a model over millions of rows on a fleet of GPU workers: what is imported and installed.

`import nightshift as ns` is the public Python API: `ns.run` works on this machine, `ns.Client` gives
jobs to a fleet. A name is imported when it is first used, since each of our own processes imports this
package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.client import Client
    from nightshift.common.errors import BadInput, NightshiftError
    from nightshift.common.spec import (
        ClassifyTask,
        EmbedTask,
        FunctionEngineSpec,
        FunctionTask,
        GenerateTask,
        InputSpec,
        JobSpec,
        Message,
        OpenaiEngineSpec,
        RequestsTask,
        Sampling,
        ScoreTask,
        StructuredOutput,
        TransformersEngineSpec,
        VllmEngineSpec,
    )
    from nightshift.common.spec.sections import BatchSpec, LimitsSpec, OutputSpec, RetrySpec
    from nightshift.common.states import JobState
    from nightshift.inputs import SqlRows, sql
    from nightshift.job import Job, JobStopped
    from nightshift.one_machine import run
    from nightshift.snapshot import JobStatus

PLACES = {
    "nightshift.one_machine": ("run",),
    "nightshift.client": ("Client",),
    "nightshift.job": ("Job", "JobStopped"),
    "nightshift.snapshot": ("JobStatus",),
    "nightshift.inputs": ("sql", "SqlRows"),
    "nightshift.common.errors": ("NightshiftError", "BadInput"),
    "nightshift.common.states": ("JobState",),
    "nightshift.common.spec": (
        "JobSpec",
        "InputSpec",
        "GenerateTask",
        "Message",
        "Sampling",
        "StructuredOutput",
        "EmbedTask",
        "ClassifyTask",
        "ScoreTask",
        "RequestsTask",
        "FunctionTask",
        "VllmEngineSpec",
        "TransformersEngineSpec",
        "OpenaiEngineSpec",
        "FunctionEngineSpec",
    ),
    "nightshift.common.spec.sections": ("OutputSpec", "BatchSpec", "RetrySpec", "LimitsSpec"),
}
"""Every public name by the module that has it, in the order of docs/python.md."""

__all__ = [
    "BadInput",
    "BatchSpec",
    "ClassifyTask",
    "Client",
    "EmbedTask",
    "FunctionEngineSpec",
    "FunctionTask",
    "GenerateTask",
    "InputSpec",
    "Job",
    "JobSpec",
    "JobState",
    "JobStatus",
    "JobStopped",
    "LimitsSpec",
    "Message",
    "NightshiftError",
    "OpenaiEngineSpec",
    "OutputSpec",
    "RequestsTask",
    "RetrySpec",
    "Sampling",
    "ScoreTask",
    "SqlRows",
    "StructuredOutput",
    "TransformersEngineSpec",
    "VllmEngineSpec",
    "run",
    "sql",
]


def __getattr__(name: str) -> object:
    for module, names in PLACES.items():
        if name in names:
            globals()[name] = found = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module 'nightshift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
