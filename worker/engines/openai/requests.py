"""How rows become requests of the OpenAI API, and responses become outcomes; a class a task."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx2
import numpy as np

from nightshift.common.errors import Permanent
from nightshift.common.permits import models
from nightshift.common.spec import EmbedTask, GenerateTask, OpenaiEngineSpec, RequestsTask, Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines import pooling
from nightshift.worker.engines.openai.chat import ChatCompletions
from nightshift.worker.engines.openai.endpoint import (
    Body,
    Endpoint,
    reasoning_tokens,
    usage,
    with_args,
)
from nightshift.worker.engines.openai.errors import RequestError
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, response_columns
from nightshift.worker.engines.resampling import UNSAMPLED, RowSampling

BYTES_A_TOKEN = 4
"""About how many UTF-8 bytes of English a token has."""

IMAGE_TOKENS = 1000
"""Estimate for an image, until the server has counted its tokens."""

LONGEST = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that hold the length of the longest answer."""

DATA_URL = "data:image/"
"""How an image in a body begins."""


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

    def outcomes(self, response: httpx2.Response) -> Sequence[Outcome]:
        """The first vector, cut and scaled as the task says; a cut vector is scaled by default."""
        data = json.loads(response.text)
        prompt_tokens, _ = usage(data)
        vector = np.asarray(data["data"][0]["embedding"], dtype=np.float64)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise ValueError("the embedding is no list of finite numbers")
        dimensions = self._task.dimensions
        if dimensions is not None and dimensions > vector.size:
            refusal = Refusal(
                RowErrorKind.REFUSED,
                f"the embedding has {vector.size} dimensions, fewer than task.dimensions "
                f"{dimensions}",
                prompt_tokens,
            )
            return [refusal]
        return pooling.embeddings(vector[None], self._task, dimensions is not None, [prompt_tokens])


PROBES: dict[str, Body] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/completions": {"prompt": "Hi", "max_tokens": 1},
    "/responses": {"input": "Hi", "max_output_tokens": 16},
    "/embeddings": {"input": "Hi"},
}


class PassThrough(Endpoint):
    """A request of a batch file, as its author wrote it."""

    def __init__(
        self, task: RequestsTask, engine: OpenaiEngineSpec, allowed_models: Sequence[str]
    ) -> None:
        self.path = (task.endpoint or "").removeprefix("/v1")
        self._engine = engine
        self._allowed_models = allowed_models

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """The row's own body, with the engine's model where the body names none.

        ValueError for a model that the operator does not allow.
        """
        body = dict(request.body or {})
        if body.get("stream"):
            raise ValueError("the body asks for a stream, which a batch cannot take")
        if not body.get("model"):
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

    def outcomes(self, response: httpx2.Response) -> Sequence[Outcome]:
        """The response as it is."""
        data = json.loads(response.text)
        if not isinstance(data, dict):
            raise TypeError("the answer is no JSON object")
        prompt_tokens, output_tokens = usage(data)
        request_id = response.headers.get("x-request-id") or data.get("id")
        columns = response_columns(response.status_code, request_id, response.text)
        answer = Answer(
            columns,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=reasoning_tokens(data),
        )
        return [answer]

    def refusal(self, error: RequestError) -> Refusal:
        """The refusal with the server's response, for the file of errors."""
        columns = {}
        if error.body is not None:
            columns = response_columns(error.status, error.request_id, error.body)
        return Refusal(error.kind, str(error), columns=columns)


def estimated_tokens(body: Mapping[str, Any]) -> float:
    """About what a request uses at most: its text, its images and its longest answer."""
    images: list[str] = []
    prompts = [_without_images(body.get(name), images) for name in ("messages", "prompt", "input")]
    text = json.dumps([each for each in prompts if each is not None], ensure_ascii=False)
    size = len(text.encode(errors="surrogatepass"))
    longest = next(filter(None, map(body.get, LONGEST)), 0)
    answers = body.get("n") or 1
    if not isinstance(longest, int) or not isinstance(answers, int):
        longest = answers = 0  # the server refuses such a body
    tokens = size / BYTES_A_TOKEN + len(images) * IMAGE_TOKENS
    return tokens + max(0, longest * answers)


def _without_images(value: Any, images: list[str]) -> Any:
    """The value with None in place of its images, which are added to `images`.

    An image may have 80 MB, of which no copy is made.
    """
    match value:
        case str() if value.startswith(DATA_URL):
            images.append(value)
            return None
        case Mapping():
            return {name: _without_images(each, images) for name, each in value.items()}
        case list() | tuple():
            return [_without_images(each, images) for each in value]
    return value
