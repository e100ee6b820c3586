"""Text generation as chat completions of the OpenAI API, and of vLLM's server where the API lacks something."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from nightshift.common import remotes
from nightshift.common.spec import GenerateTask, OpenaiEngineSpec
from nightshift.common.spec.tasks.template_arguments import THINKING_SWITCHES
from nightshift.common.states import BY_SERVER, RowErrorKind
from nightshift.worker.engines import endings
from nightshift.worker.engines.images import Image, with_images
from nightshift.worker.engines.openai.endpoint import Body, Endpoint, by_index, with_args
from nightshift.worker.engines.openai.errors import error_text
from nightshift.worker.engines.openai.message import Message
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request
from nightshift.worker.engines.resampling import UNSAMPLED, RowSampling
from nightshift.worker.engines.structured import AnswerCheck
from nightshift.worker.engines.thinking import Markers, Parted, at_a_line, part

TOOL_CALL = (RowErrorKind.INVALID_OUTPUT, "the model called a tool in place of an answer")

MARKERS = (
    Markers("<think>", "</think>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<seed:think>", "</seed:think>"),
)
"""What servers leave in the text that do not part thoughts from answers."""


class ChatCompletions(Endpoint):
    """Text generation as a chat completion."""

    path = "/chat/completions"

    def __init__(
        self, task: GenerateTask, engine: OpenaiEngineSpec, resolved: Mapping[str, Any]
    ) -> None:
        """`resolved` has what the first load fixed for the job; without it, reasoning is not split from the answers."""
        self._task = task
        self._engine = engine
        self._longest = resolved.get("max_tokens") or task.sampling.max_tokens
        self._is_parted = resolved.get("thinking") == BY_SERVER
        self._check = AnswerCheck(task.output)

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """Messages, sampling and structured output; `engine.args` replace what they name."""
        fields = {
            "model": self._engine.model,
            "messages": [_given(each) for each in with_images(request.messages or (), _image_part)],
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            **_sampling(self._task, request, self._engine.base_url, self._longest),
            **_samples(self._task, sampling),
            **_template_arguments(self._task, request),
            **({} if sampling.is_free else _structured_output(self._task)),
        }
        return with_args(fields, self._engine.args)

    def probe(self) -> Body:
        """One word in, one token out."""
        hello = Request(0, messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        return self.body(hello, UNSAMPLED)

    def outcomes(self, data: Any) -> Sequence[Outcome]:
        """The text of each choice, in the order of their `index`, checked against the structured output."""
        choices = by_index(data["choices"])[: self._task.sampling.n]
        if not choices:
            raise ValueError("the response has no choice")
        broken = [each for each in choices if is_broken(each)]
        if len(broken) == len(choices):
            raise ValueError(broken_text(broken[0]))
        return [self._outcome(each) for each in choices]

    def _outcome(self, choice: Mapping[str, Any]) -> Outcome:
        reason = choice.get("finish_reason")
        if is_broken(choice):
            return Refusal(RowErrorKind.REFUSED, broken_text(choice))
        message = Message.of(choice["message"])
        if message.refusal:
            return Refusal(RowErrorKind.REFUSED, f"the model refused: {message.refusal}")
        if (unfinished := endings.error_of(reason)) is not None:
            return Refusal(*unfinished)
        if not message.content and message.calls_tool:
            return Refusal(*TOOL_CALL)
        text = message.content or ""
        parted = (
            parted_answer(text, message.thought, self._task.thinking)
            if self._is_parted
            else Parted(text)
        )
        outcome = self._of_parted(parted, reason, has_content=message.content is not None)
        return replace(
            outcome, columns={**outcome.columns, **self._columns(choice, parted, outcome)}
        )

    def _of_parted(self, parted: Parted, reason: Any, *, has_content: bool) -> Outcome:
        is_empty = parted.answer is None or (parted.thought and not parted.answer)
        if is_empty and reason == "length":
            return Refusal(
                RowErrorKind.TRUNCATED,
                "the answer was cut off inside its thinking: raise task.sampling.max_tokens, which is "
                f"{self._longest} here, or the row's own bound",
            )
        if parted.answer is None or (is_empty and not has_content):
            return Refusal(
                RowErrorKind.INVALID_OUTPUT, "the model ended its answer inside its thinking"
            )
        if not has_content:
            return Refusal(
                RowErrorKind.INVALID_OUTPUT, "the message of the response has no content"
            )
        return self._check.outcome(parted.answer, reason, 0, 0)

    def _columns(
        self, choice: Mapping[str, Any], parted: Parted, outcome: Outcome
    ) -> dict[str, Any]:
        """The columns beside those of the answer's form."""
        columns: dict[str, Any] = {}
        if self._task.keep_reasoning:
            columns["reasoning"] = parted.reasoning if parted.thought else None
        if not isinstance(outcome, Answer):
            return columns
        if self._task.sampling.n > 1:
            columns["output_tokens"] = None  # a server counts those of all samples together
        most = self._task.sampling.logprobs
        if most is not None:
            columns["logprobs"] = _logprobs(choice.get("logprobs"), most)
        return columns


