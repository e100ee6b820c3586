"""The lines of the table, and the figures that the picture is drawn from."""

from collections.abc import Mapping, Sequence

from benchmarks.report import Line, Median, spread

NAMES = {
    "raw": "raw vLLM, one LLM.generate call",
    "nightshift": "Nightshift",
    "run-batch": "vllm run-batch",
    "ray": "Ray Data LLM",
}
"""The contenders, in the order of the table and of the picture."""

DATASETS = {
    "nothing": "rows that share nothing",
    "documents": "documents with 8 questions each, shuffled",
}

Rates = Mapping[str, Mapping[str, Sequence[float]]]
"""Rows a second by dataset and contender, one a round; in a round all have the same rows."""


def lines(rates: Rates) -> list[Line]:
    """One line a dataset and contender, as far as they were measured."""
    return [
        _line(DATASETS[dataset], NAMES[who], found[who], found["raw"])
        for dataset, found in rates.items()
        for who in NAMES
        if who in found
    ]


def ratios(rates: Sequence[float], raw: Sequence[float]) -> list[float]:
    """What a contender reached of raw vLLM in each round."""
    return [rate / other for rate, other in zip(rates, raw, strict=True)]


def _line(dataset: str, name: str, rates: Sequence[float], raw: Sequence[float]) -> Line:
    ratio = "" if rates is raw else f"{Median.of(ratios(rates, raw))} of raw vLLM"
    return Line(
        f"peers, {dataset}",
        name,
        f"{Median.of(rates).value:.1f} rows/s",
        ratio,
        len(rates),
        f"{spread(rates)} rows/s",
    )
