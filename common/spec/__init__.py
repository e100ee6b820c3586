"""The job spec: what a user writes in YAML or flags, and what the ledger keeps as JSON."""

from nightshift.common.spec.engines import (
    FunctionEngineSpec,
    OpenaiEngineSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.spec.job import RESERVED_ANSWERS, RESERVED_COLUMNS, JobSpec, digest
from nightshift.common.spec.parse import load_spec, parse_spec
from nightshift.common.spec.section import STORED
from nightshift.common.spec.sections import (
    BatchSpec,
    InputSpec,
    LimitsSpec,
    OutputSpec,
    RetrySpec,
)
from nightshift.common.spec.tasks import Task
from nightshift.common.spec.tasks.function import FunctionTask
from nightshift.common.spec.tasks.generate import PARSED, GenerateTask
from nightshift.common.spec.tasks.messages import ImagePart, Message, TextPart
from nightshift.common.spec.tasks.pooling import ClassifyTask, EmbedTask, ScoreTask
from nightshift.common.spec.tasks.requests import (
    REQUEST_COLUMNS,
    REQUEST_ID,
    Endpoint,
    RequestsTask,
)
from nightshift.common.spec.tasks.sampling import Sampling
from nightshift.common.spec.tasks.section import TaskSection
from nightshift.common.spec.tasks.structured import OnInvalid, StructuredOutput

__all__ = [
    "PARSED",
    "REQUEST_COLUMNS",
    "REQUEST_ID",
    "RESERVED_ANSWERS",
    "RESERVED_COLUMNS",
    "STORED",
    "BatchSpec",
    "ClassifyTask",
    "EmbedTask",
    "Endpoint",
    "FunctionEngineSpec",
    "FunctionTask",
    "GenerateTask",
    "ImagePart",
    "InputSpec",
    "JobSpec",
    "LimitsSpec",
    "Message",
    "OnInvalid",
    "OpenaiEngineSpec",
    "OutputSpec",
    "RequestsTask",
    "RetrySpec",
    "Sampling",
    "ScoreTask",
    "StructuredOutput",
    "Task",
    "TaskSection",
    "TextPart",
    "TransformersEngineSpec",
    "VllmEngineSpec",
    "digest",
    "load_spec",
    "parse_spec",
]
