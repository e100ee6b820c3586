"""Which engine arguments are tried with how many rows, and which go on."""

from typing import Any

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.producer.cli import tune as command
from nightshift.producer.tune import halving, tune
from nightshift.producer.tune.halving import Rung
from nightshift.producer.tune.tune import Candidate


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


@pytest.mark.parametrize(
    ("tried", "why"),
    [
        ({"a": [1]}, "nothing to compare"),
        ({"b": range(65)}, "66 combinations are more than 64"),
    ],
)
def test_too_few_and_too_many_combinations_are_refused(tried: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        halving.candidates({"a": 1}, tried)


@pytest.mark.parametrize(
    ("candidates", "rows", "steps"),
    [
        (2, 100, [Rung(2, 100)]),
        (3, 100, [Rung(3, 33), Rung(1, 100)]),
        (10, 1152, [Rung(10, 128), Rung(4, 384), Rung(2, 1152)]),
        (64, 10, [Rung(64, 1), Rung(22, 1), Rung(8, 1), Rung(3, 3), Rung(1, 10)]),
    ],
)
def test_each_step_has_a_third_of_the_candidates_and_three_times_the_rows(
    candidates: int, rows: int, steps: list[Rung]
) -> None:
    assert halving.rungs(candidates, rows) == steps


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


class Trials(tune._Trials):
    """Trials whose rates are known: by the candidate's `speed`, in a row of numbers of rows."""

    def __init__(self) -> None:
        object.__setattr__(self, "console", Console(quiet=True))
        self.ran: list[tuple[int, int]]
        object.__setattr__(self, "ran", [])

    def run(self, candidate: Candidate, rows: int) -> float | None:
        speed = candidate.args["speed"]
        self.ran.append((speed, rows))
        if speed < 0:
            candidate.problem = f"out of memory at {speed}"
            return None
        candidate.rates[rows] = float(speed)
        return float(speed)


def test_a_search_ends_with_the_fastest_and_a_trial_that_breaks_is_a_result() -> None:
    found = [Candidate({"speed": speed}) for speed in (5, 1, -1, 9, 7)]
    trials = Trials()
    best = tune._search(found, trials, 30)
    assert best.args == {"speed": 9}
    assert trials.ran == [
        (5, 10), (1, 10), (-1, 10), (9, 10), (7, 10),
        (5, 30), (7, 30), (9, 30),
    ] or trials.ran == [
        (5, 10), (1, 10), (-1, 10), (9, 10), (7, 10),
        (5, 30), (9, 30), (7, 30),
    ]  # fmt: skip
    assert found[2].problem == "out of memory at -1"
    made = tune.Tuned(found, best, "2 CPU cores", "m", "generate")
    assert made.gain == pytest.approx(9 / 5)
    told = tune.as_json(made)
    assert (told["kept"], told["tried"][3]["rows_per_second"]) == ({"speed": 9}, {10: 9.0, 30: 9.0})
    out = Console(record=True, width=120, quiet=False)
    with out.capture() as shown:
        tune.show(made, out)
    text = shown.get()
    assert "out of memory at -1" in text
    assert "Kept: speed=9, 1.80 times the rows/s of the spec's own, for m, generate" in text


def test_without_a_trial_that_ran_the_reason_is_said() -> None:
    with pytest.raises(BadInput, match="no trial came to its end: out of memory at -1"):
        tune._search([Candidate({"speed": -1}), Candidate({"speed": -1})], Trials(), 30)


def test_the_values_of_a_flag_are_json_or_strings() -> None:
    assert command._values("a=1,0.5,true,auto,null") == ("a", [1, 0.5, True, "auto", None])
    for wrong in ("a", "a=", "=1"):
        with pytest.raises(BadInput, match="NAME=VALUE"):
            command._values(wrong)
