"""How rows become requests of the OpenAI API, and responses become outcomes; a class a task."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
import numpy as np

from nightshift.common import remotes
from nightshift.common.errors import Permanent
from nightshift.common.permits import models
from nightshift.common.spec import EmbedTask, GenerateTask, OpenaiEngineSpec, RequestsTask, Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines import pooling
from nightshift.worker.engines.images import Image, with_images
from nightshift.worker.engines.openai.errors import RequestError
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, response_columns
from nightshift.worker.engines.structured import UNSAMPLED, AnswerCheck, RowSampling

BYTES_A_TOKEN = 4
"""About how many UTF-8 bytes of English a token has."""

IMAGE_TOKENS = 1000
"""Estimate for an image, until the server has counted its tokens."""

LONGEST = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that hold the length of the longest answer."""

DATA_URL = "data:image/"
"""How an image in a body begins."""

Body = dict[str, Any]


class Endpoint(Protocol):
    """The endpoint that one task uses; `path` is below the base URL."""

    path: str

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """The JSON body of a row's request; ValueError for a row that cannot be sent."""

    def probe(self) -> Body:
        """The body of the smallest request of this kind."""

    def outcome(self, response: httpx2.Response) -> Outcome:
        """The row's outcome; ValueError, KeyError, TypeError, IndexError or AttributeError for a
        response that the API does not know.
        """

    def parsed(self, response: httpx2.Response) -> Outcome | RequestError:
        """The outcome in a 2xx response; RequestError for one that the API does not know."""
        try:
            return self.outcome(response)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return RequestError(
                f"the server's answer is none of the OpenAI API ({type(error).__name__}: {error})"
            )

    def refusal(self, error: RequestError) -> Refusal:
        """The outcome of a row that is itself to blame for the error."""
        return Refusal(error.kind, str(error))


def endpoint_for(
    task: Task, engine: OpenaiEngineSpec, allowed_models: Sequence[str] = ()
) -> Endpoint:
    """The endpoint for a task, whose rows may name models of the allowed patterns."""
    match task:
        case GenerateTask():
            return ChatCompletions(task, engine)
        case EmbedTask():
            return Embeddings(task, engine)
        case RequestsTask():
            return PassThrough(task, engine, allowed_models)
        case other:
            raise Permanent(f"engine.backend openai does not run task.kind {other.kind}")


class ChatCompletions(Endpoint):
    """Text generation as a chat completion."""

    path = "/chat/completions"

    def __init__(self, task: GenerateTask, engine: OpenaiEngineSpec) -> None:
        self._task = task
        self._engine = engine
        self._check = AnswerCheck(task.output)

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """Messages, sampling and structured output; `engine.args` replace what they name."""
        fields = {
            "model": self._engine.model,
            "messages": with_images(request.messages or (), _image_part),
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            **_sampling(self._task, request, self._engine.base_url),
            **_structured_output(self._task),
        }
        return _with_args(fields, self._engine.args)

    def probe(self) -> Body:
        """One word in, one token out."""
        hello = Request(0, messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        return self.body(hello, UNSAMPLED)

    def outcome(self, response: httpx2.Response) -> Outcome:
        """The text of the first choice, checked against the structured output."""
        data = json.loads(response.text)
        choice = data["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        prompt_tokens, output_tokens = usage(data)
        content = message.get("content")
        if content is None and (message.get("refusal") or reason == "content_filter"):
            return Refusal(
                RowErrorKind.REFUSED,
                f"the model refused: {message.get('refusal') or reason}",
                prompt_tokens,
                output_tokens,
            )
        if content is not None and not isinstance(content, str):
            raise TypeError("the answer's content is no text")
        return self._check.outcome(content or "", reason, prompt_tokens, output_tokens)


def _image_part(image: Image) -> Body:
    """The image as a data: URL, since the server can read no store of ours; or BadImage."""
    return {"type": "image_url", "image_url": {"url": image.data_url()}}


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
        return _with_args(fields, self._engine.args)

    def probe(self) -> Body:
        """One word."""
        return self.body(Request(0, text="Hi"), UNSAMPLED)

    def outcome(self, response: httpx2.Response) -> Outcome:
        """The first vector, cut and scaled as the task says; a cut vector is scaled by default."""
        data = json.loads(response.text)
        prompt_tokens, _ = usage(data)
        vector = np.asarray(data["data"][0]["embedding"], dtype=np.float64)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise ValueError("the embedding is no list of finite numbers")
        dimensions = self._task.dimensions
        if dimensions is not None and dimensions > vector.size:
            return Refusal(
                RowErrorKind.REFUSED,
                f"the embedding has {vector.size} dimensions, fewer than task.dimensions "
                f"{dimensions}",
                prompt_tokens,
            )
        return pooling.embedding(vector, self._task, dimensions is not None, prompt_tokens)


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
                f"the body names the model {body['model']!r}, which is none of those that "
                "NIGHTSHIFT_ALLOWED_MODELS names"
            )
        return body

    def probe(self) -> Body:
        """The smallest request of the endpoint."""
        return {"model": self._engine.model, **PROBES[self.path]}

    def outcome(self, response: httpx2.Response) -> Outcome:
        """The response as it is."""
        data = json.loads(response.text)
        if not isinstance(data, dict):
            raise TypeError("the answer is no JSON object")
        prompt_tokens, output_tokens = usage(data)
        request_id = response.headers.get("x-request-id") or data.get("id")
        columns = response_columns(response.status_code, request_id, response.text)
        return Answer(columns, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def refusal(self, error: RequestError) -> Refusal:
        """The refusal with the server's response, for the file of errors."""
        columns = {}
        if error.body is not None:
            columns = response_columns(error.status, error.request_id, error.body)
        return Refusal(error.kind, str(error), columns=columns)


def _sampling(task: GenerateTask, request: Request, base_url: str) -> Body:
    """The fields of OpenAI, and those of other servers where they are not the default."""
    sampling = task.sampling
    longest = min(sampling.max_tokens, request.max_tokens or sampling.max_tokens)
    # OpenAI's newer models take only the new name, and many other servers only the old one.
    is_openai = urlsplit(base_url).hostname == urlsplit(remotes.OPENAI).hostname
    body: Body = {"max_completion_tokens" if is_openai else "max_tokens": longest}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    # The others have their own place in a body.
    own = {"temperature", "seed", "stop", "max_tokens", "max_tokens_column"}
    body |= sampling.model_dump(exclude=own, exclude_defaults=True)
    if sampling.min_tokens:
        body["min_tokens"] = min(sampling.min_tokens, longest)
    return body


def _structured_output(task: GenerateTask) -> Body:
    """`response_format` for a schema; vLLM's `structured_outputs` for what the API lacks."""
    output = task.output
    if output is None:
        return {}
    if output.json_schema is not None:
        schema = {"name": "answer", "schema": output.json_schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    constraint = output.model_dump(include={"choice", "regex", "grammar"}, exclude_none=True)
    return {"structured_outputs": constraint}


def _with_args(body: Body, args: Mapping[str, Any]) -> Body:
    """The body with `engine.args`, of which a null removes a field."""
    return {name: value for name, value in {**body, **args}.items() if value is not None}


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


def usage(data: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and output tokens as the server counts them, cached and reasoning tokens included.

    A count that is missing or impossible is 0.
    """
    counts = data.get("usage")
    if not isinstance(counts, Mapping):
        return 0, 0
    prompt = counts.get("prompt_tokens", counts.get("input_tokens"))
    output = counts.get("completion_tokens", counts.get("output_tokens"))
    return _count(prompt), _count(output)


def _count(value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole and 0 <= value < 2**31 else 0
