"""Which engine arguments a tuning tries: only those that cannot change answers. Pure decisions."""

from collections.abc import Collection, Mapping, Sequence
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
"""Arguments that say how the same computation is cut into steps, and where its data are kept.

They may change the order of sums, as each other mixture of rows in a step does, and nothing else."""

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
"""Arguments that compute with fewer bits or speculate, and so may change answers. Other arguments of a spec, such as
max_model_len, say which model is meant and what it reads."""

MOST_BITS = (None, "auto", "float", "float32")
"""Values of FEWER_BITS that take no bits away."""

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
    refused = [name for name in named if name not in KEEP_ANSWERS]
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
