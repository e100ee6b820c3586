"""How long answers are and which labels they name, as bars with numbers. Pure; the numbers are text beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from nightshift.common.ledger.jobs.answer_counts import JobAnswers, bounds

MOST_LABELS = 20
"""Labels that have a bar, the most frequent."""

WIDTH, HEIGHT = 240, 10


@dataclass(frozen=True, slots=True)
class Bar:
    """One line: what is counted, how often, and its share of all answers; the bar fills for the longest line."""

    name: str
    answers: int
    share: float
    width: int

    def drawn(self) -> Markup:
        """The bar alone."""
        return Markup(
            '<svg class="counts" aria-hidden="true" viewBox="0 0 {w} {h}" preserveAspectRatio="none">'
            '<rect class="count" width="{}" height="{h}" rx="2"/></svg>'
        ).format(self.width, w=WIDTH, h=HEIGHT)


@dataclass(frozen=True, slots=True)
class Bars:
    """Some lines; `more` are left out, with so many answers."""

    lines: Sequence[Bar]
    answers: int
    more: int = 0
    answers_of_more: int = 0


def lengths(found: JobAnswers) -> Bars | None:
    """The answers by their output tokens, from the shortest to the longest that there are; None for none."""
    counts = [(tokens(place), answers) for place, answers in enumerate(found.lengths)]
    while counts and not counts[-1][1]:
        counts.pop()
    while counts and not counts[0][1]:
        counts.pop(0)
    return _bars(counts) if counts else None


def labels(found: JobAnswers) -> Bars | None:
    """The answers by their label, the most frequent first; None for a job without a choice, and without answers."""
    if not found.labels or not any(found.labels.values()):
        return None
    counts = sorted(found.labels.items(), key=lambda each: (-each[1], each[0]))
    return _bars(counts, MOST_LABELS)


def tokens(place: int) -> str:
    """The tokens that the counts at a place have: `none`, `1`, `2 to 3`."""
    least, most = bounds(place)
    if not place:
        return "none"
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _bars(counts: Sequence[tuple[str, int]], most: int | None = None) -> Bars:
    whole, longest = sum(answers for _, answers in counts), max(answers for _, answers in counts)
    shown, left = counts[:most], counts[len(counts[:most]) :]
    return Bars(
        [
            Bar(name, answers, answers / whole, max(int(answers > 0), WIDTH * answers // longest))
            for name, answers in shown
        ],
        whole,
        len(left),
        sum(answers for _, answers in left),
    )


def percent(share: float) -> str:
    """A share of answers in whole percent; what is there is never 0 %, and less than all never 100 %."""
    if 0 < share < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def drawings(found: JobAnswers) -> Mapping[str, Bars]:
    """The pictures of a job by their headings."""
    both = {"Lengths of answers": lengths(found), "Labels of answers": labels(found)}
    return {name: bars for name, bars in both.items() if bars is not None}
