"""Which engine arguments a tuning tries, which it refuses, and which a spec keeps for itself."""

from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.permits.vllm_arguments import (
    FEWER_BITS,
    KEEPS_ANSWERS,
    OPERATOR,
    PLAIN,
    RUNS_CODE,
)
from nightshift.producer.tune import arguments, halving
from nightshift.producer.tune.trials import Candidate
from nightshift.producer.tune.tune import try_sizes
from tests.unit.test_tune import KnownTrials

ONE_SIZE = {"max_num_seqs": [8], "max_num_batched_tokens": [2048]}
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
FASTER = {"performance_mode": "throughput"}


def test_every_argument_that_keeps_answers_is_one_of_vllm() -> None:
    assert KEEPS_ANSWERS <= PLAIN | OPERATOR | RUNS_CODE
    assert not KEEPS_ANSWERS & FEWER_BITS


@pytest.mark.parametrize(
    ("base", "named", "more"),
    [
        ({}, {}, [SIZES, FASTER]),
        ({"kv_cache_dtype": "fp8"}, {}, [SIZES, FASTER]),
        (
            {},
            {"gpu_memory_utilization": [0.9, 0.95]},
            [
                {**SIZES, "gpu_memory_utilization": 0.9},
                {**SIZES, "gpu_memory_utilization": 0.95},
                FASTER,
            ],
        ),
        ({}, {"performance_mode": ["balanced"]}, [{**SIZES, "performance_mode": "balanced"}]),
        # If the spec names both sizes, the mode has nothing left to double.
        ({"max_num_seqs": 4, "max_num_batched_tokens": 64}, {}, [SIZES]),
    ],
)
def test_what_is_tried(
    base: dict[str, Any], named: dict[str, list[Any]], more: list[dict[str, Any]]
) -> None:
    found = arguments.candidates(base, {**ONE_SIZE, **named})
    assert found == [base, *({**base, **each} for each in more)]


def test_a_search_without_names_has_nine_sizes_and_the_mode() -> None:
    found = arguments.candidates({}, {})
    assert len(found) == 11
    assert {name for each in found for name in each} <= KEEPS_ANSWERS


@pytest.mark.parametrize(
    "name",
    [
        "kv_cache_dtype",
        "quantization",
        "dtype",
        "speculative_config",
        # Other kernels round otherwise, and another length is another model.
        "compilation_config",
        "max_model_len",
        # Nobody knows what it does.
        "an_argument_of_tomorrow",
    ],
)
def test_an_argument_that_may_change_answers_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"--try {name}: this argument may change answers"):
        arguments.candidates({}, {**ONE_SIZE, name: ["x"]})


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(BadInput, match="nothing to compare"):
        arguments.candidates(SIZES, ONE_SIZE)


@pytest.mark.parametrize(
    ("own", "left_out"),
    [
        (
            {"kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}, **SIZES},
            {"kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}},
        ),
        ({"dtype": "float16"}, {"dtype": "float16"}),
        # As many bits as there are, and the same as no value.
        ({"dtype": "float32", "kv_cache_dtype": "auto", "quantization": None}, {}),
        # Which model is meant, and how far it reads.
        ({"max_model_len": 128, "hf_overrides": {"num_labels": 2}, "hf_token": "hf_abc"}, {}),
    ],
)
def test_which_arguments_of_a_spec_auto_does_not_stand_for(
    own: dict[str, Any], left_out: dict[str, Any]
) -> None:
    assert arguments.left_out(own) == left_out


@pytest.mark.parametrize(
    ("best", "tried", "sizes"),
    [
        ({"max_num_batched_tokens": 8192}, [], [4096, 16384]),
        ({"max_num_batched_tokens": 8192}, [{"max_num_batched_tokens": 16384}], [4096]),
        # With other sequences a size is not the same.
        (
            {"max_num_batched_tokens": 8192},
            [{"max_num_batched_tokens": 4096, "max_num_seqs": 1}],
            [4096, 16384],
        ),
        ({"max_num_batched_tokens": 1024}, [], [2048]),
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 2048}, [], [4096]),
        ({}, [], []),
        ({"max_num_batched_tokens": "many"}, [], []),
    ],
)
def test_the_sizes_beside_the_best_that_were_not_tried(
    best: dict[str, Any], tried: list[dict[str, Any]], sizes: list[int]
) -> None:
    found = arguments.sizes_beside(best, tried)
    assert [each["max_num_batched_tokens"] for each in found] == sizes


def test_if_the_budget_is_spent_the_best_stays() -> None:
    own = Candidate({"max_num_batched_tokens": 2048, "speed": 100}, {30: 100.0})
    found = [own]
    assert try_sizes(found, own, KnownTrials(most=0)) is own
    assert found == [own]


def test_a_larger_step_is_kept_if_it_is_faster() -> None:
    own = Candidate({"max_num_batched_tokens": 2048, "speed": 100}, {30: 90.0})
    found = [own]
    best = try_sizes(found, own, KnownTrials())
    assert [each.args["max_num_batched_tokens"] for each in found] == [2048, 1024, 4096]
    assert best is found[1], "as fast as the last, and earlier"
    assert halving.can_load(best.args)
