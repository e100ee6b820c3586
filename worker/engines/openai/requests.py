"""How rows become requests of the OpenAI API, and responses become outcomes; a class a task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from nightshift.common.errors import Permanent
from nightshift.common.formats.jsonl.members import with_member
from nightshift.common.permits import models
from nightshift.common.spec import EmbedTask, GenerateTask, OpenaiEngineSpec, RequestsTask, Task
from nightshift.common.states import RowErrorKind
from nightshift.common.text import counted
from nightshift.worker.engines import pooling
from nightshift.worker.engines.openai.chat import ChatCompletions, broken_text, is_broken
from nightshift.worker.engines.openai.endpoint import (
    MOST_MESSAGE,
    Body,
    Endpoint,
    Response,
    by_index,
    with_args,
)
from nightshift.worker.engines.openai.errors import RequestError
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, response_columns
from nightshift.worker.engines.resampling import UNSAMPLED, RowSampling


def endpoint_for(
    task: Task,
    engine: OpenaiEngineSpec,
    allowed_models: Sequence[str] = (),
    resolved: Mapping[str, Any] = MappingProxyType({}),
) -> Endpoint:
    """The endpoint for a task, whose rows may name models of the allowed patterns. `resolved` is what was fixed
    for the job.
    """
    match task:
        case GenerateTask():
            return ChatCompletions(task, engine, resolved)
        case EmbedTask():
            return Embeddings(task, engine)
        case RequestsTask():
            return PassThrough(task, engine, allowed_models)
        case other:
            raise Permanent(f"engine.backend openai does not run task.kind {other.kind}")


class Embeddings(Endpoint):
    """A vector for a text."""

    path = "/embeddings"

    def __init__(self, task: EmbedTask, engine: OpenaiEngineSpec) -> None:
        self._task = task
        self._engine = engine

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """Asks for numbers as JSON: not every server can send base64."""
        fields = {
            "model": self._engine.model,
            "input": request.text,
            "encoding_format": "float",
        }
        return with_args(fields, self._engine.args)

    def probe(self) -> Body:
        """One word."""
        return self.body(Request(0, text="Hi"), UNSAMPLED)

    def outcomes(self, data: Any) -> Sequence[Outcome]:
        """The vector, cut and scaled as the task says; a cut vector is scaled by default."""
        found = by_index(data["data"])
        if len(found) != 1 or found[0].get("index") not in (None, 0):
            raise ValueError(
                f"it has {len(found)} embeddings for one text, or none with the index 0"
            )
        vector = np.asarray(found[0]["embedding"], dtype=np.float64)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise ValueError("the embedding is not a list of finite numbers")
        dimensions = self._task.dimensions
        if dimensions is not None and dimensions > vector.size:
            refusal = Refusal(
                RowErrorKind.REFUSED,
                f"the embedding has {vector.size} dimensions, fewer than task.dimensions "
                f"{dimensions}",
            )
            return [refusal]
        return pooling.embeddings(vector[None], self._task, dimensions is not None, [0])


PROBES: dict[str, Body] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/completions": {"prompt": "Hi", "max_tokens": 1},
    "/responses": {"input": "Hi", "max_output_tokens": 16},
    "/embeddings": {"input": "Hi"},
}


RESULTS = {
    "/chat/completions": "choices",
    "/completions": "choices",
    "/responses": "output",
    "/embeddings": "data",
}
"""The field of a response that holds its results."""

ENDED = (None, "completed", "incomplete")
"""Values of `status`, which responses alone have, of a response that holds an answer, whole or cut."""


def _inputs(body: Mapping[str, Any] | None) -> int:
    """How many inputs a request for embeddings has: a list of numbers is the tokens of one."""
    given = (body or {}).get("input")
    if isinstance(given, list) and given and not isinstance(given[0], int):
        return len(given)
    return 1


class PassThrough(Endpoint):
    """A request of a batch file, as its author wrote it."""

    def __init__(
        self, task: RequestsTask, engine: OpenaiEngineSpec, allowed_models: Sequence[str]
    ) -> None:
        self.path = (task.endpoint or "").removeprefix("/v1")
        self._engine = engine
        self._model_is_fixed = task.model_from == "engine"
        self._allowed_models = allowed_models

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """The row's own body, with the engine's model if the body names none, or if the spec says so.

        ValueError for a model that the operator does not allow.
        """
        body = dict(request.body or {})
        if self._model_is_fixed or not body.get("model"):
            body["model"] = self._engine.model
        if not models.is_allowed(str(body["model"]), self._allowed_models):
            raise ValueError(
                f"the body names the model {body['model']!r}, which is not one of those that "
                "NIGHTSHIFT_ALLOWED_MODELS names"
            )
        return body

    def probe(self) -> Body:
        """The smallest request of the endpoint."""
        return {"model": self._engine.model, **PROBES[self.path]}

    def parsed(self, response: Response, request: Request) -> Sequence[Outcome] | RequestError:
        """Return the response unchanged if it is one of the endpoint, but for `model`: the name in the request, if that
        is not the engine's. The same holds for the response of a RequestError.
        """
        found = super().parsed(response, request)
        if isinstance(found, RequestError):
            return replace(found, body=found.body and self._renamed(response, request))
        if self.path == "/embeddings" and (wanted := _inputs(request.body)) != len(
            response.data["data"]
        ):
            return RequestError(
                f"the response has {counted(len(response.data['data']), 'embedding')} for {counted(wanted, 'input')}",
                is_answered=True,
                status=response.status,
                request_id=response.request_id,
                body=self._renamed(response, request),
            )
        text = self._renamed(response, request)
        return [Answer(response_columns(response.status, response.request_id, text))]

    def _renamed(self, response: Response, request: Request) -> str:
        """The text of a response with the name that the request has for the model."""
        named, data = (request.body or {}).get("model"), response.data
        is_other = isinstance(data, Mapping) and data.get("model", named) != named
        if self._model_is_fixed and named and is_other:
            return with_member(response.text, "model", json.dumps(named))
        return response.text

    def outcomes(self, data: Any) -> Sequence[Outcome]:
        """Nothing: raises what `parsed` handles for a response that is not one of the endpoint, or whose server gave
        up before the model ended.
        """
        name = RESULTS[self.path]
        found = data[name]
        if not isinstance(found, list):
            raise TypeError(f"its {name} is not a list")
        if data.get("status") not in ENDED:
            raise ValueError(f"its status is {data['status']!r}"[:MOST_MESSAGE])
        # A response that was cut may have nothing but thoughts, which some servers leave out.
        if not found and data.get("status") != "incomplete":
            raise ValueError(f"its {name} is empty")
        if name == "choices" and all(map(is_broken, found)):
            raise ValueError(broken_text(found[0]))
        return []

    def refusal(self, error: RequestError) -> Refusal:
        """The refusal with the server's response, for the file of errors."""
        columns = {}
        if error.body is not None:
            columns = response_columns(error.status, error.request_id, error.body)
        return Refusal(error.kind, str(error), columns=columns)
