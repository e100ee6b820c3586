"""OpenAI requests on vLLM: the handlers of vLLM's own server, without HTTP, over our engine.

Each field of a body means what it means to that server. The server's answer is the row's answer,
and the server's refusal, with its status, is the row's error.
"""

import asyncio
import json
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import State
from starlette.responses import JSONResponse
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param
from vllm.utils import random_uuid
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from nightshift.common.spec import RequestsTask, VllmEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Work
from nightshift.worker.engines.vllm.model import Model, TaskHandler
from nightshift.worker.engines.vllm.turns import LIKELIEST, NAMED

Handler = Callable[[Any], Awaitable[Any]]

BODIES: Mapping[str, TypeAdapter[Any]] = {
    "/v1/chat/completions": TypeAdapter(ChatCompletionRequest),
    "/v1/completions": TypeAdapter(CompletionRequest),
    "/v1/responses": TypeAdapter(ResponsesRequest),
    "/v1/embeddings": TypeAdapter(EmbeddingRequest),
}

MAX_SEQUENCES: Mapping[str, int] = {
    "/v1/chat/completions": 128,
    "/v1/completions": 128,
    "/v1/responses": 128,
    "/v1/embeddings": 2048,
}
"""Most sequences of one row, prompts times `n`: they share the row's place in the engine, and other
rows wait for all of them.
"""

TOO_LONG_PARAMETERS = frozenset({"input_tokens", "input_text"})
"""The parameters that vLLM names for a prompt that is longer than the model takes."""

GENERATING = (
    "openai_serving_chat",
    "openai_serving_completion",
    "openai_serving_responses",
)
"""What vLLM's server has for a model that generates, and lacks for others."""

CACHED_TOKENS = "enable_prompt_tokens_details"
"""The argument of vLLM's server that puts cached tokens into `usage`; it is always on here, for our count."""

PROMPTS = ("prompt", "prompt_embeds", "input", "messages")
"""Fields of a body that hold a prompt or a list of them."""


class HeldAtOnce:
    """An engine that knows where thoughts end, for a server that does not: the form of an answer holds from its
    first token, as in an engine without a parser.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, *args: Any, reasoning_ended: bool | None = None, **more: Any) -> Any:
        """As the engine's own."""
        ended = True if reasoning_ended is None else reasoning_ended
        return self._llm.generate(*args, reasoning_ended=ended, **more)


