"""Which arguments are tried with how many rows, and which are kept for the next step: successive halving.

All candidates run few rows, the fastest third of them three times as many, and so on. After
K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization" (AISTATS 2016); a third instead of half, as in "Hyperband" (JMLR 18, 2018).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from nightshift.common.errors import BadInput

TRIED: Mapping[str, tuple[Any, ...]] = {
    "max_num_seqs": (64, 256, 1024),
    "max_num_batched_tokens": (2048, 8192, 16384),
}
"""From well below vLLM's own defaults to those for the largest GPUs: 256 to 1,024 sequences and 2,048
to 16,384 tokens a step (EngineArgs of vLLM 0.32)."""

ETA = 3
"""One in ETA candidates is kept for the next step, and each of these gets ETA times as many rows."""

FINALISTS = 2
"""Candidates that run the whole sample."""

ROWS = 1152
"""Rows of the last trials, where no more are needed."""

FILLS = 3
"""How often the rows of a trial fill its engine: fewer would measure how the engine fills and empties."""

MOST = 64
"""More candidates than these would take a night by themselves: each loads the engine anew."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the search: `candidates` of the candidates run `rows` rows each."""

    candidates: int
    rows: int


def candidates(base: Mapping[str, Any], tried: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The arguments to compare: the spec's own first, then those with each combination of the values
    to try. BadInput for more than MOST.

    A combination with fewer tokens a step than sequences is left out: vLLM refuses it.
    """
    found = [dict(base)]
    for values in product(*tried.values()):
        made = {**base, **dict(zip(tried, values, strict=True))}
        if made not in found and can_load(made):
            found.append(made)
    if len(found) > MOST:
        raise BadInput(
            f"{len(found):,} combinations are more than {MOST}, and each loads the engine anew: try "
            "fewer values"
        )
    return found


def can_load(args: Mapping[str, Any]) -> bool:
    """Whether a step has at least as many tokens as sequences, where both are numbers."""
    tokens, sequences = args.get("max_num_batched_tokens"), args.get("max_num_seqs")
    if not (isinstance(tokens, int) and isinstance(sequences, int)):
        return True
    return tokens >= sequences


def enough_rows(candidates: Sequence[Mapping[str, Any]]) -> int:
    """How many rows fill the engine of each candidate FILLS times, by its max_num_seqs."""
    named = (args.get("max_num_seqs") for args in candidates)
    return FILLS * max((each for each in named if isinstance(each, int) and each > 0), default=1)


def rungs(candidates: int, rows: int, least: int = 1) -> list[Rung]:
    """The steps of a search with `candidates` candidates. In the last step each runs all `rows`. In the first
    steps each runs at least `least` rows, or all if there are fewer. A step with no more rows than the one
    before is left out.
    """
    counts = [candidates]
    while counts[-1] > FINALISTS:
        counts.append(-(-counts[-1] // ETA))
    last = len(counts) - 1
    found: list[Rung] = []
    for number, count in enumerate(counts):
        these = min(rows, max(1, least, rows // ETA ** (last - number)))
        if not found or these > found[-1].rows:
            found.append(Rung(count, these))
    return found


def survivors(rates: Mapping[int, float | None], keep: int) -> list[int]:
    """The candidates that are kept for the next step: the fastest `keep`, and the first one, which is the
    measure of all,
    if it ran. A rate is None for a candidate that did not run to its end.
    """
    ran = {number: rate for number, rate in rates.items() if rate is not None}
    fastest = sorted(ran, key=lambda number: (-ran[number], number))[:keep]
    first = [number for number in ran if number == 0]
    return sorted({*fastest, *first})
