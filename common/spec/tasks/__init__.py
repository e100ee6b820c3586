"""Tasks: what is done with a row, and which columns its answer has."""

from typing import Annotated, Literal

from pydantic import Field

from nightshift.common.spec.tasks.generate import GenerateTask
from nightshift.common.spec.tasks.pooling import ClassifyTask, EmbedTask, ScoreTask
from nightshift.common.spec.tasks.requests import RequestsTask
from nightshift.common.spec.tasks.section import TaskSection


class FunctionTask(TaskSection):
    """Rows in, columns out, by a Python function."""

    has_open_columns = True

    kind: Literal["function"] = Field(description="Rows in, columns out, by a Python function.")

    @property
    def shares(self) -> bool:
        """Only where the spec says that the function is pure."""
        return self.dedupe is True


Task = Annotated[
    GenerateTask | EmbedTask | ClassifyTask | ScoreTask | RequestsTask | FunctionTask,
    Field(discriminator="kind"),
]
