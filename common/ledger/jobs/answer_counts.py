"""How long the answers of a job are, and which labels of a choice they name: counts, which add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

MOST_LABELS = 256
"""Labels of a choice that are counted. The answers to a longer choice are not counted by label: the counts stand
in a row that each commit writes."""


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Answers by their length, and by their label.

    `lengths` counts answers by output tokens: the first number those without a token, the one at place k those
    from 2^(k-1) to 2^k - 1. `labels` counts them by the labels of the spec's choice, in its order.
    """

    lengths: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()

    def __add__(self, other: "AnswerCounts") -> "AnswerCounts":
        return AnswerCounts(_sum(self.lengths, other.lengths), _sum(self.labels, other.labels))


NOTHING = AnswerCounts()


def _sum(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def bounds(place: int) -> tuple[int, int]:
    """The fewest and the most output tokens of the answers that `lengths` counts at a place."""
    return (2 ** (place - 1), 2**place - 1) if place else (0, 0)


@dataclass(frozen=True, slots=True)
class JobAnswers:
    """The counts of a job: `lengths` as AnswerCounts has them, and answers by label, None without a choice."""

    lengths: Sequence[int]
    labels: dict[str, int] | None

    def as_json(self) -> dict[str, object]:
        """The fields of a status."""
        lengths = [(*bounds(place), answers) for place, answers in enumerate(self.lengths)]
        names = ("tokens_from", "tokens_to", "answers")
        return {
            "answer_lengths": [dict(zip(names, each, strict=True)) for each in lengths],
            "answer_labels": self.labels,
        }


def of_job(connection: Connection, job_id: int) -> JobAnswers:
    """One row of the view job_answers."""
    statement = text("SELECT lengths, labels FROM job_answers WHERE job = :id")
    found = connection.execute(statement, {"id": job_id}).one()
    return JobAnswers(found.lengths, found.labels)
