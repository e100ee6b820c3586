"""The bars of answers: lengths and labels, with their numbers, bounded."""

import pytest

from nightshift.common.ledger.jobs.answer_counts import JobAnswers
from nightshift.producer.serve.console.pictures import answers
from nightshift.producer.serve.console.pictures.answers import WIDTH


def test_lengths_go_from_the_shortest_to_the_longest_that_there_are() -> None:
    found = answers.lengths(JobAnswers([0, 0, 30, 0, 10, 0, 0], None))
    assert found is not None
    assert [(line.name, line.answers, line.width) for line in found.lines] == [
        ("2 to 3", 30, WIDTH),
        ("4 to 7", 0, 0),
        ("8 to 15", 10, WIDTH // 3),
    ]
    assert [line.share for line in found.lines] == [0.75, 0, 0.25]
    assert found.answers == 40


def test_labels_are_the_most_frequent_and_how_many_more_there_are() -> None:
    counts = {f"label {number:02}": number for number in range(30)}
    found = answers.labels(JobAnswers([], counts))
    assert found is not None
    assert [line.name for line in found.lines] == [
        f"label {number:02}" for number in range(29, 9, -1)
    ]
    assert (found.more, found.answers_of_more) == (10, sum(range(10)))
    assert found.answers == sum(range(30))


def test_a_bar_of_few_answers_is_seen() -> None:
    found = answers.labels(JobAnswers([], {"a": 10**6, "b": 1, "c": 0}))
    assert found is not None
    assert [line.width for line in found.lines] == [WIDTH, 1, 0]
    assert f'width="{WIDTH}"' in found.lines[0].drawn()


@pytest.mark.parametrize("labels", [None, {}, {"a": 0}], ids=["no choice", "no label", "no answer"])
def test_a_job_without_answers_has_no_picture(labels: dict[str, int] | None) -> None:
    assert answers.drawings(JobAnswers([], labels)) == {}
    assert answers.drawings(JobAnswers([0, 0], labels)) == {}


def test_the_tokens_of_a_line() -> None:
    assert [answers.tokens(place) for place in (0, 1, 2, 11)] == [
        "none",
        "1",
        "2 to 3",
        "1,024 to 2,047",
    ]


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (0.001, "< 1 %"), (0.25, "25 %"), (0.999, "> 99 %"), (1, "100 %")],
)
def test_what_is_there_is_never_nothing_and_less_than_all_is_never_all(
    share: float, said: str
) -> None:
    assert answers.percent(share) == said
