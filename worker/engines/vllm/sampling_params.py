"""vLLM's sampling params of a task, structured outputs included: made and verified."""

import re
from collections.abc import Callable

import xgrammar
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.structured_output.utils import grammar_is_likely_lark

from nightshift.common.errors import JobRefused, Retryable
from nightshift.common.spec import GenerateTask
from nightshift.worker.engines.protocol import Request
from nightshift.worker.engines.structured import RowSampling

INVALID_PARAMS = (ValueError, VLLMClientError)
"""What vLLM raises for structured outputs or sampling that it does not take."""

LOG_PREFIX = re.compile(r"\[[\d:]+\] \S+?:\d+: ")
"""The time and the source line that xgrammar puts before its messages."""


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


def verified(llm: AsyncLLM, make: Callable[[], SamplingParams]) -> SamplingParams:
    """The params that `make` makes, verified; not for a request, since verifying sets the backend.

    JobRefused when vLLM would refuse every row of the task. Retryable when the check itself fails:
    it may succeed on another worker.
    """
    config = llm.vllm_config
    try:
        params = make()
        params.verify(
            config.model_config,
            config.speculative_config,
            config.structured_outputs_config,
            llm.get_tokenizer(),
        )
    except INVALID_PARAMS as error:
        raise _refused(error) from error
    except Exception as error:
        raise Retryable(
            f"vLLM could not check the task's form: {type(error).__name__}: {_message(error)}"
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
        raise _refused(error) from error

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
        return bool(matcher.accept_string(text) and matcher.is_terminated())

    return accepts


def _refused(error: Exception) -> JobRefused:
    return JobRefused(f"vLLM takes no row of this task: {_message(error)}")


def _message(error: Exception) -> str:
    message = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in message:
        message = f"{message} {error.__cause__}"
    return " ".join(LOG_PREFIX.sub("", message).split())
