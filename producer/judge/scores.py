"""Scores out of a judge's answers, and their mean with its standard error."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import NormalDist
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.spec import ClassifyTask, GenerateTask, JobSpec

USUAL = ("score", "parsed", "output", "label")
"""Where a score is looked for, in this order, when nobody says where."""

PROPERTY = "score"
"""The property that counts of an answer that is an object."""

MOST_ANSWERS = 50
"""Different answers that are counted one by one; with more of them there are no counts."""

Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the score stands (`column`, or `column.property`), and what words are worth."""

    column: str | None = None
    words: Mapping[str, float] = field(default_factory=dict)

    def place(self, names: Sequence[str]) -> list[str]:
        """The column and the steps into its value; BadInput when there is no such column."""
        if self.column is None:
            found = next((name for name in USUAL if name in names), None)
            if found is not None:
                return [found]
            raise BadInput(
                f"the judge's output has none of the columns {', '.join(USUAL)}: say which holds "
                f"the score, --column {' or '.join(_own(names)) or 'NAME'}"
            )
        name, *steps = [self.column] if self.column in names else self.column.split(".")
        if name not in names:
            raise BadInput(
                f"--column {self.column} is none of the judge's columns: {', '.join(names)}"
            )
        return [name, *steps]

    def score(self, value: Any, steps: Sequence[str] = ()) -> float | None:
        """The number that an answer stands for; None when it stands for none.

        A number counts as it is, true is 1, text is a word of the scale, a number, or JSON; of an
        object its property `score` counts, or the one that `steps` lead to.
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
        word, equals, said = each.rpartition("=")
        value = _finite_text(said)
        if not equals or not word.strip() or value is None:
            raise BadInput(f"--scores {each!r} is not WORD=NUMBER, as in --scores good=1,bad=0")
        words[word.strip()] = value
    return words


def check(scale: Scale, spec: JobSpec) -> None:
    """BadInput for a judge whose answers could not be scored, before anybody runs it."""
    task = spec.task
    if isinstance(task, ClassifyTask) and scale.column is None and not scale.words:
        raise BadInput(
            "a classifier's labels are words: say what they are worth, --scores LABEL=NUMBER,… , "
            "or --column probability"
        )
    if not isinstance(task, GenerateTask) or task.output is None or scale.column is not None:
        return
    mute = [word for word in task.output.choice or () if scale.score(word) is None]
    if mute:
        raise BadInput(
            f"the judge may answer {mute[0]!r}, which is no number: say what each choice is "
            f"worth, as in --scores {mute[0]}=1"
        )
    schema = task.output.json_schema or {}
    properties = schema.get("properties")
    if isinstance(properties, dict) and PROPERTY not in properties:
        names = " or ".join(f"output.{name}" for name in properties)
        raise BadInput(
            f"the judge's json_schema has no property {PROPERTY!r}: say which is the score, "
            f"--column {names}"
        )


@dataclass(slots=True)
class Tally:
    """Mean and spread of a stream of scores (Welford's algorithm), and how often each answer
    came.

    `population` is how many rows the judged ones were drawn from; `unscored` had an answer that
    is no score, `failed` had none.
    """

    population: int
    count: int = 0
    unscored: int = 0
    failed: int = 0
    mean: float = 0.0
    _squares: float = 0.0
    _answers: Counter[str] = field(default_factory=Counter)
    _many: bool = False

    def add(self, score: float | None, answer: Any) -> None:
        """One judged row; None is a row that the judge did not score."""
        if score is None:
            self.unscored += 1
            return
        self.count += 1
        off = score - self.mean
        self.mean += off / self.count
        self._squares += off * (score - self.mean)
        if not self._many:
            self._answers[answer if isinstance(answer, str) else f"{score:g}"] += 1
            if len(self._answers) > MOST_ANSWERS:
                self._many = True
                self._answers.clear()

    @property
    def deviation(self) -> float | None:
        """Of the sample (n - 1); None of fewer than two scores."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else None

    @property
    def standard_error(self) -> float | None:
        """Deviation / sqrt(n): how far the mean may be off for rows like these."""
        return None if self.deviation is None else self.deviation / math.sqrt(self.count)

    @property
    def standard_error_here(self) -> float | None:
        """The same * sqrt(1 - n / N): how far it may be off for the N rows of this job alone,
        which is nothing when each of them was scored.
        """
        if self.standard_error is None or not self.population:
            return None
        return self.standard_error * math.sqrt(max(0.0, 1 - self.count / self.population))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, by the normal approximation: mean -+ 1.96 standard errors."""
        if self.standard_error is None:
            return None
        return self.mean - Z95 * self.standard_error, self.mean + Z95 * self.standard_error

    @property
    def answers(self) -> dict[str, int]:
        """Rows of each answer, the most frequent first; empty where there are too many."""
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


def _own(names: Sequence[str]) -> list[str]:
    quiet = {"row_index", "finish_reason", "prompt_tokens", "output_tokens", "error"}
    return [name for name in names if name not in quiet]
