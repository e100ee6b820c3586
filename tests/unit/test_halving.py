"""Which engine arguments are tried with how many rows, and which go on."""

from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.producer.tune import halving
from nightshift.producer.tune.halving import Rung


@pytest.mark.parametrize(
    ("base", "tried", "found"),
    [
        ({}, {"a": [1]}, [{}, {"a": 1}]),
        ({"a": 1}, {"a": [1, 2]}, [{"a": 1}, {"a": 2}]),
        (
            {"x": 0},
            {"a": [1, 2], "b": ["c"]},
            [{"x": 0}, {"x": 0, "a": 1, "b": "c"}, {"x": 0, "a": 2, "b": "c"}],
        ),
        # vLLM refuses fewer tokens a step than sequences.
        (
            {},
            {"max_num_seqs": [64, 4096], "max_num_batched_tokens": [2048]},
            [{}, {"max_num_seqs": 64, "max_num_batched_tokens": 2048}],
        ),
        # What is no number is vLLM's matter.
        ({"max_num_seqs": "many"}, {"max_num_batched_tokens": [1]}, None),
    ],
)
def test_the_arguments_of_the_spec_are_compared_with_each_combination(
    base: dict[str, Any], tried: dict[str, list[Any]], found: list[dict[str, Any]] | None
) -> None:
    expected = found or [base, {**base, "max_num_batched_tokens": 1}]
    assert halving.candidates(base, tried) == expected


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(BadInput, match="66 combinations are more than 64"):
        halving.candidates({"a": 1}, {"b": range(65)})


@pytest.mark.parametrize(
    ("candidates", "rows", "steps"),
    [
        (2, 100, [Rung(2, 100)]),
        (3, 100, [Rung(3, 33), Rung(1, 100)]),
        (10, 1152, [Rung(10, 128), Rung(4, 384), Rung(2, 1152)]),
        # A step with no more rows than the one before would run the same trials again.
        (64, 10, [Rung(64, 1), Rung(3, 3), Rung(1, 10)]),
    ],
)
def test_each_step_has_a_third_of_the_candidates_and_three_times_the_rows(
    candidates: int, rows: int, steps: list[Rung]
) -> None:
    assert halving.rungs(candidates, rows) == steps


@pytest.mark.parametrize(
    ("rows", "least", "steps"),
    [
        (9216, 3072, [Rung(10, 3072), Rung(2, 9216)]),
        (1152, 100, [Rung(10, 128), Rung(4, 384), Rung(2, 1152)]),
        (1152, 300, [Rung(10, 300), Rung(4, 384), Rung(2, 1152)]),
        # The input has no more rows than these.
        (300, 3072, [Rung(10, 300)]),
    ],
)
def test_the_first_trials_have_rows_enough_to_fill_the_engine(
    rows: int, least: int, steps: list[Rung]
) -> None:
    assert halving.rungs(10, rows, least) == steps


@pytest.mark.parametrize(
    ("candidates", "rows"),
    [
        ([{}, {"max_num_seqs": 64}, {"max_num_seqs": 1024}], 3072),
        ([{}, {"max_num_seqs": "many"}, {"max_num_seqs": 0}], 3),
    ],
)
def test_the_largest_engine_decides_how_many_rows_are_enough(
    candidates: list[dict[str, Any]], rows: int
) -> None:
    assert halving.enough_rows(candidates) == rows


@pytest.mark.parametrize(
    ("rates", "keep", "on"),
    [
        ({0: 1.0, 1: 3.0, 2: 2.0}, 1, [0, 1]),
        ({0: 9.0, 1: 3.0, 2: 2.0}, 1, [0]),
        ({0: None, 1: 3.0, 2: 2.0, 3: None}, 2, [1, 2]),
        ({2: 5.0, 4: 5.0}, 1, [2]),
        ({0: None, 1: None}, 2, []),
    ],
)
def test_the_fastest_go_on_and_the_arguments_of_the_spec_with_them(
    rates: dict[int, float | None], keep: int, on: list[int]
) -> None:
    assert halving.survivors(rates, keep) == on
