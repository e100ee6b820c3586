"""Text generation on vLLM: chat template and sampling params in, text out, checked."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import structlog
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.inputs import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.tokenizers.mistral import MistralTokenizer

from nightshift.common.errors import JobRefused
from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.common.text import counted
from nightshift.worker.engines.endings import Ending, ending
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Work
from nightshift.worker.engines.resampling import (
    RESAMPLED,
    RowSampling,
    drawn_again,
    sample_until_valid,
    with_tokens,
)
from nightshift.worker.engines.structured import AnswerCheck
from nightshift.worker.engines.vllm import answers, backends
from nightshift.worker.engines.vllm.answers import Opening, Split, before_stops
from nightshift.worker.engines.vllm.confidence import Asked, Confidence
from nightshift.worker.engines.vllm.model import Model, TaskHandler, finished, request_id
from nightshift.worker.engines.vllm.numbers import answer_numbers, prompt_numbers
from nightshift.worker.engines.vllm.one_pass import OnePass, can_tell
from nightshift.worker.engines.vllm.params import sampling_params
from nightshift.worker.engines.vllm.spelling import Spelling
from nightshift.worker.engines.vllm.thinking import Thinking
from nightshift.worker.engines.vllm.turns import LIKELIEST, NAMED
from nightshift.worker.engines.vllm.verify import grammar_check, verified

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What vLLM is sent for a row: token ids, or messages for its renderer, which gets the `arguments`. `opening`
    is where its answer begins, as far as that is known before vLLM has the row.
    """

    content: Any
    opening: Opening = field(default_factory=Opening)
    arguments: Mapping[str, Any] = field(default_factory=dict)


SPARE_TOKENS = 2
"""Tokens of a free answer beside the bytes of a label: white space before it, and the end of the answer."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What vLLM takes as the prompt of one request, and where its answer begins."""

    prompt: Any
    opening: Opening


