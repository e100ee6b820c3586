"""The datasets, made by seed: what their rows share, the cache that they get, and the labels to choose from."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.engine.words import words

EXAMPLE = Path(__file__).parents[2] / "examples" / "reviews"

TOKEN_BYTES = 10 * 2 * 384 * 2
"""Cache of one token in the model of `benchmarks/engine/model.py`: layers, keys and values, width, bf16."""

SPARE_TOKENS = 6_000
"""Cache for the rows that run, beside what a dataset's beginnings get."""

Rows = list[dict[str, str]]
"""The columns `shared` and `own` of each row; the prompt is one after the other."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """`make(generator)` gives the rows; `cache_tokens` are those that the engine keeps, `wanted` is the
    least rate of the `judged` fleet over raw vLLM in dataset order. Answers are one of the `labels`, else 8
    tokens of free text.
    """

    name: str
    what: str
    make: Callable[[np.random.Generator], Rows]
    cache_tokens: int
    wanted: float
    judged: str = "arranged"
    labels: tuple[str, ...] = ()
    reviews: bool = False
    """Whether the model of the examples runs, which is small and was trained to write labels."""

    @property
    def fleets(self) -> tuple[str, ...]:
        """The fleets that are measured: in dataset order and arranged, or for labels the judged one alone."""
        return (self.judged,) if self.labels else ("fleet", "arranged")


SENTIMENTS = ("positive", "neutral", "negative")

SENTENCES = (
    "the customer is content",
    "nothing is said of the matter",
    "complaint of a broken part",
    "wants the money back",
)

BEGUN_ALIKE = (
    "the customer is content with the product",
    "the customer is content with the service",
    "the customer complains of the product",
    "the customer complains of the service",
)
"""Every token that begins one of these labels begins all of them."""


def _text(generator: np.random.Generator, count: int) -> str:
    return " ".join(generator.choice(np.asarray(words()), count))


def _shuffled(generator: np.random.Generator, rows: Rows) -> Rows:
    return [rows[at] for at in generator.permutation(len(rows))]


def nothing(generator: np.random.Generator, rows: int = 3_000) -> Rows:
    """Rows that share nothing. As many as take half a minute: of a second of work the first claim and the
    last commit are a large part, and of a night's none.
    """
    return [
        {"shared": "", "own": _text(generator, int(generator.integers(20, 80)))}
        for _ in range(rows)
    ]


def documents(generator: np.random.Generator, count: int = 200, questions: int = 8) -> Rows:
    """Documents of 200 words, each with some questions, shuffled."""
    rows = []
    for _ in range(count):
        document = _text(generator, 200)
        rows += [{"shared": document, "own": _text(generator, 8)} for _ in range(questions)]
    return _shuffled(generator, rows)


def systems(generator: np.random.Generator, count: int = 20, each: int = 30) -> Rows:
    """System prompts of about 1,500 tokens, each with some rows, shuffled."""
    rows = []
    for _ in range(count):
        system = _text(generator, 750)
        rows += [{"shared": system, "own": _text(generator, 12)} for _ in range(each)]
    return _shuffled(generator, rows)


def reviews(generator: np.random.Generator, rows: int = 8_000) -> Rows:
    """Reviews of products, of about 34 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reviews.parquet"
        script = EXAMPLE / "make_reviews.py"
        argv = [sys.executable, str(script), "--split", "test", "--rows", str(rows)]
        subprocess.run([*argv, "--out", str(file)], check=True)
        texts = pq.read_table(file).column("text").to_pylist()
    return [{"shared": "", "own": texts[at]} for at in generator.permutation(len(texts))]


def equal(generator: np.random.Generator, rows: int = 1_500, share: float = 0.4) -> Rows:
    """Rows of which a share is a copy of another one, shuffled."""
    found = nothing(generator, round(rows * (1 - share)))
    copies = [found[at] for at in generator.integers(0, len(found), rows - len(found))]
    return _shuffled(generator, [*found, *copies])


DATASETS = (
    # `auto`, the default, does not sort such rows.
    Dataset("nothing", "no sharing", nothing, 10_000, 0.97, judged="fleet"),
    Dataset("documents", "200 documents, 8 questions each", documents, 22_000, 1.8),
    Dataset("systems", "20 system prompts of 1,500 tokens", systems, 7_500, 1.5),
    Dataset("equal", "40 % equal requests", equal, 10_000, 1.45),
    Dataset(
        "words",
        "reviews, labels of one token",
        partial(reviews, rows=24_000),  # as many as take half a minute
        10_000,
        1.2,
        "fleet",
        SENTIMENTS,
        reviews=True,
    ),
    Dataset(
        "sentences",
        "reviews, labels of 4 tokens and more",
        reviews,
        10_000,
        1.4,
        "fleet",
        SENTENCES,
        reviews=True,
    ),
    Dataset(
        "begun",
        "short prompts, labels that begin alike",
        partial(nothing, rows=1_500),
        10_000,
        0.97,
        "fleet",
        BEGUN_ALIKE,
    ),
    Dataset(
        "questions",
        "200 documents, 8 questions each, answered by a label",
        documents,
        22_000,
        2.2,
        labels=SENTENCES,
    ),
)
