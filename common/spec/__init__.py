"""The job spec: what a user writes in YAML or flags, and what the ledger keeps as JSON."""

from nightshift.common.spec.engines import (
    FunctionEngineSpec,
    OpenaiEngineSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.spec.job import (
    ANSWERED_BY,
    RESERVED_ANSWERS,
    RESERVED_COLUMNS,
    JobSpec,
    digest,
)
from nightshift.common.spec.parse import load_spec, parse_spec
from nightshift.common.spec.section import STORED
from nightshift.common.spec.sections import InputSpec
from nightshift.common.spec.tasks import FunctionTask, Task
from nightshift.common.spec.tasks.generate import (
    OUTPUTS,
    PARSED,
    VOTE_SHARE,
    GenerateTask,
    ImagePart,
    Message,
)
from nightshift.common.spec.tasks.pooling import ClassifyTask, EmbedTask, ScoreTask
from nightshift.common.spec.tasks.requests import (
    REQUEST_COLUMNS,
    REQUEST_ID,
    Endpoint,
    RequestsTask,
)
from nightshift.common.spec.tasks.sampling import Sampling
from nightshift.common.spec.tasks.section import TaskSection
from nightshift.common.spec.tasks.structured import StructuredOutput

__all__ = [
    "ANSWERED_BY",
    "OUTPUTS",
    "PARSED",
    "REQUEST_COLUMNS",
    "REQUEST_ID",
    "RESERVED_ANSWERS",
    "RESERVED_COLUMNS",
    "STORED",
    "VOTE_SHARE",
    "ClassifyTask",
    "EmbedTask",
    "Endpoint",
    "FunctionEngineSpec",
    "FunctionTask",
    "GenerateTask",
    "ImagePart",
    "InputSpec",
    "JobSpec",
    "Message",
    "OpenaiEngineSpec",
    "RequestsTask",
    "Sampling",
    "ScoreTask",
    "StructuredOutput",
    "Task",
    "TaskSection",
    "TransformersEngineSpec",
    "VllmEngineSpec",
    "digest",
    "load_spec",
    "parse_spec",
]