class Serving:
    """vLLM's OpenAI server over one loaded model, made for the first request.

    `shows_cached` says that the spec wants cached tokens in the answers. For the engine's loop only.
    """

    def __init__(self, model: Model, spec: VllmEngineSpec, *, gated: bool = False) -> None:
        """`gated` says that the engine waits for the end of thoughts although the spec names no parser: answers
        of requests are not parted then, as their author would have them from vLLM's own server.
        """
        self._model = model
        self._llm: Any = HeldAtOnce(model.llm) if gated else model.llm
        self._gated = gated
        self.turns = model.turns
        self._spec = spec
        self._making = asyncio.Lock()
        self._state: State | None = None
        self.shows_cached = bool(spec.args.get(CACHED_TOKENS))

    async def handler(self, endpoint: str) -> Handler | None:
        """The function that answers requests of an endpoint; None where the model has none."""
        state = await self.state()
        match endpoint:
            case "/v1/chat/completions":
                return getattr(state.openai_serving_chat, "create_chat_completion", None)
            case "/v1/completions":
                return getattr(state.openai_serving_completion, "create_completion", None)
            case "/v1/responses":
                return getattr(state.openai_serving_responses, "create_responses", None)
            case _:
                return getattr(state, "serving_embedding", None)

    def encode(self, text: str) -> list[int]:
        """A text of the model as tokens."""
        with self._model.tokenizing:
            ids: list[int] = self._model.tokenizer.encode(text, add_special_tokens=False)
        return ids

    async def state(self) -> State:
        """The server's handlers; raises what vLLM raises where its arguments do not fit."""
        async with self._making:
            if self._state is None:
                state = State(dict.fromkeys(GENERATING))
                await init_app_state(
                    self._llm, state, self._arguments(), await self._llm.get_supported_tasks()
                )
                self._state = state
            return self._state

    def _arguments(self) -> Namespace:
        """The command line of the server, as vLLM's own main function would have parsed it."""
        return Namespace(
            **{
                **vars(AsyncEngineArgs(model=self._spec.model)),
                **vars(BaseFrontendArgs()),
                **self._spec.args,
                CACHED_TOKENS: True,
                "structured_outputs_config": self._structured(),
            }
        )

    def _structured(self) -> Any:
        config = self._llm.vllm_config.structured_outputs_config
        return replace(config, reasoning_parser="") if self._gated else config


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A body as vLLM takes it, and the model that the body named."""

    body: Any
    model: str | None

    @property
    def id(self) -> str:
        """The id that vLLM gives the request."""
        return str(getattr(self.body, "request_id", None) or random_uuid())


class Requests(TaskHandler):
    """The responses to one batch's requests."""

    def __init__(self, serving: Serving, task: RequestsTask) -> None:
        self._serving = serving
        self._endpoint = task.endpoint

    def prepare(self, work: Work) -> list[tuple[int, ParsedBody]]:
        """(position, body) of every valid request. The others are refused."""
        prompts = []
        for position, request in enumerate(work.requests):
            parsed = self._parsed(dict(request.body or {}))
            if isinstance(parsed, ParsedBody):
                prompts.append((position, parsed))
            else:
                work.emit(position, _refusal(parsed, random_uuid()))
        return prompts

    def _parsed(self, body: dict[str, Any]) -> ParsedBody | ErrorResponse:
        # One engine serves one model, whatever the rows call it.
        model = body.pop("model", None)
        try:
            _check_media(body)
            parsed = BODIES[self._endpoint].validate_python(body)
            self._check_sequences(body, getattr(parsed, "n", None) or 1)
            return ParsedBody(parsed, model)
        except ValidationError as error:
            return create_error_response(_messages(error))
        except Exception as error:  # vLLM's validators raise many types
            return create_error_response(error)

    def _check_sequences(self, body: Mapping[str, Any], n: int) -> None:
        limit = MAX_SEQUENCES[self._endpoint]
        count = n * max(_count(body.get(name)) for name in PROMPTS)
        if count > limit:
            raise ValueError(
                f"one row asks for {count} sequences (prompts times n), and {limit} are the most"
            )

    async def run(self, request: Request, prompt: ParsedBody) -> tuple[Outcome, float]:
        """The row's outcome; vLLM does not tell how long the request waited."""
        async with self._serving.turns.turn(_numbers(prompt.body)):
            answer = await self._answer(prompt)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # vLLM's handlers answer a cancel with an error response.
            raise asyncio.CancelledError
        if isinstance(answer, ErrorResponse):
            return _refusal(answer, prompt.id), 0.0
        await self._count_thoughts(answer)
        return _answer(answer, prompt, shows_cached=self._serving.shows_cached), 0.0

    async def _count_thoughts(self, body: dict[str, Any]) -> None:
        """Put into a body's usage the tokens of its thoughts where vLLM counts none: some of its parsers count
        from the marker of a thought, which stands in the prompt where the chat template opens the thought.
        """
        thoughts = _thoughts(body)
        details = _reasoning_details(body.get("usage") or {})
        if not thoughts or details is None or details.get("reasoning_tokens"):
            return
        encode = self._serving.encode
        counts = [len(await asyncio.to_thread(encode, thought)) for thought in thoughts]
        details["reasoning_tokens"] = sum(counts)

    async def _answer(self, prompt: ParsedBody) -> dict[str, Any] | ErrorResponse:
        handler = await self._serving.handler(self._endpoint)
        if handler is None:
            return create_error_response(NotImplementedError(f"the model has no {self._endpoint}"))
        try:
            answer = await handler(prompt.body)
        except EngineDeadError:
            raise
        except Exception as error:
            return create_error_response(error)
        match answer:
            case ErrorResponse():
                return answer
            case BaseModel():
                return answer.model_dump(mode="json")
            case JSONResponse():
                body: dict[str, Any] = json.loads(bytes(answer.body))
                return body
        return create_error_response(ValueError("the answer is no JSON: ask for another format"))


