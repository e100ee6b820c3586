"""Text generation on vLLM: chat template and sampling params in, text out, checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import xgrammar
from vllm import SamplingParams, TokensPrompt
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.structured_output.utils import grammar_is_likely_lark

from nightshift.common.errors import JobRefused, Retryable
from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Outcome, Refusal, Request, Work
from nightshift.worker.engines.structured import AnswerCheck, RowSampling, sample_until_valid
from nightshift.worker.engines.vllm import backends
from nightshift.worker.engines.vllm.model import Model, TaskHandler, finished, request_id

ANSWERED = ("stop", "length", "repetition")
"""Finish reasons of an answer; with any other, vLLM gave up on the row."""

INVALID_PARAMS = (ValueError, VLLMClientError)
"""What vLLM raises for structured outputs or sampling that it does not take."""


class Generation(TaskHandler):
    """The text of one batch's rows."""

    def __init__(self, model: Model, task: GenerateTask) -> None:
        self._model = model
        self._task = task
        self._check = AnswerCheck(task.output)

    def verify(self) -> None:
        """JobRefused for structured output, or sampling, that vLLM refuses for every row;
        NeedsOtherEngine where an engine with another backend takes it.
        """
        llm = self._model.llm
        params = verified(llm.vllm_config, llm.get_tokenizer(), self._model.args, self._task)
        if self._task.output is not None and self._task.output.grammar is not None:
            self._check = AnswerCheck(self._task.output, grammar_check(params))

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """(position, token ids) of every request that can be sent; the others are refused."""
        self.verify()
        texts: list[tuple[int, str]] = []
        for position, request in enumerate(work.requests):
            try:
                texts.append((position, self._text(request)))
            except Exception as error:  # a chat template may raise whatever it likes
                work.emit(
                    position,
                    Refusal(
                        RowErrorKind.RENDER_ERROR,
                        f"the model's chat template refused the row: {error}",
                    ),
                )
        if not texts:
            return []
        # HF's fast tokenizers are not safe for two threads at once.
        with self._model.tokenizing:
            encoded: list[list[int]] = self._model.tokenizer(
                [text for _, text in texts], add_special_tokens=not self._has_chat_template
            )["input_ids"]
        prompts = []
        for (position, _), tokens in zip(texts, encoded, strict=True):
            if len(tokens) >= self._model.longest:
                work.emit(position, self.too_long(len(tokens)))
            elif not tokens:
                work.emit(position, Refusal(RowErrorKind.RENDER_ERROR, "the prompt is empty"))
            else:
                prompts.append((position, tokens))
        return prompts

    def too_long(self, tokens: int) -> Refusal:
        """Why a prompt of so many tokens is refused."""
        return Refusal(
            RowErrorKind.TOO_LONG,
            f"the prompt has {tokens} tokens, the model takes fewer than {self._model.longest}",
        )

    @property
    def _has_chat_template(self) -> bool:
        return getattr(self._model.tokenizer, "chat_template", None) is not None

    def _text(self, request: Request) -> str:
        messages = [dict(message) for message in request.messages or ()]
        if not self._has_chat_template:
            if not request.is_plain_prompt:
                raise ValueError("the model has no chat template; use task.prompt")
            return str(messages[0]["content"])
        return str(
            self._model.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        )

    async def run(self, request: Request, prompt: Any) -> tuple[Outcome, float]:
        """The row's outcome, and for how many seconds the row waited in vLLM's queue."""
        queued = 0.0

        async def sample_once(sampling: RowSampling) -> Outcome:
            nonlocal queued
            ready = await self._ready(prompt)
            if isinstance(ready, Refusal):
                return ready
            params = sampling_params(self._task, request, sampling)
            answers = self._model.llm.generate(ready, params, request_id(request))
            output = await finished(answers)  # FINAL_ONLY: there is one
            queued += _queued_seconds(output)
            return self._checked(output)

        return await sample_until_valid(self._task, request.row_index, sample_once), queued

    async def _ready(self, prompt: Any) -> Any:
        """What vLLM takes as the prompt of one sample, or a refusal."""
        return TokensPrompt(prompt_token_ids=prompt)

    def _checked(self, output: RequestOutput) -> Outcome:
        completion = output.outputs[0]
        if completion.finish_reason not in ANSWERED:
            raise ValueError(f"it ended the row with {completion.finish_reason!r}; see its log")
        outcome = self._check.outcome(
            self._answer_text(output),
            completion.finish_reason,
            len(output.prompt_token_ids or ()),
            len(completion.token_ids),
        )
        return replace(outcome, cached_tokens=output.num_cached_tokens or 0)

    def _answer_text(self, output: RequestOutput) -> str:
        """VLLM's text, or the decoded tokens where that text has a replacement character.

        The incremental detokenizer takes a replacement character at the end of the prompt for the
        first bytes of the answer. With stop strings vLLM's text stays: only vLLM cuts them off.
        """
        completion = output.outputs[0]
        if "\ufffd" not in completion.text or self._task.sampling.stop:
            return str(completion.text)
        with self._model.tokenizing:
            return str(self._model.tokenizer.decode(completion.token_ids, skip_special_tokens=True))


