"""Tasks: what is done with a row, and which columns its answer has."""

from typing import Annotated

from pydantic import Field

from nightshift.common.spec.tasks.function import FunctionTask
from nightshift.common.spec.tasks.generate import GenerateTask
from nightshift.common.spec.tasks.pooling import ClassifyTask, EmbedTask, ScoreTask
from nightshift.common.spec.tasks.requests import RequestsTask

Task = Annotated[
    GenerateTask | EmbedTask | ClassifyTask | ScoreTask | RequestsTask | FunctionTask,
    Field(discriminator="kind"),
]