def _given(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with the arguments of its tool calls as JSON, as the API has them."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "tool_calls": [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in calls
        ],
    }


def is_broken(choice: Mapping[str, Any]) -> bool:
    """Whether the server ended a choice before the model did."""
    return bool(choice.get("error")) or (
        endings.ending(choice.get("finish_reason")) is endings.Ending.BROKEN
    )


def broken_text(choice: Mapping[str, Any]) -> str:
    """Why a broken choice has no answer."""
    if error := choice.get("error"):
        return f"the choice has an error: {error_text(error)}"
    _, why = endings.error_of(choice.get("finish_reason")) or TOOL_CALL
    return why


def parted_answer(content: str, thought: str, thinking: str | None) -> Parted:
    """The answer and its thoughts, wherever the server puts those: into `thought`, or between the markers of its
    model in `content`. `thinking` is that of the task.

    Nobody tells whether the prompt opened a thought. An end marker without a start ends one where the task
    asks for thinking, or where the marker stands at a line's end, as models write it.
    """
    markers = next((each for each in MARKERS if _begins(content, each, thinking)), None)
    if markers is None:
        markers = next((each for each in MARKERS if thought and each.end in content), None)
    if markers is None:
        return Parted(content, thought, thought=bool(thought))
    inside = not content.lstrip().startswith(markers.start)  # else it begins with an end marker
    found = part(content, markers, inside and not thought)
    if not thought:
        return found
    reasoning = "\n".join(filter(None, (thought, found.reasoning)))
    return Parted(found.answer, reasoning, thought=True)


def _begins(content: str, markers: Markers, thinking: str | None) -> bool:
    """Whether a text begins with a thought."""
    if content.lstrip().startswith(markers.start):
        return True
    before, end, _ = content.partition(markers.end)
    if not end or markers.start in before or thinking == "off":
        return False
    return thinking is not None or at_a_line(content, markers.end)


def _logprobs(told: Any, most: int) -> list[dict[str, Any]]:
    """The column `logprobs` of a sample, whose tokens have no numbers here."""
    tokens = (told or {}).get("content") or []
    return [
        {**_number(each), "top": list(map(_number, each["top_logprobs"][:most]))} for each in tokens
    ]


def _number(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": str(told["token"]), "token_id": None, "logprob": float(told["logprob"])}


def _image_part(image: Image) -> Body:
    """The image as a data: URL, since the server can read no store of ours; or BadImage."""
    return {"type": "image_url", "image_url": {"url": image.data_url()}}


def _sampling(task: GenerateTask, request: Request, base_url: str, most: int) -> Body:
    """The fields of OpenAI, and those of other servers where they are not the default."""
    sampling = task.sampling
    longest = min(most, request.max_tokens or most)
    # OpenAI's newer models take only the new name, and many other servers only the old one.
    is_openai = urlsplit(base_url).hostname == urlsplit(remotes.OPENAI).hostname
    body: Body = {"max_completion_tokens" if is_openai else "max_tokens": longest}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    # The others have their own place in a body.
    own = {"temperature", "seed", "stop", "max_tokens", "max_tokens_column", "n", "logprobs"}
    body |= sampling.model_dump(exclude=own, exclude_defaults=True)
    body |= {name: each for name, each in request.sampling.items() if name not in own}
    if body.get("min_tokens"):
        body["min_tokens"] = min(int(body["min_tokens"]), longest)
    return body


def _samples(task: GenerateTask, sampling: RowSampling) -> Body:
    """How many samples, and which numbers of their tokens."""
    body: Body = {} if sampling.n == 1 else {"n": sampling.n}
    if task.sampling.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": task.sampling.logprobs}
    return body


def _template_arguments(task: GenerateTask, request: Request) -> Body:
    """What vLLM's server and its like take for the model's template. Which variable turns thinking on is the
    server's matter: both that are in use are sent.
    """
    given = dict(request.template_arguments)
    if task.thinking in ("on", "off"):
        given |= dict.fromkeys(THINKING_SWITCHES, task.thinking == "on")
    body: Body = {"chat_template_kwargs": given} if given else {}
    if task.most_thinking_tokens is not None:
        body["thinking_token_budget"] = task.most_thinking_tokens
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
