"""Which engine arguments may change answers, and which are tried beside the sizes: pure decisions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.producer.tune import halving

KEEP_ANSWERS = frozenset(
    [
        "max_num_seqs",
        "max_num_active_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "enable_chunked_prefill",
        "prefill_schedule_interval",
        "scheduler_reserve_full_isl",
        "scheduling_policy",
        "async_scheduling",
        "performance_mode",
        "stream_interval",
        "disable_log_stats",
        "enable_log_requests",
        "renderer_num_workers",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "block_size",
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "cpu_offload_gb",
        "kv_offloading_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "enable_expert_parallel",
        "disable_custom_all_reduce",
        "max_parallel_loading_workers",
        "enforce_eager",
        "max_cudagraph_capture_size",
        "cudagraph_capture_sizes",
        "mm_processor_cache_gb",
        "mm_processor_cache_type",
    ]
)
"""Arguments that say how the same computation is cut into steps, and where its data lie.

They may change the order of sums, as each other mixture of rows in a step does, and nothing else. What is not
named here counts as an argument that may change answers: also speculation, which is lossless in exact
arithmetic, since it checks several tokens in one pass, by other kernels, and draws other samples."""

FEWER_BITS = frozenset(
    [
        "kv_cache_dtype",
        "quantization",
        "quantization_config",
        "dtype",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
        "speculative_config",
        "spec_method",
        "spec_model",
        "spec_tokens",
    ]
)
"""Arguments that are faster since they compute with fewer bits, or since they speculate. Other arguments of a
spec, such as max_model_len, say which model is meant and what it reads."""

MOST_BITS = ("float", "float32")
"""Values of dtypes that take no bits away."""

NEUTRAL: Mapping[str, Any] = {
    "kv_cache_dtype": "auto",
    "dtype": "auto",
}
"""Values that are the same as no value (EngineArgs of vLLM 0.32)."""

NGRAM: Mapping[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
"""Speculation without a second model: what followed the last two to four tokens earlier in the prompt or the
answer is proposed, four tokens at once."""

FURTHER: Mapping[str, Sequence[Any]] = {
    "kv_cache_dtype": ("fp8",),
    "quantization": ("fp8_per_tensor", "fp8_per_channel"),
    "speculative_config": (dict(NGRAM),),
}
"""What is tried beside the sizes, one at a time: half the bytes of the KV cache, half the bytes of the weights
(quantised while they are loaded; a scale for each channel is nearer to the weights), and several tokens a step."""

WRITES = frozenset({"generate", "requests"})
"""Kinds of task that write tokens. Others compute a text in one pass: a KV cache is not read again there, and
nothing can be proposed."""

THROUGHPUT = {"performance_mode": "throughput"}
"""vLLM's own mode for batch work. In vLLM 0.32 it doubles the default sizes, and does nothing where the
arguments name both."""

LEAST_TOKENS = 1024
"""A step with fewer tokens is not tried."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a tuning tries: `first` are the arguments that run against each other, the spec's own first;
    `further` are values of single arguments that may change answers, each tried on top of the best;
    `left_out` says what is not tried, and why.
    """

    first: list[dict[str, Any]]
    further: list[dict[str, Any]]
    left_out: list[str]


def search_of(
    base: Mapping[str, Any],
    named: Mapping[str, Sequence[Any]],
    kind: str,
    *,
    on_gpu: bool,
    is_quantised: bool = False,
) -> Search:
    """What is tried for a spec with the arguments `base` and a task of this kind; `named` are the values
    that somebody wants to be tried. `is_quantised` says that the checkpoint is. BadInput for nothing to compare,
    and for too many combinations.
    """
    plain = {name: values for name, values in named.items() if name in KEEP_ANSWERS}
    first = halving.candidates(base, {**halving.TRIED, **plain})
    if "performance_mode" not in {*base, *plain} and not set(halving.TRIED) <= base.keys():
        first.append({**base, **THROUGHPUT})
    wanted = {name: values for name, values in named.items() if name not in KEEP_ANSWERS}
    left_out = []
    for name, values in FURTHER.items():
        if name in named:
            continue
        if (why := _no_use(name, base, kind, on_gpu=on_gpu, is_quantised=is_quantised)) is None:
            wanted[name] = values
        else:
            left_out.append(f"{name} is not tried: {why}")
    further = [
        {name: value}
        for name, values in wanted.items()
        for value in values
        if changed(base, {**base, name: value})
    ]
    if len(first) < 2 and not further:
        raise BadInput("nothing to compare: the values to try are the arguments of the spec")
    return Search(first, further, left_out)


def _no_use(
    name: str, base: Mapping[str, Any], kind: str, *, on_gpu: bool, is_quantised: bool
) -> str | None:
    """Why an argument of FURTHER is not tried, unless somebody names it."""
    if name in base:
        return "the spec has a value"
    if name != "quantization" and kind not in WRITES:
        return f"a task of kind {kind} writes no tokens"
    if name == "quantization" and not on_gpu:
        return "vLLM 0.32 makes fp8 weights on GPUs alone"
    if name == "quantization" and is_quantised:
        return "the weights of the model are quantised already"
    return None


def changed(own: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `args` that may change the answers of `own`."""
    names = dict.fromkeys([*own, *args])
    values = {name: (_value(own, name), _value(args, name)) for name in names}
    return {
        name: new for name, (old, new) in values.items() if name not in KEEP_ANSWERS and new != old
    }


def cheaper(own: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a spec that make it faster and may change answers."""
    return {
        name: value
        for name, value in changed({}, own).items()
        if name in FEWER_BITS and value not in MOST_BITS
    }


def _value(args: Mapping[str, Any], name: str) -> Any:
    value = args.get(name)
    return NEUTRAL.get(name) if value is None else value


def sizes_beside(
    best: Mapping[str, Any], tried: Collection[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The best arguments with half and with twice the tokens a step, as far as they were not tried."""
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


PAYS = 1.05
"""What may change answers must be so many times as fast as the best that keeps them: less may be noise."""


def is_worth(rate: float | None, best: float) -> bool:
    """Whether a rate is enough above the best one for answers that may differ."""
    return rate is not None and rate >= PAYS * best


def is_allowed(equal: float | None, least: float | None) -> bool:
    """Whether arguments that may change answers may be kept: the share of equal answers was measured, and
    is at least what the user allows. None allows none.
    """
    return least is not None and equal is not None and equal >= least
