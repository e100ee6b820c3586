"""Task requests: rows that are lines of an OpenAI batch file."""

from typing import Literal, get_args

from pydantic import Field

from nightshift.common.spec.section import Absent
from nightshift.common.spec.tasks.section import TaskSection

REQUEST_COLUMNS = ("custom_id", "method", "url", "body")
"""Columns of a line of an OpenAI batch file; `body` is JSON text."""

REQUEST_ID = REQUEST_COLUMNS[0]
"""The column that names a request."""

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]

ENDPOINTS: tuple[str, ...] = get_args(Endpoint)


class RequestsTask(TaskSection):
    """Rows that are requests of the OpenAI batch format: each says its own messages and sampling."""

    kind: Literal["requests"] = Field(
        description="Rows that are requests of the OpenAI batch format: each says its own messages "
        "and sampling."
    )
    endpoint: Endpoint = Field(
        "/v1/chat/completions",
        description="What every request asks for; its `url`. That of the first line when absent.",
    )
    skipped_rows: Absent[dict[int, str]] = Field(
        None,
        description="Rows by number that are not sent, each with the error of its line. For batches of the HTTP "
        "API with `on_bad_line: skip`.",
    )

    model_from: Absent[Literal["engine"]] = Field(
        None,
        description="engine: a remote server gets engine.model in place of the model that a request names; the "
        "response keeps the request's name. `nightshift serve` sets it, since its clients name models by the "
        "operator's table. When absent, a remote server gets the request's own model.",
    )

    @property
    def answers(self) -> tuple[str, ...]:
        """What the API would have answered."""
        return ("status_code", "request_id", "response")

    @property
    def runner(self) -> str:
        """That of the task which the endpoint stands for: both share an engine."""
        return "embed" if self.endpoint == "/v1/embeddings" else "generate"

    @property
    def columns(self) -> frozenset[str]:
        """The columns of a batch file."""
        return frozenset(REQUEST_COLUMNS)