def _queued_seconds(output: RequestOutput) -> float:
    """How long the row waited in vLLM's queue; 0 where vLLM keeps no times."""
    times = output.metrics
    return 0.0 if times is None else max(0.0, float(times.scheduled_ts - times.queued_ts))


def sampling_params(
    task: GenerateTask, request: Request, row_sampling: RowSampling
) -> SamplingParams:
    """The task's sampling and structured output for one row, as vLLM takes them."""
    sampling, output = task.sampling, task.output
    structured_outputs = None
    if output is not None:
        structured_outputs = StructuredOutputsParams(
            choice=output.choice,
            json=output.json_schema,
            regex=output.regex,
            grammar=output.grammar,
        )
    return SamplingParams(
        **sampling.model_dump(
            exclude={"temperature", "seed", "stop", "max_tokens", "max_tokens_column"}
        ),
        temperature=row_sampling.temperature,
        max_tokens=min(sampling.max_tokens, request.max_tokens or sampling.max_tokens),
        stop=sampling.stop or None,
        seed=row_sampling.seed,
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=structured_outputs,
    )


def verified(
    config: VllmConfig, tokenizer: Any, args: Mapping[str, Any], task: GenerateTask
) -> SamplingParams:
    """The params of the task's rows, verified for an engine of this configuration, which the spec gave
    these arguments; not for a request, since verifying sets the backend.

    JobRefused when vLLM would refuse every row of the task, NeedsOtherEngine when an engine with another
    backend would not. Retryable when the check itself fails: it may succeed on another worker.
    """
    first = RowSampling(task.sampling.temperature, None)

    def make() -> SamplingParams:
        return sampling_params(task, Request(0), first)

    try:
        params = make()
        backends.verify(config, tokenizer, params)
    except INVALID_PARAMS as error:
        why = backends.refuse(config, tokenizer, args, make, backends.message(error))
        raise _refused(why) from error
    except Exception as error:
        raise Retryable(
            "vLLM could not check the task's form: "
            f"{type(error).__name__}: {backends.message(error)}"
        ) from error
    return params


def grammar_check(params: SamplingParams) -> Callable[[str], bool] | None:
    """What tells whether a whole text follows the grammar: a stop string may have cut an answer.

    `params` are verified ones. None without a grammar, and for other backends than xgrammar, whose
    syntax is another.
    """
    structured = params.structured_outputs
    if structured is None or structured.grammar is None or structured._backend != "xgrammar":
        return None
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([]))
    is_lark = grammar_is_likely_lark(structured.grammar)
    try:
        compile_grammar = compiler.compile_lark if is_lark else compiler.compile_grammar
        grammar = compile_grammar(structured.grammar)
    except RuntimeError as error:  # xgrammar does not take the grammar
        raise _refused(backends.message(error)) from error

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
        return bool(matcher.accept_string(text) and matcher.is_terminated())

    return accepts


def _refused(why: str) -> JobRefused:
    return JobRefused(f"vLLM takes no row of this task: {why}")
