"""Whether vLLM runs the rows of a task at all: structured output and sampling, asked before the first row."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import xgrammar
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.v1.structured_output.utils import grammar_is_likely_lark

from nightshift.common.errors import JobRefused, Retryable
from nightshift.common.spec import GenerateTask
from nightshift.common.text import counted
from nightshift.worker.engines.protocol import Request
from nightshift.worker.engines.resampling import RowSampling
from nightshift.worker.engines.vllm import backends
from nightshift.worker.engines.vllm.params import sampling_params

INVALID_PARAMS = (ValueError, VLLMClientError)
"""What vLLM raises for structured outputs or sampling that it does not take."""


def verified(
    config: VllmConfig, tokenizer: Any, args: Mapping[str, Any], task: GenerateTask
) -> SamplingParams:
    """The params of the task's rows, verified for an engine of this configuration, which the spec gave
    these arguments; not for a request, since verifying sets the backend.

    JobRefused when vLLM would refuse every row of the task, NeedsOtherEngine when an engine with another
    backend would not. Retryable when the check itself fails: it may succeed on another worker.
    """
    # A row's own temperature, which the check does not know, is above 0 where there are several samples.
    first = RowSampling(task.sampling.temperature or (1.0 if task.sampling.n > 1 else 0.0), None)

    def make() -> SamplingParams:
        return sampling_params(task, Request(0), replace(first, n=task.sampling.n))

    vocabulary = config.model_config.get_vocab_size()
    if task.sampling.most_logprobs > vocabulary:
        raise JobRefused(
            f"the task asks for {task.sampling.most_logprobs} logprobs of a token, and the model's vocabulary has "
            f"{counted(vocabulary, 'token')}"
        )
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
