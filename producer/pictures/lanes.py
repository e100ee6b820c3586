"""Who worked when: a lane a slot, leases and loads as bars; at most MOST_BARS, however many leases a job had."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

MOST_BARS = 2000

MOST_LANES = 200
"""With more slots a lane is a host; with more hosts the last lane is that of all others."""

Place = tuple[str, int | None]
"""Host and slot; None for a whole host."""

OTHERS: Place = ("", None)
"""The lane of the hosts that have no lane of their own."""

KINDS = {"done": "d", "split": "d", "failed": "f", "lost": "l", "released": "r"}
"""Kinds of bars by the outcome of a lease; a load is `o`."""

LOAD = "o"


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
    """Bars by place. Neighbours are one bar where the bar is no longer than `step` seconds; 0: each lease is a bar."""

    bars: Mapping[Place, list[Bar]] = field(default_factory=dict)
    step: float = 0.0
    by_host: bool = False

    @property
    def count(self) -> int:
        """How many bars there are."""
        return sum(map(len, self.bars.values()))

    def plus(self, leases: Iterable[Mapping[Any, Any]]) -> "Lanes":
        """The lanes with more leases, and with the loads of their children.

        A lease has `host` (None for a child that the ledger has forgotten), `worker`, `slot`, `started`, `ready`,
        `claimed`, `ended`, `outcome`, `rows`, `failed`, `seq`.
        """
        bars = {place: list(found) for place, found in self.bars.items()}
        loads: dict[tuple[Place, float], Bar] = {}
        for lease in leases:
            place = self._place(lease["host"] or lease["worker"], lease["slot"], bars)
            bars.setdefault(place, []).append(of_lease(lease))
            started, ready = lease["started"], lease["ready"]
            if started is not None and ready is not None:
                loads[place, started] = Bar(LOAD, started, max(ready, started))
        for (place, started), load in loads.items():
            if not _has_load(self.bars.get(place, ()), started):
                bars[place].append(load)
        return replace(self, bars=bars)._bounded()

    def as_json(self) -> dict[str, Any]:
        """What is kept in the ledger."""
        # A tenth of a second is enough for a picture, and takes half of the room.
        lanes = [
            [*place, [[bar[0], round(bar[1], 1), round(bar[2], 1), *bar[3:]] for bar in bars]]
            for place, bars in self.bars.items()
        ]
        return {"step": self.step, "by_host": self.by_host, "lanes": lanes}

    @classmethod
    def of_json(cls, kept: Mapping[str, Any] | None) -> "Lanes":
        """Lanes that were kept; none for None."""
        if kept is None:
            return cls()
        bars = {(host, slot): [Bar(*bar) for bar in found] for host, slot, found in kept["lanes"]}
        return cls(bars, kept["step"], kept["by_host"])

    def _place(self, host: str, slot: int | None, bars: Mapping[Place, object]) -> Place:
        place = (host, None if self.by_host else slot)
        if self.by_host and place not in bars and len(bars) >= MOST_LANES - 1:
            return OTHERS
        return place

    def _bounded(self) -> "Lanes":
        """The same with at most MOST_LANES lanes and MOST_BARS bars."""
        lanes = self
        if not lanes.by_host and len(lanes.bars) > MOST_LANES:
            lanes = lanes._of_hosts()
        while lanes.count > MOST_BARS:
            lanes = lanes._coarser()
        return lanes

    def _of_hosts(self) -> "Lanes":
        hosts = replace(self, bars={}, by_host=True)
        bars: dict[Place, list[Bar]] = {}
        for (host, _), found in self.bars.items():
            bars.setdefault(hosts._place(host, None, bars), []).extend(found)
        return replace(hosts, bars=bars)

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


def _has_load(lane: Iterable[Bar], started: float) -> bool:
    # Kept times are rounded to a tenth of a second.
    return any(bar.kind == LOAD and bar.began - 0.1 <= started <= bar.ended + 0.1 for bar in lane)
