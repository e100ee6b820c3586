"""The fleet at one moment: `workers` and `top`, for people and as JSON."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live

from nightshift.common.errors import Retryable
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.fleet import workers as ledger_workers
from nightshift.common.ledger.fleet.outages import Outage
from nightshift.common.ledger.queries import figures, job_facts, job_pace
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.views import fleet_tables, rates, tables
from nightshift.producer.views.deadlines import with_deadlines
from nightshift.producer.views.progress import LiveView, refuse_abandoned
from nightshift.producer.views.rates import Values
from nightshift.producer.views.standings import with_standings

TOP_SECONDS = 1.0
"""Pause between two frames."""

MOST_JOBS = 20
"""Open jobs that `top` shows, the newest."""

Totals = Mapping[str, tuple[int, float]]
"""Rows run and seconds at work by the id of a child."""

Report = tuple[float, int]
"""When a look saw a new total of a child, and its rows run."""

MOST_REPORTS = 4
OVERDUE = 3.0
"""Reports that a rate goes over, and after how many usual pauses a child counts as standing still."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What one look at the ledger found. Rates are rows a second of each child."""

    jobs: Sequence[Values]
    pools: list[Row]
    slots: list[Row]
    held: Mapping[str, Row]
    rates: Mapping[str, float | None]
    outages: Sequence[Outage]

    def table(self) -> RenderableType:
        """The slots, and what jobs wait for."""
        slots = fleet_tables.workers(self.slots, self.held, self.rates)
        return Group(slots, *tables.away(self.outages))

    def top(self) -> RenderableType:
        """Everything, on one screen."""
        away = tables.away(self.outages)
        return fleet_tables.top(self.jobs, self.pools, self.slots, self.held, self.rates, away)

    def of_before(self) -> "Fleet":
        """The same without rates, for the time in which Postgres tells no new ones."""
        return replace(self, jobs=[rates.without_pace(row) for row in self.jobs], rates={})

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "jobs": [rates.as_json(row) for row in self.jobs],
            "pools": [rates.plain(row) for row in self.pools],
            "workers": [self._slot(row) for row in self.slots],
        }

    def _slot(self, row: Row) -> dict[str, Any]:
        child = self.held.get(row["worker_id"])
        names = ("engine", "engine_version", "window_rows", "batches_leased", "rows_leased")
        rate = self.rates.get(row["worker_id"])
        return {
            **rates.plain(row),
            **{name: None if child is None else child[name] for name in names},
            "rows_per_second": None if rate is None else round(rate, 3),
        }


def workers(ledger: Ledger, pool: str | None) -> Fleet:
    """The slots of one pool, or of all; rates over all that each child did so far."""
    with ledger.transaction() as connection:
        slots, held = (
            job_facts.slots(connection, None if pool is None else [pool]),
            _held(ledger_workers.status(connection)),
        )
        totals, away = job_facts.rates(connection), outages.listed(connection)
    return Fleet([], [], slots, held, _overall(totals), away)


def fleet(ledger: Ledger, here: Here = FLEET) -> Fleet:
    """The open jobs, the pools and the slots; rates over all that each child did so far."""
    return _look(ledger, LiveRates(), here)


def top(ledger: Ledger, console: Console, here: Here = FLEET) -> None:
    """Shows the fleet until Ctrl-C; one frame where there is no terminal."""
    seen = LiveRates()
    shown = _look(ledger, seen, here)
    if not console.is_terminal:
        console.print(shown.top())
        return
    view = LiveView(shown.top())
    with Live(view, console=console, screen=True):
        while True:
            time.sleep(TOP_SECONDS)
            try:
                shown = _look(ledger, seen, here)
                view.content, view.away_since = shown.top(), None
            except Retryable as error:
                refuse_abandoned(ledger, error)
                view.content = shown.of_before().top()
                view.begin_outage(error)


def _look(ledger: Ledger, seen: "LiveRates", here: Here) -> Fleet:
    with ledger.transaction() as connection:
        listed = with_deadlines(connection, job_pace.unfinished(connection, MOST_JOBS))
        listed = with_standings(connection, listed, here)
        slots, held = job_facts.slots(connection), _held(ledger_workers.status(connection))
        demand, totals = figures.pools(connection), job_facts.rates(connection)
        away = outages.listed(connection)
    return Fleet(listed, demand, slots, held, seen.after(totals, time.monotonic()), away)


def _held(status: list[Row]) -> dict[str, Row]:
    return {row["worker"]: row for row in status}


def _overall(totals: Totals) -> dict[str, float | None]:
    return {id: rows / seconds if seconds else None for id, (rows, seconds) in totals.items()}


class LiveRates:
    """Rates of children over their last reports. A child reports at each heartbeat, so most looks see
    nothing new. Until a child has reported twice, its rate is that of all its time.
    """

    def __init__(self) -> None:
        self._reports: dict[str, deque[Report]] = {}
        self._rows: dict[str, int] = {}

    def after(self, totals: Totals, now: float) -> dict[str, float | None]:
        """The rates once these totals were seen."""
        found = _overall(totals)
        for id, (rows, _) in totals.items():
            reports = self._reports.setdefault(id, deque(maxlen=MOST_REPORTS))
            if rows != self._rows.get(id, rows):
                reports.append((now, rows))
            if (live := live_rate(reports, now)) is not None:
                found[id] = live
        self._rows = {id: rows for id, (rows, _) in totals.items()}
        self._reports = {id: self._reports[id] for id in totals}
        return found


def live_rate(reports: Sequence[Report], now: float) -> float | None:
    """Rows a second from the first of some reports to the last, or to now where the next report is long
    overdue; None for fewer than two.
    """
    if len(reports) < 2:
        return None
    (first, before), (last, rows) = reports[0], reports[-1]
    usual = (last - first) / (len(reports) - 1)
    until = last if now - last <= OVERDUE * usual else now
    return (rows - before) / (until - first)
