"""Row to request: renders a task's templates over the columns of a row."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from nightshift.common import request_checks
from nightshift.common.formats.jsonl.lines import parse_line
from nightshift.common.formats.values import to_rows
from nightshift.common.spec import (
    ClassifyTask,
    EmbedTask,
    FunctionTask,
    GenerateTask,
    ImagePart,
    Message,
    RequestsTask,
    ScoreTask,
    Task,
)
from nightshift.common.spec.tasks import template_arguments
from nightshift.common.states import RowErrorKind
from nightshift.common.templates.chats import chat
from nightshift.common.templates.sandbox import compiled, rendered_all
from nightshift.worker.engines.images import Image
from nightshift.worker.engines.protocol import Refusal, Request, response_columns
from nightshift.worker.rows import request_numbers
from nightshift.worker.rows.own_sampling import own_sampling


class Renderer:
    """Renders rows with the compiled templates of one job."""

    def __init__(
        self, task: Task, roots: Sequence[str] = (), job_roots: Sequence[str] | None = None
    ) -> None:
        """Images are read only below `roots`, without any from anywhere, and below `job_roots`, to which
        None holds no image.
        """
        self.job_roots = None if job_roots is None else tuple(job_roots)
        self._task = task
        self._roots = tuple(roots)
        self._templates = [compiled(source) for source in task.templates]
        self._sampled = task.sampling_columns.named if isinstance(task, GenerateTask) else {}

    def render(
        self,
        table: pa.Table,
        row_index: Sequence[int],
        rendered_one: Callable[[], object] = lambda: None,
    ) -> tuple[list[Request], dict[int, Refusal]]:
        """The requests of the rows, and by row index why a row cannot be rendered.

        `table` holds the columns that the task uses, aligned with `row_index`. `rendered_one` is
        called after each row that is rendered.
        """
        if isinstance(self._task, FunctionTask):  # it gets the table itself
            return [Request(index) for index in row_index], {}
        requests: list[Request] = []
        refused: dict[int, Refusal] = {}
        for index, row in zip(row_index, to_rows(table), strict=True):
            try:
                requests.append(self._request(index, row))
            except BadRequest as error:
                refused[index] = Refusal(RowErrorKind.BAD_RECORD, str(error))
            except UnsupportedRequest as error:
                refused[index] = error.refusal
            # A template calls methods and operators of the row's values, which raise any type.
            except Exception as error:
                why = f"the row cannot be rendered: {type(error).__name__}: {error}"
                refused[index] = Refusal(RowErrorKind.RENDER_ERROR, why)
            rendered_one()
        return requests, refused

    def _request(self, index: int, row: dict[str, Any]) -> Request:
        match self._task:
            case RequestsTask() as task:
                if task.skipped_rows is not None and index in task.skipped_rows:
                    raise BadRequest(task.skipped_rows[index])
                return Request(index, body=_body(row, task.endpoint))
            case GenerateTask() as task:
                return self._generation(task, index, row)
            case EmbedTask() | ClassifyTask() | ScoreTask():
                text, *pair = rendered_all(self._templates, row)
                return Request(index, text=text, text_pair=pair[0] if pair else None)
            case FunctionTask():
                raise TypeError("rows of a function are not rendered")

    def _generation(self, task: GenerateTask, index: int, row: dict[str, Any]) -> Request:
        texts = rendered_all(self._templates, row)
        if task.messages_column is not None:
            messages = chat(task.messages_column, row[task.messages_column])
        elif task.messages is None:
            messages = [{"role": "user", "content": next(texts)}]
        else:
            messages = [
                {"role": message.role, "content": self._content(message, row, texts)}
                for message in task.messages
            ]
        sampling = own_sampling(self._sampled, row)
        own = task.sampling.max_tokens_column
        longest = sampling.pop("max_tokens", None)
        if own is not None:
            longest = _length(own, row[own])
        return Request(
            index,
            messages=messages,
            is_plain_prompt=task.prompt is not None,
            max_tokens=None if longest is None else int(longest),
            template_arguments=template_arguments.of_row(task.chat_template_kwargs, row),
            sampling=sampling,
        )

    def _content(
        self, message: Message, row: dict[str, Any], texts: Iterator[str]
    ) -> str | list[dict[str, Any]]:
        if isinstance(message.content, str):
            return next(texts)
        return [
            {"type": "image", "image": self._image(part.column, row[part.column])}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": next(texts)}
            for part in message.content
        ]

    def _image(self, column: str, value: Any) -> Image:
        if not value or not isinstance(value, bytes | str):
            raise ValueError(f"the column {column!r} holds no image ({value!r:.50})")
        own = self._task.image_roots if isinstance(self._task, GenerateTask) else ()
        return Image(value, self._roots, tuple(own), self.job_roots)


class BadRequest(ValueError):
    """A request that is sent to no engine."""


class UnsupportedRequest(ValueError):
    """A request with a field that no batch can take; `refusal` is its outcome, as a server would refuse it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        error = {"message": why, "type": "invalid_request_error", "param": field, "code": None}
        columns = response_columns(400, None, json.dumps({"error": error}))
        self.refusal = Refusal(RowErrorKind.REFUSED, why, columns=columns)


def _body(row: dict[str, Any], endpoint: str) -> dict[str, Any]:
    """The body of a line of an OpenAI batch file, which was read as text: half of a character may stand in it,
    which no server can be sent. Raises UnsupportedRequest for a body that no batch can take.
    """
    if row["url"] != endpoint:
        raise BadRequest(f"the url is {row['url'][:100]!r}, and the job is for {endpoint}")
    body: dict[str, Any] = parse_line(row["body"].encode())
    if (found := request_checks.mistake(body, endpoint)) is not None:
        raise UnsupportedRequest(*found)
    if (why := request_numbers.refusal(body)) is not None:
        raise BadRequest(why)
    return body


def _length(column: str, value: Any) -> int | None:
    """The max_tokens of the row; ValueError for a value that is no number of tokens."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"the column {column!r} holds {value!r}, which is no number of tokens")
    return value
