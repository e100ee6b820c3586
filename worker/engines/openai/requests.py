"""How the rows of each task become requests of the OpenAI API, and its answers outcomes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from nightshift.common import remotes
from nightshift.common.errors import Permanent
from nightshift.common.spec import (
    EmbedTask,
    GenerateTask,
    OpenaiEngineSpec,
    RequestsTask,
    Sampling,
    StructuredOutput,
    Task,
)
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.openai.errors import TroubleError
from nightshift.worker.engines.pooling import embedding
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request
from nightshift.worker.engines.resampling import Try
from nightshift.worker.engines.structured import Check

BYTES_A_TOKEN = 4
"""What a token of English is about, in UTF-8 bytes."""

IMAGE_TOKENS = 1000
"""What an image is taken for until the server has said what it was."""

DATA_URL = "data:image/"
"""How an image in a body begins."""

ONCE = Try(0, 0.0, None)
"""How a row is asked that is not sampled, or says itself how."""

Body = dict[str, Any]


class Asker(Protocol):
    """One task: where it asks (`path`, below the base URL), what it sends and what comes back."""

    path: str

    def body(self, request: Request, how: Try) -> Body:
        """The JSON body of a row's request; ValueError for a row that cannot be sent."""

    def probe(self) -> Body:
        """The body of the smallest request of this kind."""

    def outcome(self, text: str, status: int, request_id: str | None) -> Outcome:
        """The row's outcome; ValueError, KeyError, TypeError or IndexError for what is no answer
        of the API.
        """

    def refusal(self, trouble: TroubleError) -> Refusal:
        """The outcome of a row that is itself to blame for having no answer."""


def asker_of(task: Task, engine: OpenaiEngineSpec) -> Asker:
    """The one for a task."""
    match task:
        case GenerateTask():
            return Chat(task, engine)
        case EmbedTask():
            return Embedding(task, engine)
        case RequestsTask():
            return Forward(task, engine)
        case other:
            raise Permanent(f"engine.backend openai does not run task.kind {other.kind}")


class Plain:
    """What a task without columns for it makes of a refusal."""

    def refusal(self, trouble: TroubleError) -> Refusal:
        """Kind and message."""
        return Refusal(trouble.kind, str(trouble))


class Chat(Plain):
    """Text generation as a chat completion."""

    path = "/chat/completions"

    def __init__(self, task: GenerateTask, engine: OpenaiEngineSpec) -> None:
        self._task = task
        self._engine = engine
        self._check = Check(task.output)

    def body(self, request: Request, how: Try) -> Body:
        """Messages and sampling, then the form of the answer, then `engine.args`."""
        asked = {
            "model": self._engine.model,
            "messages": [
                {**message, "content": _content(message["content"])}
                for message in request.messages or ()
            ],
            "temperature": how.temperature,
            **({} if how.seed is None else {"seed": how.seed}),
            **_sampling(self._task.sampling, request, _longest_field(self._engine.base_url)),
            **_form(self._task.output),
        }
        return _laid_over(asked, self._engine.args)

    def probe(self) -> Body:
        """One token for one word."""
        hello = Request(0, messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        return self.body(hello, ONCE)

    def outcome(self, text: str, status: int, request_id: str | None) -> Outcome:
        """The text of the first choice, held against its form."""
        data = json.loads(text)
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


def _content(content: str | Sequence[Mapping[str, Any]]) -> str | list[Body]:
    """Images as data: URLs: the server can reach no store of ours. BadImage for the first that
    cannot be used.
    """
    if isinstance(content, str):
        return content
    return [
        {"type": "image_url", "image_url": {"url": part["image"].data_url()}}
        if part["type"] == "image"
        else dict(part)
        for part in content
    ]


class Embedding(Plain):
    """A vector for a text."""

    path = "/embeddings"

    def __init__(self, task: EmbedTask, engine: OpenaiEngineSpec) -> None:
        self._task = task
        self._engine = engine

    def body(self, request: Request, how: Try) -> Body:
        """Numbers as JSON: every server writes those, and not all base64."""
        asked = {
            "model": self._engine.model,
            "input": request.text,
            "encoding_format": "float",
        }
        return _laid_over(asked, self._engine.args)

    def probe(self) -> Body:
        """One word."""
        return self.body(Request(0, text="Hi"), ONCE)

    def outcome(self, text: str, status: int, request_id: str | None) -> Outcome:
        """The first vector, cut and scaled as the task says: a cut one unless it says not to."""
        data = json.loads(text)
        prompt_tokens, _ = usage(data)
        vector = np.asarray(data["data"][0]["embedding"], dtype=np.float64)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise ValueError("the embedding is no list of finite numbers")
        wanted = self._task.dimensions
        if wanted is not None and wanted > vector.size:
            return Refusal(
                RowErrorKind.REFUSED,
                f"the embedding has {vector.size} dimensions, fewer than task.dimensions {wanted}",
                prompt_tokens,
            )
        return embedding(vector, self._task, wanted is not None, prompt_tokens)


PROBES: dict[str, Body] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/completions": {"prompt": "Hi", "max_tokens": 1},
    "/embeddings": {"input": "Hi"},
}