class Generation(TaskHandler):
    """The text of one batch's rows."""

    def __init__(
        self, model: Model, task: GenerateTask, resolved: Mapping[str, Any] | None = None
    ) -> None:
        """`resolved` is what is fixed for the job. None means that nothing is fixed: the model decides now."""
        assert model.thinking is not None
        if resolved is None:
            resolved = resolve(task, model)
        self._model = model
        self._task = task
        self._check = AnswerCheck(task.output, compact=backends.compact(model.args))
        self._split = Split.of(resolved, model.thinking, task)
        self._longest = int(resolved.get("max_tokens") or task.sampling.max_tokens)
        self._plain: dict[RowSampling, SamplingParams] = {}
        self._choices = tuple((task.output and task.output.choice) or ())
        self._is_spelled = any(choice[0].isspace() for choice in self._choices)
        self._confidence = self._of_choices() if task.has_confidence else None
        self._one_pass = self._of_task() if can_tell(task) and task.thinking != "on" else None

    def _of_choices(self) -> Confidence:
        choices, spelling = self._choices, self._model.spelling
        return self._model.once(
            (Confidence, choices), lambda: Confidence(self._model.llm, spelling, choices)
        )

    def _of_task(self) -> OnePass | None:
        """None for an engine that speculates, which checks several tokens in a pass, and for a tokenizer whose tokens
        nobody can spell.
        """
        spelling, choices = self._spelling, self._choices
        if spelling is None or self._model.llm.vllm_config.speculative_config is not None:
            return None
        task = self._task.model_dump_json()
        return self._model.once((OnePass, task), lambda: OnePass.of(spelling, choices))

    @cached_property
    def _spelling(self) -> Spelling | None:
        try:
            return self._model.spelling
        except Exception as error:  # a tokenizer that only other backends than xgrammar can read
            log.info("tokens_are_not_spelled", error=str(error))
            return None

    def verify(self) -> None:
        """JobRefused for structured output, or sampling, that vLLM refuses for every row;
        NeedsOtherEngine where an engine with another backend takes it.
        """
        llm = self._model.llm
        params = verified(llm.vllm_config, llm.get_tokenizer(), self._model.args, self._task)
        output = self._task.output
        if output is not None and output.grammar is not None:
            accepts = grammar_check(params)
            if accepts is None and output.hold == "on_retry":
                raise JobRefused(
                    "task.output.hold is on_retry, and with this backend of the engine nobody can tell whether free "
                    "text follows the grammar: leave hold out"
                )
            self._check = AnswerCheck(output, accepts)

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """(position, prompt) of every request that can be sent; the others are refused."""
        self.verify()
        rendered: list[tuple[int, str | list[int], Opening, dict[str, Any]]] = []
        for position, request in enumerate(work.requests):
            try:
                arguments = self._split.arguments(request.template_arguments)
                messages = [dict(message) for message in request.messages or ()]
                made = self._rendered(messages, arguments, is_plain=request.is_plain_prompt)
                text = made if isinstance(made, str) else ""
                opening = self._split.opening(arguments, messages, text)
                rendered.append((position, made, opening, arguments))
            except Exception as error:  # a chat template may raise whatever it likes
                work.emit(
                    position,
                    Refusal(
                        RowErrorKind.RENDER_ERROR,
                        f"the model's chat template refused the row: {error}",
                        of_library=True,
                    ),
                )
        prompts = []
        encoded = self._encoded([made for _, made, _, _ in rendered])
        for (position, _, opening, arguments), tokens in zip(rendered, encoded, strict=True):
            if len(tokens) >= self._model.longest:
                work.emit(position, self.too_long(len(tokens)))
            elif not tokens:
                work.emit(position, Refusal(RowErrorKind.RENDER_ERROR, "the prompt is empty"))
            else:
                prompts.append((position, Prompt(tokens, opening, arguments)))
        return prompts

    def _encoded(self, rendered: Sequence[str | list[int]]) -> list[list[int]]:
        texts = [each for each in rendered if isinstance(each, str)]
        if not texts:
            return [each for each in rendered if not isinstance(each, str)]
        # HF's fast tokenizers are not safe for two threads at once.
        with self._model.tokenizing:
            encoded: list[list[int]] = self._model.tokenizer(
                texts, add_special_tokens=not self._has_chat_template
            )["input_ids"]
        return encoded

    def too_long(self, tokens: int) -> Refusal:
        """Why a prompt of so many tokens is refused."""
        return Refusal(
            RowErrorKind.TOO_LONG,
            f"the prompt has {counted(tokens, 'token')}, the model takes fewer than {self._model.longest}",
        )

    @property
    def _has_chat_template(self) -> bool:
        return getattr(self._model.tokenizer, "chat_template", None) is not None

    def _rendered(
        self, messages: list[dict[str, Any]], arguments: Mapping[str, Any], *, is_plain: bool
    ) -> str | list[int]:
        """The text of the prompt; its token ids where the tokenizer makes them of messages itself."""
        tokenizer = self._model.tokenizer
        if isinstance(tokenizer, MistralTokenizer):
            with self._model.tokenizing:
                return list(
                    tokenizer.apply_chat_template(
                        messages, tokenize=True, add_generation_prompt=True, **arguments
                    )
                )
        if not self._has_chat_template:
            if not is_plain:
                raise ValueError("the model has no chat template; use task.prompt")
            return str(messages[0]["content"])
        return self._templated(messages, arguments)

    def _templated(self, messages: list[dict[str, Any]], arguments: Mapping[str, Any]) -> str:
        text = self._model.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **arguments
        )
        return str(text)

    async def run(self, request: Request, prompt: Any) -> tuple[Outcome, float]:
        """The row's outcome, and for how many seconds the row waited in vLLM's queue."""
        queued = 0.0

        async def sample_once(sampling: RowSampling) -> list[Outcome]:
            nonlocal queued
            drawn = await self._drawn(request, prompt, sampling)
            queued += drawn.queued
            if drawn.unheld:
                fewer = drawn_again(sampling, request, len(drawn.unheld))
                held = replace(prompt, opening=Opening(inside=False))
                again = await self._drawn(request, held, fewer)
                queued += again.queued
                for place, outcome in zip(drawn.unheld, again.outcomes, strict=True):
                    drawn.outcomes[place] = with_tokens(outcome, drawn.outcomes[place])
            return drawn.outcomes

        async with self._model.turns.turn(self._kind):
            outcome = await sample_until_valid(self._task, request, sample_once)
        return outcome, queued

    @property
    def _kind(self) -> str | None:
        if self._confidence is not None:
            return NAMED
        return None if self._task.sampling.logprobs is None else LIKELIEST

    async def _drawn(self, request: Request, prompt: Prompt, sampling: RowSampling) -> "Drawn":
        """Runs the model once; before that for one token of a choice, where that may be enough."""
        choice = self._choice(prompt.opening, sampling)
        if choice is None:
            return await self._generated(request, prompt, sampling)
        drawn, spent = await self._in_one_pass(choice, request, prompt, sampling)
        if drawn is None:
            drawn = await self._generated(request, prompt, sampling)
        drawn.outcomes[0] = with_tokens(drawn.outcomes[0], spent)
        return drawn

    def _choice(self, opening: Opening, sampling: RowSampling) -> OnePass | None:
        """What tells a row's choice by one token; None where the answer is sampled, or a thought may come first."""
        choice = self._one_pass
        may_think = self._split.ended(opening.inside) is False
        if choice is None or sampling.is_free or sampling.temperature > 0 or may_think:
            return None
        return choice if choice.is_open else None

    async def _in_one_pass(
        self, choice: OnePass, request: Request, prompt: Prompt, sampling: RowSampling
    ) -> tuple["Drawn | None", Outcome]:
        """The row's label, None where several are left; and an outcome with the tokens beside those of the label."""
        ready = await self._ready(prompt)
        if isinstance(ready, Refusal):
            return Drawn([ready]), Answer({})
        ids = ready.prompt["prompt_token_ids"]

        async def ask(written: Sequence[int], allowed: Sequence[int]) -> RequestOutput:
            given, params = ready.prompt, self._params(request, sampling, prompt.opening)
            params.structured_outputs = None
            params.max_tokens, params.allowed_token_ids = 1, [*allowed]
            params.detokenize = params.prompt_logprobs is not None  # else nothing is read as text
            if written:
                given = {**await self._prompt(prompt), "prompt_token_ids": [*ids, *written]}
                params.prompt_logprobs = None
            found: RequestOutput = await finished(
                self._model.llm.generate(given, params, request_id(request))
            )
            return found

        told = await choice.told(ask, self._model.longest - 1 - len(ids))
        if told.output is None:
            return None, told.spent
        return await self._told(told.output, request, prompt, ready), told.spent

    async def _generated(self, request: Request, prompt: Prompt, sampling: RowSampling) -> "Drawn":
        """What vLLM writes to its end."""
        ready = await self._ready(prompt)
        if isinstance(ready, Refusal):
            return Drawn([ready] * sampling.n)
        params = self._params(request, sampling, ready.opening)
        ended = self._split.ended(ready.opening.inside)
        told = {} if self._task.output is None or ended is None else {"reasoning_ended": ended}
        found = self._model.llm.generate(ready.prompt, params, request_id(request), **told)
        output: RequestOutput = await finished(found)  # FINAL_ONLY: there is one
        return await self._told(output, request, prompt, ready, is_free=sampling.is_free)

    def _params(self, request: Request, sampling: RowSampling, opening: Opening) -> SamplingParams:
        params = self._sampling_params(request, sampling)
        params.thinking_token_budget = opening.budget
        if sampling.is_free:
            params.structured_outputs = None
            at_once = self._split.family is None or opening.inside is False
            if self._choices and at_once:  # what is longer is no label
                longest = max(len(choice.encode()) for choice in self._choices)
                params.max_tokens = min(params.max_tokens or longest, longest + SPARE_TOKENS)
                params.min_tokens = min(params.min_tokens, params.max_tokens)
        if self._split.family is not None:
            params.skip_special_tokens = False  # markers may be special tokens
        if self._confidence is not None:
            params.logprob_token_ids = self._confidence.token_ids
        return params

    def _sampling_params(self, request: Request, sampling: RowSampling) -> SamplingParams:
        """Params of the row's own. Greedy rows that have no sampling of their own differ in nothing: theirs are
        copies, which cost a fortieth.
        """
        is_plain = not request.sampling and request.max_tokens is None and sampling.seed is None
        if not is_plain:
            return sampling_params(self._task, request, sampling, self._longest)
        if sampling not in self._plain:
            self._plain[sampling] = sampling_params(self._task, request, sampling, self._longest)
        return copy(self._plain[sampling])

    async def _ready(self, prompt: Prompt) -> Ready | Refusal:
        """What vLLM takes as the prompt of one request, made anew for each; or why there is none."""
        return Ready(tokens_input(prompt.content), prompt.opening)

    async def _told(
        self,
        output: RequestOutput,
        request: Request,
        prompt: Prompt,
        ready: Ready,
        *,
        is_free: bool = False,
    ) -> "Drawn":
        """What vLLM drew; the tokens of the prompt count with the first sample."""
        length = len(output.prompt_token_ids or ())
        most = Most.of(self._task, request, self._longest, self._model.longest - length)
        outcomes, unheld = [], []
        for place, completion in enumerate(output.outputs):
            outcome, thought = await self._checked(completion, most, prompt, ready, is_free=is_free)
            outcomes.append(outcome)
            is_failed = isinstance(outcome, Refusal) and outcome.kind in RESAMPLED
            if (
                is_failed
                and not is_free
                and not thought
                and self._split.is_gated(ready.opening.inside)
            ):
                unheld.append(place)
        numbers = prompt_numbers(self._task, output)
        if numbers:
            outcomes = [replace(each, columns={**each.columns, **numbers}) for each in outcomes]
        outcomes[0] = replace(
            outcomes[0],
            prompt_tokens=outcomes[0].prompt_tokens + length,
            cached_tokens=outcomes[0].cached_tokens + (output.num_cached_tokens or 0),
        )
        return Drawn(outcomes, unheld, _queued_seconds(output))

    async def _checked(
        self,
        completion: CompletionOutput,
        most: "Most",
        prompt: Prompt,
        ready: Ready,
        *,
        is_free: bool,
    ) -> tuple[Outcome, bool]:
        """The outcome of a sample, and whether it begins with a thought."""
        if ending(completion.finish_reason) not in (Ending.WHOLE, Ending.CUT):
            raise ValueError(f"it ended the row with {completion.finish_reason!r}; see its log")
        tokens = len(completion.token_ids)
        parted, thought_tokens = self._split.part(
            self._answer_text(completion),
            completion.token_ids,
            ready.opening.inside,
            is_held=self._task.output is not None and not is_free,
        )
        outcome: Outcome
        reason = completion.finish_reason
        if parted.answer is None or (parted.thought and not parted.answer and reason == "length"):
            outcome = _cut(reason, tokens, most)
        else:
            outcome = self._check.outcome(parted.answer, reason, 0, tokens)
            if parted.thought and isinstance(outcome, Refusal):  # models write an empty line there
                bare = self._check.outcome(parted.answer.strip(), reason, 0, tokens)
                outcome = bare if isinstance(bare, Answer) else outcome
        outcome = replace(outcome, reasoning_tokens=thought_tokens)
        start = self._split.start(completion.token_ids, thought=parted.thought)
        if isinstance(outcome, Answer):
            numbers = answer_numbers(self._task, completion, start)
            outcome = replace(outcome, columns={**outcome.columns, **numbers})
            if self._confidence is not None:
                before = [*ready.prompt["prompt_token_ids"], *completion.token_ids[:start]]
                asked = Asked(partial(self._prompt, prompt), before)
                outcome = await self._confidence.told(
                    outcome, asked, completion.token_ids, start, completion.logprobs
                )
        if self._task.keep_reasoning:
            own = {"reasoning": parted.reasoning if parted.thought else None}
            outcome = replace(outcome, columns={**outcome.columns, **own})
        return outcome, parted.thought

    async def _prompt(self, prompt: Prompt) -> Any:
        """The prompt once more, for a request beside that of the answer."""
        ready = await self._ready(prompt)
        if isinstance(ready, Refusal):
            raise ValueError(ready.message)
        return ready.prompt

    def _answer_text(self, completion: CompletionOutput) -> str:
        """VLLM's text, or the decoded tokens where that text has a replacement character.

        The incremental detokenizer takes a replacement character at the end of the prompt for the
        first bytes of the answer. With stop strings vLLM's text stays: only vLLM cuts them off.
        Special tokens are not text, except the markers of thoughts. A label that begins with a space is read from
        the bytes of its tokens.
        """
        text = str(completion.text)
        ids = list(completion.token_ids)
        if self._is_spelled and self._spelling is not None:
            spelled = self._spelling.text(ids)
            if spelled in self._choices:
                return spelled
        if completion.finish_reason == "stop" and ids and ids[-1] in self._special:
            ids.pop()  # the end of the answer, which vLLM leaves out of its text
        plain = [each for each in ids if each not in self._special]
        stops = self._task.sampling.stop
        if len(plain) == len(ids) and ("\ufffd" not in text or stops):
            return text
        with self._model.tokenizing:
            text = str(
                self._model.tokenizer.decode(plain, skip_special_tokens=self._split.family is None)
            )
        return before_stops(text, stops)

    @cached_property
    def _special(self) -> frozenset[int]:
        """The tokens that are asked for as text and are none: nothing where vLLM leaves them out itself."""
        if self._split.family is None:
            return frozenset()
        return self._split.model.special(self._split.family.markers)


