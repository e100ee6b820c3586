"""Task function: rows in, columns out, by a Python function."""

from typing import Literal

from pydantic import Field

from nightshift.common.spec.tasks.section import TaskSection


class FunctionTask(TaskSection):
    """Rows in, columns out, by a Python function."""

    has_open_columns = True

    kind: Literal["function"] = Field(description="Rows in, columns out, by a Python function.")
