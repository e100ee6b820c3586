"""Row to request: renders a task's templates over the columns of a row."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from jinja2 import Template

from common.spec import FunctionTask, GenerateTask
from common.states import RowErrorKind
from common.templates import compiled, rendered
from common.values import to_rows
from worker.engines.protocol import Refusal, Request, Task


class Renderer:
    """Compiled templates of one job."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._templates: list[tuple[str, Template]] = []
        self._lengths: str | None = None
        if isinstance(task, GenerateTask):
            roles = [message.role for message in task.messages or ()] or ["user"]
            self._templates = [
                (role, compiled(source)) for role, source in zip(roles, task.templates, strict=True)
            ]
            self._lengths = task.sampling.max_tokens_column

    def render(
        self, table: pa.Table, row_index: Sequence[int]
    ) -> Iterator[Request | tuple[int, Refusal]]:
        """One request a row, or the row's index with why it cannot be rendered.

        `table` holds the columns that the task uses, aligned with `row_index`.
        """
        for index, row in zip(row_index, to_rows(table), strict=True):
            if isinstance(self._task, FunctionTask):
                yield Request(index, row=row)
                continue
            try:
                yield self._request(index, row)
            # A template calls methods and operators of the row's values, which raise what
            # they like; it must never take the batch down.
            except Exception as error:
                yield index, _refusal(error)

    def _request(self, index: int, row: dict[str, Any]) -> Request:
        messages = [
            {"role": role, "content": rendered(template, row)} for role, template in self._templates
        ]
        plain = isinstance(self._task, GenerateTask) and self._task.prompt is not None
        longest = None if self._lengths is None else _length(self._lengths, row[self._lengths])
        return Request(index, messages=messages, is_plain_prompt=plain, max_tokens=longest)


def _length(column: str, value: Any) -> int | None:
    """A row's own max_tokens; ValueError for what is no number of tokens."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"the column {column!r} holds {value!r}, which is no number of tokens")
    return value


def _refusal(error: Exception) -> Refusal:
    return Refusal(
        RowErrorKind.RENDER_ERROR,
        f"the row cannot be rendered: {type(error).__name__}: {error}",
    )
