"""Text generation on vLLM: chat template and sampling params in, text out, checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vllm import SamplingParams, TokensPrompt
from vllm.config import VllmConfig
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.tokenizers.mistral import MistralTokenizer

from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Work
from nightshift.worker.engines.resampling import RowSampling, sample_until_valid
from nightshift.worker.engines.structured import AnswerCheck
from nightshift.worker.engines.vllm import answers
from nightshift.worker.engines.vllm.answers import Split
from nightshift.worker.engines.vllm.confidence import Confidence
from nightshift.worker.engines.vllm.model import Model, TaskHandler, finished, request_id
from nightshift.worker.engines.vllm.numbers import answer_numbers, prompt_numbers
from nightshift.worker.engines.vllm.params import sampling_params
from nightshift.worker.engines.vllm.thinking import Thinking
from nightshift.worker.engines.vllm.verify import grammar_check, verified

ANSWERED = ("stop", "length", "repetition")
"""Finish reasons of an answer; with any other, vLLM gave up on the row."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What vLLM is sent for a row: token ids, or messages for its renderer. `inside` says whether the prompt ends
    inside a thought; None where the model may open one.
    """

    content: Any
    inside: bool | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Generation(TaskHandler):
    """The text of one batch's rows."""

    def __init__(
        self, model: Model, task: GenerateTask, resolved: Mapping[str, Any] | None = None
    ) -> None:
        """`resolved` is what is fixed for the job; None where nobody keeps that: the model decides now."""
        assert model.thinking is not None
        if resolved is None:
            resolved = resolve(task, model)
        self._model = model
        self._task = task
        self._check = AnswerCheck(task.output)
        self._split = Split.of(resolved, model.thinking, task)
        self._longest = int(resolved.get("max_tokens") or task.sampling.max_tokens)
        self._confidence = self._of_choices() if task.has_confidence else None

    def _of_choices(self) -> Confidence:
        choices = (self._task.output and self._task.output.choice) or ()
        with self._model.tokenizing:
            return Confidence(self._model.llm, self._model.tokenizer, choices)

    def verify(self) -> None:
        """JobRefused for structured output, or sampling, that vLLM refuses for every row;
        NeedsOtherEngine where an engine with another backend takes it.
        """
        llm = self._model.llm
        params = verified(llm.vllm_config, llm.get_tokenizer(), self._model.args, self._task)
        if self._task.output is not None and self._task.output.grammar is not None:
            self._check = AnswerCheck(self._task.output, grammar_check(params))

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """(position, prompt) of every request that can be sent; the others are refused."""
        self.verify()
        rendered: list[tuple[int, str | list[int], Prompt]] = []
        for position, request in enumerate(work.requests):
            try:
                arguments = self._split.arguments(request.template_arguments)
                prompt = Prompt(None, self._split.inside(arguments), arguments)
                rendered.append((position, self._rendered(request, arguments), prompt))
            except Exception as error:  # a chat template may raise whatever it likes
                work.emit(
                    position,
                    Refusal(
                        RowErrorKind.RENDER_ERROR,
                        f"the model's chat template refused the row: {error}",
                    ),
                )
        prompts = []
        for (position, _, prompt), tokens in zip(rendered, self._encoded(rendered), strict=True):
            if len(tokens) >= self._model.longest:
                work.emit(position, self.too_long(len(tokens)))
            elif not tokens:
                work.emit(position, Refusal(RowErrorKind.RENDER_ERROR, "the prompt is empty"))
            else:
                prompts.append((position, replace(prompt, content=tokens)))
        return prompts

    def _encoded(self, rendered: Sequence[tuple[int, str | list[int], Prompt]]) -> list[list[int]]:
        texts = [each for _, each, _ in rendered if isinstance(each, str)]
        if not texts:
            return [each for _, each, _ in rendered if not isinstance(each, str)]
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
            f"the prompt has {tokens} tokens, the model takes fewer than {self._model.longest}",
        )

    @property
    def _has_chat_template(self) -> bool:
        return getattr(self._model.tokenizer, "chat_template", None) is not None

    def _rendered(self, request: Request, arguments: Mapping[str, Any]) -> str | list[int]:
        """The text of the prompt; its token ids where the tokenizer makes them of messages itself."""
        messages = [dict(message) for message in request.messages or ()]
        tokenizer = self._model.tokenizer
        if isinstance(tokenizer, MistralTokenizer):
            with self._model.tokenizing:
                return list(
                    tokenizer.apply_chat_template(
                        messages, tokenize=True, add_generation_prompt=True, **arguments
                    )
                )
        if not self._has_chat_template:
            if not request.is_plain_prompt:
                raise ValueError("the model has no chat template; use task.prompt")
            return str(messages[0]["content"])
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **arguments
            )
        )

    async def run(self, request: Request, prompt: Any) -> tuple[Outcome, float]:
        """The row's outcome, and for how many seconds the row waited in vLLM's queue."""
        queued = 0.0

        async def sample_once(sampling: RowSampling) -> list[Outcome]:
            nonlocal queued
            ready = await self._ready(prompt)
            if isinstance(ready, Refusal):
                return [ready] * sampling.n
            ended = self._split.ended(prompt.inside)
            output = await self._generated(
                ready, request, self._params(request, sampling, prompt), ended
            )
            queued += _queued_seconds(output)
            outcomes = await self._outcomes(output, prompt.inside, ready)
            if self._held_at_once(outcomes, prompt.inside):
                again = await self._generated(
                    ready, request, self._params(request, sampling, prompt), ended=True
                )
                queued += _queued_seconds(again)
                outcomes = _both(outcomes, await self._outcomes(again, False, ready))
            return outcomes

        outcome = await sample_until_valid(self._task, request, sample_once)
        return outcome, queued

    def _params(self, request: Request, sampling: RowSampling, prompt: Prompt) -> SamplingParams:
        params = sampling_params(self._task, request, sampling, self._longest)
        params.thinking_token_budget = self._split.budget(prompt.arguments, prompt.inside)
        if self._split.family is not None:
            params.skip_special_tokens = False  # markers may be special tokens
        if self._confidence is not None and self._task.sampling.logprobs is None:
            params.logprob_token_ids = self._confidence.token_ids
        return params

    async def _generated(
        self, ready: Any, request: Request, params: SamplingParams, ended: bool | None
    ) -> RequestOutput:
        told = {} if self._task.output is None or ended is None else {"reasoning_ended": ended}
        found = self._model.llm.generate(ready, params, request_id(request), **told)
        output: RequestOutput = await finished(found)  # FINAL_ONLY: there is one
        return output

    def _held_at_once(self, outcomes: Sequence[Outcome], inside: bool | None) -> bool:
        """Whether samples answered without a thought, and so without the form that waits for its end: they are
        drawn again, held from the first token.
        """
        return (
            self._task.output is not None
            and inside is None
            and self._split.family is not None
            and any(
                isinstance(each, Refusal)
                and not each.reasoning_tokens
                and not each.columns.get("reasoning")
                for each in outcomes
            )
        )

    async def _ready(self, prompt: Prompt) -> Any:
        """What vLLM takes as the prompt of one sample, or a refusal."""
        return TokensPrompt(prompt_token_ids=prompt.content)

    async def _outcomes(
        self, output: RequestOutput, inside: bool | None, ready: Any
    ) -> list[Outcome]:
        """The outcome of each sample; the tokens of the prompt count with the first."""
        outcomes = [await self._checked(each, inside, ready) for each in output.outputs]
        numbers = prompt_numbers(self._task, output)
        if numbers:
            outcomes = [replace(each, columns={**each.columns, **numbers}) for each in outcomes]
        outcomes[0] = replace(
            outcomes[0],
            prompt_tokens=outcomes[0].prompt_tokens + len(output.prompt_token_ids or ()),
            cached_tokens=outcomes[0].cached_tokens + (output.num_cached_tokens or 0),
        )
        return outcomes

    async def _checked(
        self, completion: CompletionOutput, inside: bool | None, ready: Any
    ) -> Outcome:
        if completion.finish_reason not in ANSWERED:
            raise ValueError(f"it ended the row with {completion.finish_reason!r}; see its log")
        tokens = len(completion.token_ids)
        parted, thought_tokens = self._split.part(
            self._answer_text(completion), completion.token_ids, inside
        )
        outcome: Outcome
        if parted.answer is None:
            outcome = self._cut(completion.finish_reason, tokens)
        else:
            outcome = self._check.outcome(parted.answer, completion.finish_reason, 0, tokens)
        outcome = replace(outcome, reasoning_tokens=thought_tokens)
        start = self._split.start(completion.token_ids) if parted.thought else 0
        if isinstance(outcome, Answer):
            numbers = answer_numbers(self._task, completion, start)
            outcome = replace(outcome, columns={**outcome.columns, **numbers})
            if self._confidence is not None:
                told = completion.logprobs if self._task.sampling.logprobs is None else None
                outcome = await self._confidence.told(
                    outcome, ready, completion.token_ids, start, told
                )
        if self._task.keep_reasoning:
            own = {"reasoning": parted.reasoning if parted.thought else None}
            outcome = replace(outcome, columns={**outcome.columns, **own})
        return outcome

    def _cut(self, finish_reason: str | None, tokens: int) -> Refusal:
        """Why an answer that ends inside its thinking is none."""
        if finish_reason == "length":
            return Refusal(
                RowErrorKind.TRUNCATED,
                f"the answer was cut off inside its thinking, after {tokens} tokens: raise "
                f"task.sampling.max_tokens, which is {self._longest} here",
                output_tokens=tokens,
            )
        return Refusal(
            RowErrorKind.INVALID_OUTPUT,
            "the model ended its answer inside its thinking",
            output_tokens=tokens,
        )

    def _answer_text(self, completion: CompletionOutput) -> str:
        """VLLM's text, or the decoded tokens where that text has a replacement character.

        The incremental detokenizer takes a replacement character at the end of the prompt for the
        first bytes of the answer. With stop strings vLLM's text stays: only vLLM cuts them off.
        """
        text = str(completion.text)
        if "\ufffd" in text and not self._task.sampling.stop:
            with self._model.tokenizing:
                text = str(
                    self._model.tokenizer.decode(
                        completion.token_ids, skip_special_tokens=self._split.family is None
                    )
                )
        return text if self._split.family is None else self._without_special(text)

    def _without_special(self, text: str) -> str:
        """The text without the tokenizer's special tokens, but for the markers of thoughts."""
        return self._special.sub("", text)

    @cached_property
    def _special(self) -> "re.Pattern[str]":
        assert self._split.family is not None
        markers = self._split.family.markers
        kept = {markers.start, markers.end, *markers.ends_too, *markers.dropped}
        names = sorted(set(self._model.tokenizer.all_special_tokens) - kept, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")


def _both(before: Sequence[Outcome], after: Sequence[Outcome]) -> list[Outcome]:
    """The samples that were drawn again in place of those that failed, with the tokens of both."""
    outcomes: list[Outcome] = []
    for first, second in zip(before, after, strict=True):
        taken = second if isinstance(first, Refusal) else first
        outcomes.append(
            replace(
                taken,
                prompt_tokens=first.prompt_tokens + second.prompt_tokens,
                output_tokens=first.output_tokens + second.output_tokens,
                cached_tokens=first.cached_tokens + second.cached_tokens,
            )
        )
    return outcomes


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
