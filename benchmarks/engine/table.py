"""The lines of the table: each contender's rate, and what the fleet reaches beside the others."""

from collections.abc import Callable, Sequence

from benchmarks.engine.contender import Result
from benchmarks.report import Line, Median, spread

Round = dict[tuple[str, int, int], Result]
"""Results of one round by contender, rows and batch size."""

WANTED_OF_RAW = 0.97
WANTED_OF_NAIVE = 1.65

NAMES = {
    "a": "(a) one LLM.generate call",
    "b": "(b) AsyncLLM, all submitted",
    "c": "(c) one Celery task a batch",
    "d": "(d) nightshift-worker",
}


def lines(rounds: Sequence[Round]) -> list[Line]:
    """One line a contender and batch size, as far as they were measured."""
    found: list[Line] = []
    for name, rows, batch in sorted({key for each in rounds for key in each}, key=_order):
        measured = [each for each in rounds if (name, rows, batch) in each]
        rates = [_rate(each, name, rows, batch) for each in measured]
        ratio, wanted, verdict = "", "", ""
        if name == "d" and (best := _over(measured, _of_raw, rows, batch)) is not None:
            ratio, wanted = f"{best} of the better of (a), (b)", f"{WANTED_OF_RAW}"
            verdict = best.verdict(WANTED_OF_RAW)
        found.append(
            Line(
                "engine",
                f"{NAMES[name]}, {rows:,} rows" + (f", batch {batch}" if name in "cd" else ""),
                f"{Median.of(rates).value:.1f} rows/s",
                ratio,
                len(rates),
                f"{spread(rates)} rows/s",
                wanted,
                verdict,
            )
        )
    return found + _against_naive(rounds)


def _against_naive(rounds: Sequence[Round]) -> list[Line]:
    found: list[Line] = []
    for (name, rows, batch), wanted in _naive_pairs(rounds).items():
        over = Median.of(
            [_rate(each, name, rows, batch) / _rate(each, "c", rows, batch) for each in rounds]
        )
        found.append(
            Line(
                "engine",
                f"{NAMES[name]} over (c)",
                "",
                str(over),
                over.rounds,
                "",
                f"{wanted}" if wanted else "",
                over.verdict(wanted) if wanted else "",
            )
        )
    return found


def _naive_pairs(rounds: Sequence[Round]) -> dict[tuple[str, int, int], float | None]:
    """The ratios to (c), and what is wanted of each."""
    naive = {key[1:] for each in rounds for key in each if key[0] == "c"}
    return {
        (name, *size): WANTED_OF_NAIVE if name == "d" else None
        for size in naive
        for name in ("a", "b", "d")
        if all((name, *size) in each for each in rounds)
    }


def _of_raw(measured: Round, rows: int, batch: int) -> float | None:
    """The fleet's rate over the better of what raw vLLM did with the same rows."""
    raw = [
        rows / each.seconds
        for (name, count, _), each in measured.items()
        if name in "ab" and count == rows
    ]
    return _rate(measured, "d", rows, batch) / max(raw) if raw else None


def _over(
    rounds: Sequence[Round],
    ratio: Callable[[Round, int, int], float | None],
    rows: int,
    batch: int,
) -> Median | None:
    found = [value for each in rounds if (value := ratio(each, rows, batch)) is not None]
    return Median.of(found) if found else None


def _rate(measured: Round, name: str, rows: int, batch: int) -> float:
    return rows / measured[name, rows, batch].seconds


def _order(key: tuple[str, int, int]) -> tuple[int, str, int]:
    return key[1], key[0], key[2]
