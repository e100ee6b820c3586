"""What a reaper exports: its own rounds, and jobs and pools as the ledger has them."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import figures
from nightshift.common.provenance import code_version
from nightshift.common.settings import Settings
from nightshift.common.telemetry import listener, metrics
from nightshift.common.telemetry.metrics import Metric

log = structlog.get_logger(__name__)

CACHE_SECONDS = 5.0
"""The ledger is read at most once in this time, however many scrapes come."""

WAIT_SECONDS = 3.0
"""A scrape waits this long for a new snapshot, then shows the last; Prometheus gives up after 10."""

KEEP_SECONDS = 60.0
"""While a newer snapshot is being read, the last one is shown this long: two scrapes, usually."""

ANSWER_SECONDS = 15.0
"""Postgres counts as away when one statement of a snapshot takes longer."""

RECENT_SECONDS = 3600.0
"""Jobs that were closed within this time are still shown."""

MOST_JOBS = 200
"""Jobs shown at most, so that the number of series does not grow with the ledger."""


class Rounds:
    """Counts the rounds and duties of one reaper."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rounds = metrics.REAPER_ROUNDS.live(registry)
        self._seconds = metrics.REAPER_ROUND_SECONDS.live(registry)
        self._last = metrics.REAPER_LAST_ROUND.live(registry)
        self._failures = metrics.REAPER_DUTY_FAILURES.live(registry)
        # So that a first failure is a rise.
        for duty in metrics.REAPER_DUTY_FAILURES.labels["duty"]:
            self._failures.labels(duty)
        self._reaped = metrics.LEASES_REAPED.live(registry)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Counts and times the round that runs inside."""
        began = time.monotonic()
        yield
        self._seconds.observe(time.monotonic() - began)
        self._rounds.inc()
        self._last.set_to_current_time()

    def duty_failed(self, duty: str) -> None:
        """Counts a duty that failed; the next round tries it again."""
        self._failures.labels(duty).inc()

    def reaped(self, leases: int) -> None:
        """Counts expired leases that were taken back."""
        self._reaped.inc(leases)


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """What the ledger said at one moment, in rows of `queries.figures`."""

    jobs: Sequence[Mapping[Any, Any]]
    jobs_left_out: int
    pools: Sequence[Mapping[Any, Any]]
    workers: Sequence[Mapping[Any, Any]]
    at: float
    """In Unix time."""


class LedgerGauges(Collector):
    """Gauges of jobs, pools and workers. A thread reads the ledger, so no scrape waits for long.

    `read` asks the ledger. After a failed read nightshift_ledger_up is 0 and no other gauge is
    shown. During a slow read the last snapshot is shown, but no longer than KEEP_SECONDS. `now` is
    in monotonic seconds.
    """

    def __init__(
        self,
        read: Callable[[], LedgerSnapshot],
        wait_seconds: float = WAIT_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._wait_seconds = wait_seconds
        self._now = now
        self._snapshot: LedgerSnapshot | None = None
        self._read_at = -math.inf
        self._reading: threading.Event | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Family]:
        """The gauges for one scrape."""
        snapshot = self._latest()
        yield _family(metrics.LEDGER_UP, [((), snapshot is not None)])
        yield _family(metrics.BUILD_INFO, [((code_version(),), 1)])
        if snapshot is not None:
            yield _family(metrics.LEDGER_LOOK, [((), snapshot.at)])
            yield from _of_jobs(snapshot)
            yield from _of_pools(snapshot)

    def _latest(self) -> LedgerSnapshot | None:
        with self._lock:
            if self._now() - self._read_at < CACHE_SECONDS:
                return self._snapshot
            if self._reading is None:
                self._reading = self._start_reading()
            reading = self._reading
        if reading is not None:
            reading.wait(self._wait_seconds)
        with self._lock:
            return self._snapshot if self._now() - self._read_at < KEEP_SECONDS else None

    def _start_reading(self) -> threading.Event | None:
        done = threading.Event()
        thread = threading.Thread(target=self._refresh, args=(done,), name="snapshot", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left now; the next scrape retries
            log.warning("snapshot_failed", error=str(error))
            return None
        return done

    def _refresh(self, done: threading.Event) -> None:
        snapshot = None
        try:
            snapshot = self._read()
        except NightshiftError as error:
            log.warning("snapshot_failed", error=str(error))
        except Exception:
            log.exception("snapshot_crashed")
        with self._lock:
            self._snapshot, self._reading = snapshot, None
            self._read_at = self._now()
        done.set()


@contextmanager
def served(settings: Settings) -> Iterator[Rounds]:
    """The counts of a reaper; a listener exports them if the settings name a port."""
    registry = CollectorRegistry()
    rounds = Rounds(registry)
    if settings.metrics_port is None:
        yield rounds
        return
    # A connection of its own, so that no round waits for a snapshot.
    with closing(
        Ledger(settings.database_url or "", connections=1, answer_seconds=ANSWER_SECONDS)
    ) as ledger:
        registry.register(LedgerGauges(partial(_read, ledger)))
        with listener.serve(settings, registry):
            yield rounds


def _read(ledger: Ledger) -> LedgerSnapshot:
    with ledger.transaction() as connection:
        jobs, left_out = figures.jobs(connection, RECENT_SECONDS, MOST_JOBS)
        pools, workers = figures.pools(connection), figures.living(connection)
        return LedgerSnapshot(jobs, left_out, pools, workers, time.time())


Values = Iterable[tuple[Sequence[object], float]]


def _family(metric: Metric, values: Values) -> Family:
    """A family from label values, in the order of the metric's labels."""
    family = metric.empty()
    for labels, value in values:
        named = dict(zip(metric.labels, map(str, labels), strict=True))
        family.add_sample(metric.name, named, float(value))
    return family


def _of_jobs(snapshot: LedgerSnapshot) -> Iterator[Family]:
    each = [((row["job"], row["name"], row["pool"]), row) for row in snapshot.jobs]
    yield _family(metrics.JOBS_LEFT_OUT, [((), snapshot.jobs_left_out)])
    for metric, what in ((metrics.JOB_ROWS, "rows"), (metrics.JOB_BATCHES, "batches")):
        states = metric.labels["state"]
        yield _family(
            metric,
            [((*who, state), row[f"{what}_{state}"]) for who, row in each for state in states],
        )
    yield _family(metrics.JOB_STATUS, [((*who, row["status"]), 1) for who, row in each])


def _of_pools(snapshot: LedgerSnapshot) -> Iterator[Family]:
    for metric, column in (
        (metrics.POOL_BATCHES_WAITING, "batches_waiting"),
        (metrics.POOL_BATCHES_LEASED, "batches_leased"),
        (metrics.POOL_DESIRED_WORKERS, "desired_workers"),
        (metrics.POOL_MACHINES_SET_ASIDE, "machines_set_aside"),
    ):
        yield _family(metric, [((row["pool"],), row[column]) for row in snapshot.pools])
    workers = snapshot.workers
    yield _family(
        metrics.POOL_WORKERS, [((row["pool"], row["state"]), row["workers"]) for row in workers]
    )
