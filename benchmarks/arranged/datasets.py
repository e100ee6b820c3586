"""The four datasets, made by seed: what their rows share, and the cache that they get."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.engine.words import words

TOKEN_BYTES = 10 * 2 * 384 * 2
"""Cache of one token in the model of `benchmarks/engine/model.py`: layers, keys and values, width, bf16."""

SPARE_TOKENS = 6_000
"""Cache for the rows that run, beside what a dataset's beginnings get."""

Rows = list[dict[str, str]]
"""The columns `shared` and `own` of each row; the prompt is one after the other."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """`make(generator)` gives the rows; `cache_tokens` are those that the engine keeps, `wanted` is the
    least rate of the `judged` fleet over raw vLLM in dataset order.
    """

    name: str
    what: str
    make: Callable[[np.random.Generator], Rows]
    cache_tokens: int
    wanted: float
    judged: str = "arranged"


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
)
