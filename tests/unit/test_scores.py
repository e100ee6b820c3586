"""Scores out of answers, and what their mean is worth."""

import json
import math
import random
import statistics
from decimal import Decimal
from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import parse_spec
from nightshift.producer.judge.scores import (
    MOST_ANSWERS,
    Scale,
    ScoreStatistics,
    check,
    parse_words,
)

GOOD = Scale(words={"good": 1.0, "bad": 0.0})


def statistics_of(scores: list[float | None], population: int = 1000) -> ScoreStatistics:
    found = ScoreStatistics(population)
    for score in scores:
        found.add(score, score)
    return found


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (4, 4.0),
        (True, 1.0),
        (Decimal("0.5"), 0.5),
        (" 3.5\n", 3.5),
        ("-1e2", -100.0),
        ('{"score": 2, "why": "fair"}', 2.0),
        ({"score": 3}, 3.0),
        ({"score": "4"}, 4.0),
        ("good", None),
        ("", None),
        ("1_000", None),
        ("٣", None),
        ("nan", None),
        ("Infinity", None),
        (float("nan"), None),
        (10**400, None),
        ("[1]", None),
        ("{", None),
        ("[" * 100_000, None),
        (None, None),
        ([1], None),
        ({"points": 3}, None),
    ],
)
def test_an_answer_is_a_number_or_none(answer: Any, score: float | None) -> None:
    assert Scale().score(answer) == score


def test_words_are_worth_what_the_scale_says() -> None:
    assert [GOOD.score(word) for word in ("good", " bad ", "fair", "0.5")] == [1, 0, None, 0.5]
    assert GOOD.score({"score": "good"}) == 1


def test_a_place_leads_into_structs_and_json() -> None:
    names = ["row_index", "output", "parsed"]
    assert Scale().score_path(names) == ["parsed"]
    steps = Scale("parsed.tone.warmth").score_path(names)[1:]
    assert Scale().score({"tone": {"warmth": 2}}, steps) == 2
    assert Scale().score(json.dumps({"tone": {"warmth": 2}}), steps) == 2
    assert Scale().score({"tone": 7}, steps) is None
    assert Scale().score(7, steps) is None
    assert Scale("a.b").score_path(["a.b"]) == ["a.b"]
    with pytest.raises(BadInput, match="--column tone is not one of the judge's columns"):
        Scale("tone").score_path(names)
    with pytest.raises(BadInput, match="--column loud or words"):
        Scale().score_path(["row_index", "loud", "words", "error"])


@pytest.mark.parametrize("text", ["good", "good=", "=1", "good=x", "good=nan", "a=1,,b=0"])
def test_a_scale_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="is not WORD=NUMBER"):
        parse_words(text)


def test_a_scale_is_read_from_the_command_line() -> None:
    assert parse_words("good=1, bad=0,so=so=0.5") == {"good": 1, "bad": 0, "so=so": 0.5}
    assert parse_words(None) == {}


def judge(task: dict[str, Any]) -> Any:
    engine = {"backend": "vllm", "model": "M"}
    given = {"input": {"uri": "x"}, "output": {"uri": "y"}, "name": "j"}
    return parse_spec({**given, "engine": engine, "task": task}, "test")


SAMPLED = {
    "kind": "generate",
    "prompt": "{{ output }}",
    "output": {"choice": ["0", "1"]},
    "sampling": {"n": 3, "temperature": 1.0},
}


def generate(**output: Any) -> Any:
    return judge({"kind": "generate", "prompt": "{{ output }}", "output": output})


@pytest.mark.parametrize(
    ("spec", "scale", "sentence"),
    [
        (generate(choice=["good", "fair"]), GOOD, "may answer 'fair'"),
        (generate(choice=["good", "bad"]), Scale(), "--scores good=1"),
        (generate(json_schema={"properties": {"tone": {}}}), Scale(), "--column output.tone"),
        (judge({"kind": "classify", "text": "{{ output }}"}), Scale(), "labels are words"),
        (judge(SAMPLED), Scale("outputs"), "say task.vote in its spec"),
    ],
)
def test_a_judge_that_could_not_be_scored_is_refused_before_it_runs(
    spec: Any, scale: Scale, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        check(scale, spec)


def test_a_judge_that_can_be_scored_is_not_refused() -> None:
    check(GOOD, generate(choice=["good", "bad"]))
    check(Scale(), generate(choice=["1", "2"]))
    check(Scale(), judge({**SAMPLED, "vote": "choice"}))
    check(Scale("output.tone"), generate(json_schema={"properties": {"tone": {}}}))
    check(GOOD, judge({"kind": "classify", "text": "{{ output }}"}))
    check(Scale(), judge({"kind": "generate", "prompt": "{{ output }}"}))


def test_mean_and_standard_error_are_those_of_the_textbook() -> None:
    chance = random.Random(1)
    scores = [chance.gauss(1e6, 3) for _ in range(500)]
    found = statistics_of([*scores, None, None])
    assert (found.count, found.unscored) == (500, 2)
    assert found.mean == pytest.approx(statistics.fmean(scores), rel=1e-12)
    deviation = statistics.stdev(scores)
    assert found.deviation == pytest.approx(deviation, rel=1e-9)
    assert found.standard_error == pytest.approx(deviation / math.sqrt(500), rel=1e-9)
    here = deviation / math.sqrt(500) * math.sqrt(1 - 500 / 1000)
    assert found.standard_error_here == pytest.approx(here, rel=1e-9)
    assert found.interval == pytest.approx(
        (found.mean - 1.959964 * found.standard_error, found.mean + 1.959964 * found.standard_error)
    )


def test_the_mean_of_every_row_is_off_by_nothing_for_these_rows_alone() -> None:
    found = statistics_of([0, 1, 1], population=3)
    assert found.standard_error_here == 0
    assert found.standard_error == pytest.approx(1 / 3)


@pytest.mark.parametrize("scores", [[], [None], [3.0]])
def test_fewer_than_two_scores_have_no_standard_error(scores: list[float | None]) -> None:
    found = statistics_of(scores)
    assert (found.standard_error, found.standard_error_here, found.interval) == (None, None, None)


def test_answers_are_counted_while_they_are_few() -> None:
    found = ScoreStatistics(10)
    for answer in ("bad", "good", "good"):
        found.add(GOOD.score(answer), answer)
    found.add(1.0, 1)
    assert found.answers == {"good": 2, "1": 1, "bad": 1}
    assert statistics_of([float(number) for number in range(MOST_ANSWERS + 1)]).answers == {}


def test_the_standard_error_of_samples_is_how_far_they_are_off() -> None:
    """Draws of 100 of 400 known scores: the spread of their means is what each of them says."""
    chance = random.Random(2)
    everything = [float(chance.random() < 0.3) for _ in range(400)]
    means, said = [], []
    for _ in range(2000):
        found = statistics_of(list(chance.sample(everything, 100)), population=400)
        means.append(found.mean)
        said.append(found.standard_error_here or 0.0)
    assert statistics.stdev(means) == pytest.approx(statistics.fmean(said), rel=0.05)