class Forward:
    """A request of a batch file, as its author wrote it."""

    def __init__(self, task: RequestsTask, engine: OpenaiEngineSpec) -> None:
        self.path = (task.endpoint or "").removeprefix("/v1")
        self._engine = engine

    def body(self, request: Request, how: Try) -> Body:
        """The row's own body, with the engine's model where it names none."""
        asked = dict(request.body or {})
        if asked.get("stream"):
            raise ValueError("the body asks for a stream, which a batch cannot take")
        if not asked.get("model"):
            asked["model"] = self._engine.model
        return asked

    def probe(self) -> Body:
        """The smallest of its endpoint."""
        return {"model": self._engine.model, **PROBES[self.path]}

    def outcome(self, text: str, status: int, request_id: str | None) -> Outcome:
        """The answer's own JSON text."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("the answer is no JSON object")
        prompt_tokens, output_tokens = usage(data)
        columns = {
            "status_code": status,
            "request_id": request_id or data.get("id"),
            "response": text,
        }
        return Answer(columns, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def refusal(self, trouble: TroubleError) -> Refusal:
        """With the server's own answer, for the file of errors."""
        columns: dict[str, Any] = {}
        if trouble.body is not None:
            columns = {
                "status_code": trouble.status,
                "request_id": trouble.request_id,
                "response": trouble.body,
            }
        return Refusal(trouble.kind, str(trouble), columns=columns)


def estimated_tokens(body: Body) -> float:
    """What a request may use at most: its text at four bytes a token, and its longest answer."""
    images: list[str] = []
    asked = [_without_images(body.get(name), images) for name in ("messages", "prompt", "input")]
    text = json.dumps([each for each in asked if each is not None], ensure_ascii=False)
    size = len(text.encode(errors="surrogatepass"))
    longest = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    answers = body.get("n") or 1
    if not isinstance(longest, int) or not isinstance(answers, int):
        longest = answers = 0  # the server will say what is wrong with it
    tokens = size / BYTES_A_TOKEN + len(images) * IMAGE_TOKENS
    return tokens + max(0, longest * answers)


def _without_images(value: Any, images: list[str]) -> Any:
    """The value with nothing in place of its images, which go to `images`: each may have 80 MB."""
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
    """Prompt and output tokens as the server counts them, cached and reasoning ones included; 0 for
    what it does not say or cannot mean.
    """
    said = data.get("usage")
    if not isinstance(said, Mapping):
        return 0, 0
    return _count(said.get("prompt_tokens")), _count(said.get("completion_tokens"))


def _count(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if whole and 0 <= value < 2**31 else 0


def _longest_field(base_url: str) -> str:
    """OpenAI's newer models know the new name alone, and many other servers the old one."""
    is_theirs = urlsplit(base_url).hostname == urlsplit(remotes.OPENAI).hostname
    return "max_completion_tokens" if is_theirs else "max_tokens"


def _sampling(sampling: Sampling, request: Request, longest_field: str) -> Body:
    """OpenAI's own fields; what only other servers know is sent where it does something."""
    longest = min(sampling.max_tokens, request.max_tokens or sampling.max_tokens)
    body: Body = {longest_field: longest}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    for name in (
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_k",
        "min_p",
        "repetition_penalty",
        "min_tokens",
        "ignore_eos",
    ):
        value = getattr(sampling, name)
        if value != Sampling.model_fields[name].default:
            body[name] = min(value, longest) if name == "min_tokens" else value
    return body


def _form(output: StructuredOutput | None) -> Body:
    """`response_format` for a schema; vLLM's `structured_outputs` for what the API has no word."""
    if output is None:
        return {}
    if output.json_schema is not None:
        schema = {"name": "answer", "schema": output.json_schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    asked = {
        name: getattr(output, name)
        for name in ("choice", "regex", "grammar")
        if getattr(output, name) is not None
    }
    return {"structured_outputs": asked}


def _laid_over(body: Body, args: Mapping[str, Any]) -> Body:
    return {name: value for name, value in {**body, **args}.items() if value is not None}
