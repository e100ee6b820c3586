"""Scores from a judge's answers, and their mean with its standard error."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import NormalDist
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.spec import (
    RESERVED_COLUMNS,
    ClassifyTask,
    GenerateTask,
    JobSpec,
    StructuredOutput,
)

USUAL_COLUMNS = ("score", "parsed", "output", "label")
"""Columns that may hold the score, in this order, where none is named."""

PROPERTY = "score"
"""Where an answer is an object, its property that holds the score."""

MOST_ANSWERS = 50
"""With more different answers than this, they are not counted."""

Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Scale:
    """Which column holds the score (`column`, or `column.property`), and the values of words."""

    column: str | None = None
    words: Mapping[str, float] = field(default_factory=dict)

    def score_path(self, names: Sequence[str]) -> list[str]:
        """The column, then the properties that lead to the score; BadInput when there is none."""
        if self.column is None:
            found = next((name for name in USUAL_COLUMNS if name in names), None)
            if found is not None:
                return [found]
            others = [name for name in names if name not in RESERVED_COLUMNS]
            raise BadInput(
                f"the judge's output has none of the columns {', '.join(USUAL_COLUMNS)}: say which holds "
                f"the score, --column {' or '.join(others) or 'NAME'}"
            )
        name, *steps = [self.column] if self.column in names else self.column.split(".")
        if name not in names:
            raise BadInput(
                f"--column {self.column} is not one of the judge's columns: {', '.join(names)}"
            )
        return [name, *steps]

    def score(self, value: Any, steps: Sequence[str] = ()) -> float | None:
        """The score of one answer; None when the answer is no score.

        A number is its own score, and true is 1. Text is a word of the scale, a number, or JSON.
        The score of an object is its property `score`, or the one that `steps` lead to.
        """
        if isinstance(value, str) and not steps and (word := value.strip()) in self.words:
            return self.words[word]
        if isinstance(value, str):
            value = _parsed(value)
        if isinstance(value, Mapping):
            name, *rest = steps or (PROPERTY,)
            return self.score(value.get(name), rest)
        if steps or not isinstance(value, int | float | Decimal):
            return None
        return _finite(value)


def parse_words(text: str | None) -> dict[str, float]:
    """`good=1,bad=0` as a mapping; BadInput when it is none."""
    words: dict[str, float] = {}
    for each in text.split(",") if text else ():
        word, equals, number = each.rpartition("=")
        value = _finite_text(number)
        if not equals or not word.strip() or value is None:
            raise BadInput(f"--scores {each!r} is not WORD=NUMBER, as in --scores good=1,bad=0")
        words[word.strip()] = value
    return words


def check(scale: Scale, spec: JobSpec) -> None:
    """Raises BadInput for a judge's spec whose answers could not be scored."""
    task = spec.task
    if isinstance(task, ClassifyTask) and scale.column is None and not scale.words:
        raise BadInput(
            "a classifier's labels are words: say what they are worth, --scores LABEL=NUMBER,… , "
            "or --column probability"
        )
    if isinstance(task, GenerateTask) and task.samples > 1 and task.vote is None:
        raise BadInput(
            "the judge draws several samples of a row, and none of them alone is the score: say task.vote in its "
            "spec, or leave sampling.n out"
        )
    if isinstance(task, GenerateTask) and task.output is not None and scale.column is None:
        _check_output(scale, task.output)


def _check_output(scale: Scale, output: StructuredOutput) -> None:
    unscored = [word for word in output.choice or () if scale.score(word) is None]
    if unscored:
        raise BadInput(
            f"the judge may answer {unscored[0]!r}, which is not a number: say what each choice is "
            f"worth, as in --scores {unscored[0]}=1"
        )
    properties = (output.json_schema or {}).get("properties")
    if isinstance(properties, dict) and PROPERTY not in properties:
        names = " or ".join(f"output.{name}" for name in properties)
        raise BadInput(
            f"the judge's json_schema has no property {PROPERTY!r}: say which is the score, "
            f"--column {names}"
        )


@dataclass(slots=True)
class ScoreStatistics:
    """Mean and deviation of a stream of scores (Welford's algorithm), and a count of each answer.

    `population` is the number of rows from which the judged ones were drawn; `unscored` is the
    number of answers that are no score, and `failed` the number of rows without an answer.
    """

    population: int
    count: int = 0
    unscored: int = 0
    failed: int = 0
    mean: float = 0.0
    _squares: float = 0.0
    _answers: Counter[str] = field(default_factory=Counter)

    def add(self, score: float | None, answer: Any) -> None:
        """Counts the answer of one judged row; a score of None means that the answer is no score."""
        if score is None:
            self.unscored += 1
            return
        self.count += 1
        delta = score - self.mean
        self.mean += delta / self.count
        self._squares += delta * (score - self.mean)
        if len(self._answers) <= MOST_ANSWERS:
            self._answers[answer if isinstance(answer, str) else f"{score:g}"] += 1

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the sample (n - 1); None with fewer than two scores."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else None

    @property
    def standard_error(self) -> float | None:
        """Deviation / sqrt(n), of the mean as an estimate for rows like these."""
        return None if self.deviation is None else self.deviation / math.sqrt(self.count)

    @property
    def standard_error_here(self) -> float | None:
        """Standard error * sqrt(1 - n / N), of the mean as an estimate for the N rows of this job;
        0 when every row has a score.
        """
        if self.standard_error is None or not self.population:
            return None
        return self.standard_error * math.sqrt(max(0.0, 1 - self.count / self.population))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval by the normal approximation: mean -+ 1.96 standard errors."""
        if self.standard_error is None:
            return None
        return self.mean - Z95 * self.standard_error, self.mean + Z95 * self.standard_error

    @property
    def answers(self) -> dict[str, int]:
        """Number of rows by answer, the most frequent first; empty with too many different answers."""
        if len(self._answers) > MOST_ANSWERS:
            return {}
        return dict(sorted(self._answers.items(), key=lambda each: (-each[1], each[0])))


def _parsed(text: str) -> Any:
    number = _finite_text(text)
    if number is not None:
        return number
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _finite_text(text: str) -> float | None:
    # Python would read 1_000 and the digits of every script.
    if "_" in text or not text.isascii():
        return None
    try:
        return _finite(float(text))
    except ValueError:
        return None


def _finite(value: float | Decimal) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
