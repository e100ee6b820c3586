"""Several samples of one row: their list, the majority, and what is drawn again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request
from nightshift.worker.engines.resampling import RowSampling, row_sampling, sample_until_valid
from nightshift.worker.engines.samples import row_outcome

LABELS = {"choice": ["good", "bad", "odd"]}
MOOD = {
    "type": "object",
    "properties": {"mood": {"type": "string"}, "stars": {"type": "integer"}},
    "required": ["mood", "stars"],
}


def task(n: int = 3, temperature: float = 1.0, **fields: Any) -> GenerateTask:
    sampling = {"n": n, "temperature": temperature, "seed": 5}
    return GenerateTask.model_validate(
        {"kind": "generate", "prompt": "{{ text }}", "sampling": sampling, **fields}
    )


def said(text: str, tokens: int = 2) -> Answer:
    return Answer({"output": text}, "stop", 0, tokens)


BAD = Refusal(RowErrorKind.INVALID_OUTPUT, "the answer is no label", output_tokens=4)


def test_samples_are_a_list_in_their_order_with_their_own_tokens() -> None:
    outcome = row_outcome(task(), [said("a", 1), said("b", 2), said("a", 3)])
    assert isinstance(outcome, Answer)
    assert [each["output"] for each in outcome.columns["outputs"]] == ["a", "b", "a"]
    assert [each["output_tokens"] for each in outcome.columns["outputs"]] == [1, 2, 3]
    assert {each["finish_reason"] for each in outcome.columns["outputs"]} == {"stop"}
    assert outcome.output_tokens == 6
    assert "output" not in outcome.columns


def test_a_failed_sample_is_null_and_its_tokens_count() -> None:
    outcome = row_outcome(task(), [said("a"), BAD, said("b")])
    assert isinstance(outcome, Answer)
    assert outcome.columns["outputs"][1] is None
    assert outcome.output_tokens == 8


def test_a_row_fails_when_all_its_samples_do() -> None:
    outcome = row_outcome(task(), [BAD, BAD, BAD])
    assert isinstance(outcome, Refusal)
    assert outcome.message == "none of 3 samples has an answer; the first: the answer is no label"
    assert outcome.kind is RowErrorKind.INVALID_OUTPUT
    assert outcome.output_tokens == 12


VOTES: dict[str, tuple[list[Outcome], str, float]] = {
    "all agree": ([said("good")] * 3, "good", 1.0),
    "two of three": ([said("bad"), said("good"), said("good")], "good", 2 / 3),
    "a tie goes to the first": ([said("odd"), said("bad"), said("good")], "odd", 1 / 3),
    "a tie between later ones": ([BAD, said("bad"), said("good")], "bad", 1 / 3),
    "a failed sample has no vote": ([BAD, said("good"), BAD], "good", 1 / 3),
}


@pytest.mark.parametrize(("samples", "output", "share"), VOTES.values(), ids=VOTES)
def test_the_majority_of_a_choice_is_the_answer(
    samples: Sequence[Outcome], output: str, share: float
) -> None:
    outcome = row_outcome(task(output=LABELS, vote="choice"), samples)
    assert isinstance(outcome, Answer)
    assert outcome.columns["output"] == output
    assert outcome.columns["vote_share"] == share


def test_a_vote_on_a_field_takes_the_first_answer_with_its_majority() -> None:
    texts = [
        '{"mood": "bad", "stars": 1}',
        '{"mood": "good", "stars": 4}',
        '{"mood": "good", "stars": 5}',
    ]
    outcome = row_outcome(
        task(output={"json_schema": MOOD}, vote="mood"), [said(text) for text in texts]
    )
    assert isinstance(outcome, Answer)
    assert outcome.columns["output"] == texts[1]
    assert outcome.columns["outputs"][2]["parsed"] == {"mood": "good", "stars": 5}


def drawn(
    told: GenerateTask, *rounds: Sequence[Outcome], request: Request | None = None
) -> tuple[Outcome, list[RowSampling]]:
    """The outcome of a row whose model says this in each try, and how each try was sampled."""
    asked: list[RowSampling] = []
    left = iter(rounds)

    async def sample_once(sampling: RowSampling) -> Sequence[Outcome]:
        asked.append(sampling)
        return next(left)

    return asyncio.run(sample_until_valid(told, request or Request(7), sample_once)), asked


def test_only_samples_that_failed_are_drawn_again() -> None:
    told = task(output={**LABELS, "on_invalid": {"retries": 1}}, vote="choice")
    outcome, asked = drawn(told, [said("bad"), BAD, said("good")], [said("good")])
    assert isinstance(outcome, Answer)
    assert [each["output"] for each in outcome.columns["outputs"]] == ["bad", "good", "good"]
    assert outcome.columns["output"] == "good"
    assert [each.n for each in asked] == [3, 1]
    assert asked[0].seed != asked[1].seed
    assert outcome.output_tokens == 2 + 4 + 2 + 2


def test_seeds_of_rows_lie_so_far_apart_that_no_sample_has_that_of_another() -> None:
    told = task(n=8)
    seeds = []
    for row in range(200):
        first = row_sampling(told, Request(row), 0, 8).seed
        assert first is not None
        seeds += range(first, first + 8)
    assert len(set(seeds)) == len(seeds)


def test_a_greedy_row_of_a_job_with_samples_is_told_so() -> None:
    told = task(sampling_columns={"temperature": "heat"})
    outcome, asked = drawn(told, request=Request(7, sampling={"temperature": 0.0}))
    assert isinstance(outcome, Refusal)
    assert (
        outcome.message == "the row's own temperature is 0, at which its 3 samples would be equal"
    )
    assert not asked


OWN: dict[str, tuple[dict[str, float], float, int | None]] = {
    "the job's": ({}, 1.0, None),
    "its own temperature": ({"temperature": 0.25}, 0.25, None),
    "its own seed": ({"seed": 11}, 1.0, 11),
    "greedy": ({"temperature": 0.0, "seed": 11}, 0.0, None),
}


@pytest.mark.parametrize(("own", "temperature", "seed"), OWN.values(), ids=OWN)
def test_a_row_is_sampled_by_its_own_columns(
    own: dict[str, float], temperature: float, seed: int | None
) -> None:
    found = row_sampling(task(n=1), Request(7, sampling=own), 0)
    assert found.temperature == temperature
    if seed is not None:
        assert found.seed == seed
    assert (found.seed is None) == (temperature == 0)