@dataclass(slots=True)
class Drawn:
    """The outcomes of the samples of one request, and the seconds that it waited in vLLM's queue. `unheld` are
    the places of samples that failed without a thought where the model might have opened one: their form
    waited for the end of that, and they are drawn again, held from the first token.
    """

    outcomes: list[Outcome]
    unheld: list[int] = field(default_factory=list)
    queued: float = 0.0


@dataclass(frozen=True, slots=True)
class Most:
    """The most tokens of one answer, and which number says so."""

    tokens: int
    name: str

    @classmethod
    def of(cls, task: GenerateTask, request: Request, longest: int, room: int) -> "Most":
        """`longest` is the job's own number, `room` what the model's context has left behind the prompt."""
        own = request.max_tokens
        column = task.sampling.max_tokens_column or task.sampling_columns.max_tokens
        if room <= min(longest, own or longest):
            return cls(
                room, "engine.args.max_model_len, or shorten the prompt: the context has room for"
            )
        if own is not None and own < longest:
            return cls(own, f"the row's own bound in the column {column!r}, which is")
        return cls(longest, "task.sampling.max_tokens, which is")


def _cut(finish_reason: str | None, tokens: int, most: Most) -> Refusal:
    """Why an answer that ends inside its thinking is none."""
    if finish_reason == "length":
        return Refusal(
            RowErrorKind.TRUNCATED,
            f"the answer was cut off inside its thinking, after {counted(tokens, 'token')}: raise {most.name} "
            f"{most.tokens} here",
            output_tokens=tokens,
        )
    return Refusal(
        RowErrorKind.INVALID_OUTPUT,
        "the model ended its answer inside its thinking",
        output_tokens=tokens,
    )


def resolve(task: GenerateTask, model: Model) -> dict[str, Any]:
    """What is fixed for a job of the loaded model; JobRefused as by `answers.resolve`."""
    assert model.thinking is not None
    return resolve_for(model.llm.vllm_config, task, model.thinking)


def resolve_for(config: VllmConfig, task: GenerateTask, model: Thinking) -> dict[str, Any]:
    """The same for an engine of this configuration, which need not be loaded yet."""
    reasoning = config.reasoning_config
    can_force = reasoning is not None and bool(reasoning.enabled)
    longest = int(config.model_config.max_model_len)
    return answers.resolve(task, model, longest, can_force=can_force)


def _queued_seconds(output: RequestOutput) -> float:
    """How long the row waited in vLLM's queue; 0 where vLLM keeps no times."""
    times = output.metrics
    return 0.0 if times is None else max(0.0, float(times.scheduled_ts - times.queued_ts))
