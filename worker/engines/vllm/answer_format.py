"""Whether vLLM can hold answers to a task's form, and whether a text follows a grammar."""

import re
from collections.abc import Callable

import xgrammar
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.structured_output.utils import grammar_is_likely_lark

from nightshift.common.errors import JobRefused, Retryable

FAULTS = (ValueError, VLLMClientError)
"""What vLLM raises for a form or for sampling that it does not take."""

PLACE = re.compile(r"\[[\d:]+\] \S+?:\d+: ")
"""Time and source line that xgrammar puts before its messages."""


def verified(llm: AsyncLLM, make: Callable[[], SamplingParams]) -> SamplingParams:
    """Says at once, by JobRefused, what vLLM would say of each row by itself.

    Retryable for what says nothing of the task: another worker may be in better order. The params that `make` made, with the backend that holds the answers: for no request.
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
    except FAULTS as error:
        raise _refused(error) from error
    except Exception as error:
        raise Retryable(
            f"vLLM could not check the task's form: {type(error).__name__}: {_said(error)}"
        ) from error
    return params


def acceptor(params: SamplingParams) -> Callable[[str], bool] | None:
    """Whether a whole text follows the grammar; None where not xgrammar holds it, which has a
    syntax of its own. For params that were verified. A stop string may have cut an answer.
    """
    structured = params.structured_outputs
    if structured is None or structured.grammar is None or structured._backend != "xgrammar":
        return None
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([]))
    is_lark = grammar_is_likely_lark(structured.grammar)
    try:
        compile_it = compiler.compile_lark if is_lark else compiler.compile_grammar
        grammar = compile_it(structured.grammar)
    except RuntimeError as error:  # what xgrammar raises for a grammar that it does not take
        raise _refused(error) from error

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
        return bool(matcher.accept_string(text) and matcher.is_terminated())

    return accepts


def _refused(error: Exception) -> JobRefused:
    return JobRefused(f"vLLM takes no row of this task: {_said(error)}")


def _said(error: Exception) -> str:
    said = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in said:
        said = f"{said} {error.__cause__}"
    return " ".join(PLACE.sub("", said).split())
