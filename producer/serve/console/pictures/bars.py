"""Timeline of a job: one lane per slot, leases and engine loads as bars, at most MOST_BARS in all. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

MOST_BARS = 2000

MOST_LANES = 200
"""With more slots a lane is a host; with more hosts the last lane is that of all others."""

Place = tuple[str, int | None]
"""Host and slot; None for a whole host."""

OTHERS: Place = ("", None)
"""The lane of the hosts that have no lane of their own."""

DONE, LOAD = "d", "o"

KINDS = {"done": DONE, "split": DONE, "failed": "f", "lost": "l", "released": "r"}
"""Kinds of bars by the outcome of a lease; a load is LOAD."""

TYPICAL_GAPS = 8
"""In a sampled lane, a gap counts as idle time if it exceeds this multiple of the median time between two begins."""


class Bar(NamedTuple):
    """Leases of one kind that follow each other, or a load. Times are in seconds since 1970; `seq` is the place of the
    first batch.
    """

    kind: str
    began: float
    ended: float
    batches: int = 0
    rows: int = 0
    failed: int = 0
    seq: int = -1


@dataclass(frozen=True, slots=True)
class Lanes:
    """Bars by host and slot. Consecutive leases share a bar of at most `step` seconds; with 0 each lease has its own.

    `is_sampled` says that the bars are of a sample of the leases.
    """

    bars: Mapping[Place, list[Bar]] = field(default_factory=dict)
    step: float = 0.0
    by_host: bool = False
    is_sampled: bool = False

    @property
    def count(self) -> int:
        """How many bars there are."""
        return sum(map(len, self.bars.values()))

    @classmethod
    def of(cls, leases: Iterable[Mapping[Any, Any]], *, is_sampled: bool = False) -> "Lanes":
        """Return the lanes of leases as returned by `job_leases.ended`, with the loads of their children. Sampled leases
        are extended by `fill_gaps`.
        """
        bars: dict[Place, list[Bar]] = {}
        loads: dict[Place, dict[float, Bar]] = {}
        for lease in leases:
            place = lease["host"] or lease["worker"], lease["slot"]
            bars.setdefault(place, []).append(of_lease(lease))
            started, ready = lease["started"], lease["ready"]
            if started is not None and ready is not None:
                load = Bar(LOAD, started, max(ready, started))
                loads.setdefault(place, {})[started] = load
        if is_sampled:
            bars = {place: fill_gaps(found) for place, found in bars.items()}
        bars = {place: [*found, *loads.get(place, {}).values()] for place, found in bars.items()}
        return cls(bars, is_sampled=is_sampled)._bounded()

    def place(self, host: str, slot: int | None) -> Place:
        """Return the lane of a slot, which need not have a bar yet."""
        return _of_host(host, self.bars) if self.by_host else (host, slot)

    def _bounded(self) -> "Lanes":
        """The same with at most MOST_LANES lanes and MOST_BARS bars."""
        lanes = self
        if not lanes.by_host and len(lanes.bars) > MOST_LANES:
            lanes = lanes._of_hosts()
        while lanes.count > MOST_BARS:
            lanes = lanes._coarser()
        return lanes

    def _of_hosts(self) -> "Lanes":
        bars: dict[Place, list[Bar]] = {}
        for (host, _), found in self.bars.items():
            bars.setdefault(_of_host(host, bars), []).extend(found)
        return replace(self, bars=bars, by_host=True)

    def _coarser(self) -> "Lanes":
        every = [bar for bars in self.bars.values() for bar in bars]
        span = max(bar.ended for bar in every) - min(bar.began for bar in every)
        step = max(1.5 * self.step, span / MOST_BARS, 0.1)
        return replace(
            self, step=step, bars={place: merged(bars, step) for place, bars in self.bars.items()}
        )


def of_lease(lease: Mapping[Any, Any]) -> Bar:
    """The bar of one lease."""
    began = lease["claimed"]
    ended = max(lease["ended"], began)
    kind = KINDS[lease["outcome"]]
    return Bar(kind, began, ended, 1, lease["rows"], lease["failed"], lease["seq"])


def fill_gaps(bars: Sequence[Bar]) -> list[Bar]:
    """Extend each committed lease of a sampled lane to the begin of the next one, since the leases between them were not
    sampled. Gaps longer than TYPICAL_GAPS times the median time between two begins stay.
    """
    others = [bar for bar in bars if bar.kind != DONE]
    found = sorted((bar for bar in bars if bar.kind == DONE), key=attrgetter("began"))
    gaps = [after.began - before.began for before, after in pairwise(found)]
    pause = TYPICAL_GAPS * statistics.median(gaps) if gaps else 0.0
    for at, (before, after) in enumerate(pairwise(found)):
        if 0 < after.began - before.ended <= pause:
            found[at] = before._replace(ended=after.began)
    return [*found, *others]


def merged(bars: Iterable[Bar], step: float) -> list[Bar]:
    """Bars of one lane in the order of their begin: neighbours of a kind are one where it is no longer than `step`."""
    last: dict[str, int] = {}
    found: list[Bar] = []
    for bar in sorted(bars, key=attrgetter("began")):
        at = last.get(bar.kind)
        if at is not None and max(bar.ended, found[at].ended) - found[at].began <= step:
            found[at] = _joined(found[at], bar)
        else:
            last[bar.kind] = len(found)
            found.append(bar)
    return found


def busy_seconds(bars: Iterable[Bar]) -> float:
    """In how many seconds a lane held at least one lease."""
    seconds, until = 0.0, float("-inf")
    for bar in sorted((bar for bar in bars if bar.kind != LOAD), key=attrgetter("began")):
        seconds += max(bar.ended - max(bar.began, until), 0.0)
        until = max(until, bar.ended)
    return seconds


def _of_host(host: str, lanes: Mapping[Place, object]) -> Place:
    place = (host, None)
    return place if place in lanes or len(lanes) < MOST_LANES - 1 else OTHERS


def _joined(one: Bar, two: Bar) -> Bar:
    """Both as one; the link leads to the first."""
    return Bar(
        one.kind,
        one.began,
        max(one.ended, two.ended),
        one.batches + two.batches,
        one.rows + two.rows,
        one.failed + two.failed,
        one.seq,
    )
