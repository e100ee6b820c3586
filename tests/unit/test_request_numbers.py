"""Numbers in the bodies of requests that no engine can have are errors of their rows."""

import math
from typing import Any

import pytest

from nightshift.worker.rows.request_numbers import COUNTS, refusal


@pytest.mark.parametrize("name", [*sorted(COUNTS), "temperature", "top_p", "logprobs", "priority"])
@pytest.mark.parametrize("value", [2**63, 2**80, -(2**63) - 1, math.inf, -math.inf, math.nan])
def test_a_number_that_no_engine_can_have_is_refused_by_name(name: str, value: float) -> None:
    why = refusal({"model": "m", name: value})
    assert why is not None
    assert why.startswith(f"{name} is ")


@pytest.mark.parametrize(
    "body",
    [
        {"n": True},
        {"seed": False},
        {"stop_token_ids": [1, 2**80]},
        {"logit_bias": {"5": math.inf}},
        {"input": [[1, 2**64]]},
    ],
)
def test_nested_numbers_and_truth_values_are_refused_too(body: dict[str, Any]) -> None:
    assert refusal(body) is not None


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 2**63 - 1, "seed": -(2**63), "temperature": 1e308},
        {"logprobs": True, "top_logprobs": 5, "stream": False},
        {"tools": [{"function": {"parameters": {"maximum": 2**64}}}], "metadata": {"id": 2**80}},
        {"messages": [{"role": "user", "content": "2"}], "input": ["a", "b"]},
    ],
)
def test_ordinary_numbers_and_those_of_the_content_pass(body: dict[str, Any]) -> None:
    assert refusal(body) is None
