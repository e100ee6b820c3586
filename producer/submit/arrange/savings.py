"""Whether arranging pays: what a sample of rows shares, against what the engine's cache keeps anyway.

How many beginnings a dataset has is estimated from repeats within the sample. A value that comes three
times or more in a sample counts as one beginning. Of the other rows the number of pairs says how many
partners m such a row has in the whole dataset: a pair is seen with the share of the dataset that was
sampled. Where the sizes of groups are Poisson, (1 - exp(-m)) / m of these rows are the first of a group.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nightshift.common.text import CHARACTERS_A_TOKEN

LEAST_SHARE = 0.1
"""Share of the prompt tokens that an arranged job must save; less is within the noise of a fleet."""

LEAST_TOKENS = 50_000
"""Tokens that it must save; fewer are a second of a GPU, and the pass takes about that."""

UNKNOWN_CACHE_TOKENS = 32_768
"""Cache of an engine that was never loaded. Low, since a pass for nothing costs seconds, and a job in the
wrong order up to half of its time."""

BLOCK_TOKENS = 16
"""vLLM's `block_size` on GPUs; `num_gpu_blocks_override` counts blocks."""

SHORTEST = 64
"""Characters of the shortest beginning that is compared; a cache keeps whole blocks of tokens."""

MANY = 3
"""A value that comes so often in a sample belongs to a large group."""


@dataclass(frozen=True, slots=True)
class Beginnings:
    """The text that one row shows: its number of characters, and the digests of its beginnings at lengths that
    grow by a quarter each. The last digest is that of the whole text.
    """

    characters: int
    digests: Sequence[int]


@dataclass(frozen=True, slots=True)
class Level:
    """The beginnings of sampled rows up to some length: their digests, and the mean tokens that they have
    beyond the level before.
    """

    digests: Sequence[int]
    tokens: float


@dataclass(frozen=True, slots=True)
class SharingSample:
    """What sampled rows begin with. Rows come in runs of `run_rows` neighbours, out of `rows_total`;
    `row_tokens` is the mean of a whole prompt.
    """

    rows_total: int
    run_rows: int
    row_tokens: float
    levels: Sequence[Level]


def beginnings(text: str) -> Beginnings:
    """The beginnings of one text. Each digest is made of the one before and of what is new, so that a
    long document is read once.
    """
    digests: list[int] = []
    digest = 0
    for before, upto in pairwise(_lengths()):
        digest = hash((digest, text[before:upto]))
        digests.append(digest)
        if upto >= len(text):
            break
    return Beginnings(len(text), digests)


def levels_of(rows: Sequence[Beginnings]) -> tuple[float, list[Level]]:
    """The mean tokens of what rows show, guessed by their characters, and what rows begin with, shortest
    beginnings first.
    """
    levels: list[Level] = []
    most = max((len(row.digests) for row in rows), default=0)
    for at, (before, upto) in zip(range(most), pairwise(_lengths()), strict=False):
        new = sum(min(row.characters, upto) - min(row.characters, before) for row in rows)
        digests = [row.digests[min(at, len(row.digests) - 1)] for row in rows]
        levels.append(Level(digests, new / CHARACTERS_A_TOKEN / len(rows)))
    return sum(level.tokens for level in levels), levels


def _lengths() -> Iterator[int]:
    """0, and the lengths at which beginnings are compared."""
    yield 0
    length = SHORTEST
    while True:
        yield length
        length = length * 5 // 4


@dataclass(frozen=True, slots=True)
class Worth:
    """What arranging would bring: tokens of prompts that need not be computed, of all of them."""

    pays: bool
    saved_tokens: int
    prompt_tokens: int
    cache_tokens: int

    @property
    def share(self) -> float:
        """Saved tokens as a part of all."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def kept_tokens(args: Mapping[str, object], loaded: int | None) -> int | None:
    """The tokens that the prefix cache of vLLM with these arguments keeps. `loaded` is what the engine
    said when it was loaded last: 0 without a cache, None where it never was.
    """
    blocks, size = args.get("num_gpu_blocks_override"), args.get("block_size")
    if loaded == 0 or not isinstance(blocks, int):
        return loaded
    return blocks * (size if isinstance(size, int) else BLOCK_TOKENS)


def worth(sample: SharingSample, cache_tokens: int | None) -> Worth:
    """Judges a sample for an engine whose cache keeps so many tokens; None where that is unknown. Without
    a cache nothing is saved.
    """
    cache = UNKNOWN_CACHE_TOKENS if cache_tokens is None else cache_tokens
    total, saved = sample.rows_total, 0.0
    if not cache:
        return Worth(False, 0, round(sample.row_tokens * total), 0)
    reach = int(cache / sample.row_tokens) if sample.row_tokens else 0
    for level in sample.levels:
        distinct = distinct_values(level.digests, total)
        repeated = 1 - distinct / total
        # In dataset order the cache has what it had a moment ago, and by chance what came long before:
        # between two rows with one beginning stand as many others as there are beginnings.
        kept = repeated * min(1.0, cache / max(1.0, distinct * sample.row_tokens))
        near = _near(level.digests, sample.run_rows, reach)
        saved += level.tokens * max(0.0, repeated - max(near, kept))
    saved_tokens, prompt_tokens = round(saved * total), round(sample.row_tokens * total)
    pays = saved_tokens >= max(LEAST_TOKENS, LEAST_SHARE * prompt_tokens)
    return Worth(pays, saved_tokens, prompt_tokens, cache)


def distinct_values(digests: Sequence[int], rows_total: int) -> float:
    """How many different values the rows of a dataset have, by a sample of them."""
    rows = len(digests)
    if not rows:
        return 0.0
    counts = Counter(digests).values()
    if rows >= rows_total:
        return float(len(counts))
    often = [count for count in counts if count >= MANY]
    few, pairs = rows - sum(often), sum(count == 2 for count in counts)
    partners = 2 * pairs / few * rows_total / rows if few else 0.0
    fresh = -math.expm1(-partners) / partners if partners else 1.0
    return len(often) + few * fresh * rows_total / rows


def _near(digests: Sequence[int], run_rows: int, reach: int) -> float:
    """The share of rows whose value one of the `reach` rows before them in their own run has."""
    if not digests:
        return 0.0
    repeated, last = 0, dict[int, int]()
    for at, digest in enumerate(digests):
        if at % run_rows == 0:
            last.clear()
        repeated += at - last.get(digest, -reach - 1) <= reach and digest in last
        last[digest] = at
    return repeated / len(digests)