def _numbers(body: Any) -> str | None:
    """Which numbers of tokens a body asks for."""
    if getattr(body, "logprob_token_ids", None):
        return NAMED
    asks = getattr(body, "logprobs", None) or getattr(body, "top_logprobs", None)
    return LIKELIEST if asks else None


def _count(prompts: Any) -> int:
    """How many prompts a field has; token ids, or the messages of one chat, are one prompt."""
    if not isinstance(prompts, list):
        return 1
    return max(1, sum(isinstance(each, str | list) for each in prompts))


def _check_media(body: Mapping[str, Any]) -> None:
    """ValueError for media that vLLM would fetch from the network or from the worker's disk, or would take
    from another row: what a row names by a uuid is what an earlier row sent under that uuid.
    """
    for part in _parts([body.get("messages"), body.get("input")]):
        for name, each in part.items():
            if not name.endswith("_url"):
                continue
            url = each.get("url") if isinstance(each, dict) else each
            if not isinstance(url, str) or not url.lower().startswith("data:"):
                raise ValueError(
                    "media of a row are data: URLs, and nothing that it names is fetched"
                )
        if "uuid" in part:
            raise ValueError("a part has a uuid, which names media of other rows: leave uuid out")


def _parts(chats: list[Any]) -> Iterator[dict[str, Any]]:
    """Messages and their parts, {"image_url": …} and the like, at any depth."""
    waiting = list(chats)
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if isinstance(value, dict):
            waiting += [value.get("content"), value.get("output")]
            yield value


def _answer(body: dict[str, Any], prompt: ParsedBody, *, shows_cached: bool) -> Answer:
    if prompt.model is not None:
        body["model"] = prompt.model
    usage = body.get("usage") or {}
    # Responses have details of their own, whatever the server's arguments say.
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    thoughts = _reasoning_details(usage) or {}
    if not shows_cached and "prompt_tokens_details" in usage:
        usage["prompt_tokens_details"] = None
    return Answer(
        columns=_columns(200, prompt.id, body),
        prompt_tokens=usage.get("prompt_tokens") or usage.get("input_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or usage.get("output_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        reasoning_tokens=thoughts.get("reasoning_tokens") or 0,
    )


def _thoughts(body: Mapping[str, Any]) -> list[str]:
    """The texts of the thoughts in an answer of chat completions or of responses."""
    messages = (choice.get("message") or {} for choice in body.get("choices") or ())
    items = (item for item in body.get("output") or () if item.get("type") == "reasoning")
    parts = (part for item in items for part in item.get("content") or ())
    found = [*(each.get("reasoning") for each in messages), *(part.get("text") for part in parts)]
    return [text for text in found if text]


def _reasoning_details(usage: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a usage counts thoughts; None where its server knows none."""
    found: dict[str, Any] | None = usage.get("completion_tokens_details") or usage.get(
        "output_tokens_details"
    )
    return found


def _refusal(answer: ErrorResponse, request_id: str) -> Refusal:
    error = answer.error
    is_too_long = error.param in TOO_LONG_PARAMETERS
    return Refusal(
        RowErrorKind.TOO_LONG if is_too_long else RowErrorKind.REFUSED,
        f"vLLM answered {error.code}: {error.message}",
        columns=_columns(error.code, request_id, answer.model_dump(mode="json")),
    )


def _columns(status: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return {"status_code": status, "request_id": request_id, "response": text}


def _messages(error: ValidationError) -> str:
    """The first three messages, each once: a union has one for each of its members."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    messages = dict.fromkeys(f"{clean_loc_for_param(each['loc'])}: {each['msg']}" for each in found)
    return "; ".join(islice(messages, 3))
