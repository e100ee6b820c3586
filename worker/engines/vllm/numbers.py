"""Log probabilities of tokens, as values of columns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput

from nightshift.common.spec import GenerateTask


def answer_numbers(task: GenerateTask, completion: CompletionOutput, start: int) -> dict[str, Any]:
    """The column `logprobs` of a sample, where the task asks for it: one value for each token from `start`."""
    most = task.sampling.logprobs
    if most is None:
        return {}
    told = list(completion.logprobs or ())
    return {"logprobs": _told(completion.token_ids[start:], told[start:], most)}


def prompt_numbers(task: GenerateTask, output: RequestOutput) -> dict[str, Any]:
    """The column `prompt_logprobs` of a row, where the task asks for it; the first token has no number."""
    most = task.sampling.prompt_logprobs
    if most is None:
        return {}
    told = list(output.prompt_logprobs or ())
    return {"prompt_logprobs": _told(output.prompt_token_ids or (), told, most)}


def _told(ids: Sequence[int], given: Sequence[Any], most: int) -> list[dict[str, Any]]:
    """One value a token: the token itself, its number, and the likeliest tokens with theirs."""
    return [
        {**_token(token, told), "top": _top(told, most)}
        for token, told in zip(ids, given, strict=True)
    ]


def _token(token: int, told: Mapping[int, Any] | None) -> dict[str, Any]:
    each = (told or {}).get(token)
    return {
        "token": None if each is None else each.decoded_token,
        "token_id": token,
        "logprob": None if each is None else float(each.logprob),
    }


def _top(told: Mapping[int, Any] | None, most: int) -> list[dict[str, Any]]:
    """The likeliest tokens, the likeliest first. vLLM also tells the probability of the chosen token, whatever its
    rank. Tokens that structured output does not allow have no probability, and are left out.
    """
    possible = [each for each in (told or {}).items() if each[1].logprob != -math.inf]
    ranked = sorted(possible, key=lambda each: each[1].rank or 0)
    return [
        {"token": each.decoded_token, "token_id": token, "logprob": float(each.logprob)}
        for token, each in ranked[:most]
    ]
