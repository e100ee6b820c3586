"""Answers are counted by length and by label: those of a part, and added up."""

from typing import Any

import pyarrow as pa
import pytest

from nightshift.common.formats import output_schema
from nightshift.common.ledger.jobs.answer_counts import (
    MOST_LABELS,
    NOTHING,
    AnswerCounts,
    JobAnswers,
    bounds,
)
from nightshift.common.spec import JobSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from nightshift.worker.rows.results import RowResults, part_table, with_kept_rows

INPUTS = pa.schema([("id", pa.string())])

LABELS = ["good", "bad", "so so"]


def spec(task: dict[str, Any], /, **sections: Any) -> JobSpec:
    engine = {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    made: dict[str, Any] = {
        "name": "counted",
        "input": {"uri": "x.parquet", "id": "id"},
        "output": {"uri": "out"},
        "task": {"kind": "generate", "prompt": "p", **task},
        "engine": engine,
    }
    return JobSpec.model_validate(made | sections)


def counts(job: JobSpec, outcomes: list[Outcome]) -> AnswerCounts:
    passed = pa.table({"id": [str(row) for row in range(len(outcomes))]}, INPUTS)
    results = RowResults(range(len(outcomes)), passed, dict(enumerate(outcomes)))
    schema = output_schema.output_schema(job, INPUTS) or output_schema.inferred_schema(
        job, INPUTS, results.answers()
    )
    assert schema is not None
    return part_table(job, schema, results).answered


def answer(tokens: int, text: str = "x", **fields: Any) -> Answer:
    return Answer({"output": text}, "stop", 5, tokens, **fields)


def refusal(tokens: int) -> Refusal:
    return Refusal(RowErrorKind.INVALID_OUTPUT, "no", 5, tokens)


LENGTHS = {
    "a power of two begins a place": ([1, 2, 3, 4, 7, 8], (0, 1, 2, 2, 1)),
    "an empty answer among others": ([0, 0, 5], (2, 0, 0, 1)),
    "no answer has a token": ([0, 0, 0], ()),
    "long ones": ([2**20 - 1, 2**20], (*[0] * 20, 1, 1)),
    "no row": ([], ()),
}


@pytest.mark.parametrize(("tokens", "lengths"), LENGTHS.values(), ids=LENGTHS)
def test_answers_count_by_the_length_that_they_have(
    tokens: list[int], lengths: tuple[int, ...]
) -> None:
    assert counts(spec({}), [answer(each) for each in tokens]) == AnswerCounts(lengths)


def test_the_tokens_at_a_place_are_those_that_count_there() -> None:
    for place in range(22):
        least, most = bounds(place)
        for tokens in {least, most}:
            found = counts(spec({}), [answer(tokens), answer(1)]).lengths
            assert found[place] >= 1, (place, tokens)


def test_a_row_without_an_answer_counts_nowhere() -> None:
    job = spec({"output": {"choice": LABELS}})
    found = counts(job, [answer(1, "bad"), refusal(9), answer(1, "good")])
    assert found == AnswerCounts((0, 2), (1, 1, 0))


def test_the_answer_of_another_row_counts_by_its_label_alone() -> None:
    job = spec({"output": {"choice": LABELS}, "dedupe": True})
    found = counts(job, [answer(2, "bad"), answer(0, "bad", answered_by=0)])
    assert found == AnswerCounts((0, 0, 1), (0, 2, 0))


@pytest.mark.parametrize("vote", [{}, {"vote": "choice"}], ids=["samples", "voted"])
def test_each_sample_of_a_row_is_an_answer(vote: dict[str, str]) -> None:
    sampling = {"n": 3, "temperature": 1.0}
    job = spec({"output": {"choice": LABELS}, "sampling": sampling, **vote})
    samples = [
        {"output": text, "finish_reason": "stop", "output_tokens": tokens}
        for text, tokens in [("good", 1), ("bad", 2), ("good", 2)]
    ]
    voted = {"output": "good", "vote_share": 2 / 3} if vote else {}
    row = Answer({"outputs": samples, **voted}, None, 5, 5)
    assert counts(job, [row, refusal(3)]) == AnswerCounts((0, 1, 2), (2, 1, 0))


def test_a_choice_too_long_for_a_row_of_the_ledger_is_not_counted() -> None:
    labels = [f"label {number}" for number in range(MOST_LABELS + 1)]
    assert counts(spec({"output": {"choice": labels}}), [answer(1, labels[0])]).labels == ()
    assert counts(spec({"output": {"choice": labels[:-1]}}), [answer(1, labels[0])]).labels[0] == 1


FUNCTION = {"backend": "function", "callable": "rules:shout"}


def test_functions_and_models_that_pool_write_no_text_and_count_nothing() -> None:
    rule = spec({}, task={"kind": "function"}, engine=FUNCTION)
    assert counts(rule, [Answer({"loud": "X"})]) == NOTHING
    vectors = spec({}, task={"kind": "embed", "text": "{{ id }}"})
    assert counts(vectors, [Answer({"embedding": [1.0]}, None, 5)]) == NOTHING


def test_kept_rows_of_an_earlier_part_are_not_counted_again() -> None:
    job = spec({"output": {"choice": LABELS}})
    passed = pa.table({"id": ["a", "b"]}, INPUTS)
    schema = output_schema.output_schema(job, INPUTS)
    assert schema is not None
    whole = part_table(
        job, schema, RowResults([0, 1], passed, {0: answer(1, "bad"), 1: refusal(1)})
    )
    again = part_table(job, schema, RowResults([1], passed[1:], {1: answer(1, "good")}))
    merged = with_kept_rows(again, whole.table, "id").answered
    assert whole.answered + merged == AnswerCounts((0, 2), (1, 1, 0))


def test_counts_of_different_lengths_add_up() -> None:
    one, other = AnswerCounts((1,), (2, 0)), AnswerCounts((0, 3, 5), (1, 1))
    assert one + other == other + one == AnswerCounts((1, 3, 5), (3, 1))
    assert NOTHING + one == one


def test_a_status_says_between_how_many_tokens_answers_count() -> None:
    assert JobAnswers([4, 0, 7], {"good": 3}).as_json() == {
        "answer_lengths": [
            {"tokens_from": 0, "tokens_to": 0, "answers": 4},
            {"tokens_from": 1, "tokens_to": 1, "answers": 0},
            {"tokens_from": 2, "tokens_to": 3, "answers": 7},
        ],
        "answer_labels": {"good": 3},
    }
