"""Which engine arguments a tuning tries: only those that cannot change answers. Pure decisions."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.permits.vllm_arguments import FEWER_BITS, KEEPS_ANSWERS
from nightshift.producer.tune import halving

MOST_BITS = (None, "auto", "float", "float32")
"""Values of FEWER_BITS that take no bits away. Other arguments of a spec, such as max_model_len, say which model is meant
and what it reads."""

THROUGHPUT = {"performance_mode": "throughput"}
"""vLLM's own mode for batch work. In vLLM 0.32 it doubles the default sizes, and does nothing where the
arguments name both."""

LEAST_TOKENS = 1024
"""A step with fewer tokens is not tried."""


def candidates(base: Mapping[str, Any], named: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the arguments to compare for a spec with the arguments `base`, the spec's own first; `named` are the
    values that the user wants to be tried. BadInput for an argument that may change answers, for nothing to compare,
    and for too many combinations.
    """
    refused = [name for name in named if name not in KEEPS_ANSWERS]
    if refused:
        raise BadInput(
            f"--try {refused[0]}: this argument may change answers, and tune tries only what cannot. Set it in "
            "engine.args of a spec and compare the answers: docs/tuning.md shows how"
        )
    found = halving.candidates(base, {**halving.TRIED, **named})
    if "performance_mode" not in {*base, *named} and not set(halving.TRIED) <= base.keys():
        found.append({**base, **THROUGHPUT})
    if len(found) < 2:
        raise BadInput("nothing to compare: the values to try are the arguments of the spec")
    return found


def left_out(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a spec that `args: auto` of other jobs does not get: they may change answers."""
    return {
        name: value for name, value in own.items() if name in FEWER_BITS and value not in MOST_BITS
    }


def sizes_beside(
    best: Mapping[str, Any], tried: Collection[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the best arguments with half and with twice the tokens a step, as far as they were not tried."""
    tokens = best.get("max_num_batched_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return []
    found = [{**best, "max_num_batched_tokens": size} for size in (tokens // 2, tokens * 2)]
    return [
        args
        for args in found
        if args["max_num_batched_tokens"] >= LEAST_TOKENS
        and halving.can_load(args)
        and args not in tried
    ]
