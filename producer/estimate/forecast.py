"""Ranges of means and ratios, from samples and from commits. Pure."""

from collections.abc import Sequence

import numpy as np

from nightshift.common.ranges import Range

MOST_BLOCKS = 20
"""Commits form at most so many blocks of neighbours: single commits vary with their grouping."""

LEAST_BLOCKS = 4
"""With fewer blocks it is not known how much a figure varies."""

RESAMPLES = 2_000
"""How often the bootstrap draws."""

NORMAL_90 = 1.645
"""Quantile of the normal distribution that leaves 5 % on each side."""

SEED = 0


def mean_range(values: Sequence[int] | np.ndarray, share: float = 0.0) -> Range:
    """The mean of all rows, from the values of a random sample of a `share` of them."""
    found = np.asarray(values, dtype=float)
    mean = float(found.mean())
    if len(found) < 2:
        return Range.exactly(mean)
    error = float(found.std(ddof=1)) * ((1 - share) / len(found)) ** 0.5
    margin = NORMAL_90 * error
    return Range(max(0.0, mean - margin), mean, mean + margin)


def ratio_range(pairs: Sequence[tuple[float, float]]) -> Range | None:
    """The sum of the first of each pair over the sum of the second; None when that is 0.

    Its bounds come from a bootstrap over blocks of neighbouring pairs.
    """
    over = np.array([pair[0] for pair in pairs], dtype=float)
    under = np.array([pair[1] for pair in pairs], dtype=float)
    if not under.sum():
        return None
    likely = float(over.sum() / under.sum())
    edges = np.linspace(0, len(pairs), min(MOST_BLOCKS, len(pairs)) + 1).astype(int)[:-1]
    over, under = np.add.reduceat(over, edges), np.add.reduceat(under, edges)
    if len(edges) < LEAST_BLOCKS:
        return Range.exactly(likely)
    drawn = np.random.default_rng(SEED).integers(0, len(edges), (RESAMPLES, len(edges)))
    sums = under[drawn].sum(axis=1)
    ratios = over[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(ratios, [0.05, 0.95])
    return Range(min(float(low), likely), likely, max(float(high), likely))


def token_money(rows: int, *priced: tuple[float | None, Range | None]) -> Range | None:
    """The price of the tokens of so many rows; None where the tokens are not known.

    Each of `priced` is a price of a million tokens, None where the spec has none, and the tokens of
    one row.
    """
    cost = Range.exactly(0.0)
    for price, tokens in priced:
        if price is None:
            continue
        if tokens is None:
            return None
        cost = cost + tokens.times(rows * price / 1e6)
    return cost


def bins(lengths: np.ndarray, most: int = 8) -> list[tuple[int, int, int]]:
    """A histogram of at most `most` equal bins: (first, last, count), first and last included."""
    low, high = int(lengths.min()), int(lengths.max())
    step = -(-(high - low + 1) // most)
    edges = np.arange(low, high + step + 1, step)
    counts, _ = np.histogram(lengths, edges)
    return [
        (int(start), int(start) + step - 1, int(count))
        for start, count in zip(edges[:-1], counts, strict=True)
    ]


def quantile(lengths: np.ndarray, percent: float) -> float:
    """The least length that `percent` percent of the rows do not exceed."""
    return float(np.percentile(lengths, percent, method="inverted_cdf"))
