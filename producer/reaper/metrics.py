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
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import figures
from nightshift.common.settings import Settings
from nightshift.common.telemetry import listener

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


ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

ROW_STATES = ("total", "done", "failed")
BATCH_STATES = ("pending", "queued", "leased", "done", "dead")

POOL_GAUGES = {
    "batches_waiting": (
        "nightshift_pool_batches_waiting",
        "Batches of running jobs that no worker has leased. 0 for a pool that has workers and no work.",
    ),
    "batches_leased": (
        "nightshift_pool_batches_leased",
        "Batches of running jobs that workers hold.",
    ),
    "desired_workers": (
        "nightshift_pool_desired_workers",
        "Children that would have something to do, at least one for each engine with open work.",
    ),
    "machines_set_aside": (
        "nightshift_pool_machines_set_aside",
        "Machines that could not load an engine and do not try again yet.",
    ),
}
"""Name and meaning of the gauge of each column of `figures.pools`."""


class Rounds:
    """Counts the rounds and duties of one reaper."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rounds = Counter(
            "nightshift_reaper_rounds_total",
            "Rounds that came to their end, also those in which a duty failed.",
            registry=registry,
        )
        self._seconds = Histogram(
            "nightshift_reaper_round_seconds",
            "How long a round took.",
            registry=registry,
            buckets=ROUND_BUCKETS,
        )
        self._last = Gauge(
            "nightshift_reaper_last_round_timestamp_seconds",
            "When the last round came to its end, in Unix time; 0 before the first.",
            registry=registry,
        )
        self._failures = Counter(
            "nightshift_reaper_duty_failures_total",
            "Duties that failed and are tried again.",
            ("duty",),
            registry=registry,
        )
        self._reaped = Counter(
            "nightshift_leases_reaped_total",
            "Expired leases that this reaper took back.",
            registry=registry,
        )

    def expect(self, duty: str) -> None:
        """Exports the failures of a duty from 0 on, so that a first failure is a rise."""
        self._failures.labels(duty)

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
        yield GaugeMetricFamily(
            "nightshift_ledger_up",
            "1 when Postgres answered this reaper's last look, 0 when not; then the gauges of jobs and "
            "pools are absent.",
            float(snapshot is not None),
        )
        yield listener.build_info()
        if snapshot is not None:
            yield GaugeMetricFamily(
                "nightshift_ledger_look_timestamp_seconds",
                "When the gauges of jobs and pools were read, in Unix time; old while Postgres is slow.",
                snapshot.at,
            )
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


def _of_jobs(snapshot: LedgerSnapshot) -> Iterator[Family]:
    yield GaugeMetricFamily(
        "nightshift_jobs_left_out",
        "Jobs that are open or were closed in the last hour and are not shown, since they are too many.",
        snapshot.jobs_left_out,
    )
    job_labels = ("job_id", "name", "pool")
    rows = GaugeMetricFamily(
        "nightshift_job_rows",
        "Rows of the job: of its dataset, with an answer, with an error. What is left is total - done "
        "- failed.",
        labels=(*job_labels, "state"),
    )
    batches = GaugeMetricFamily(
        "nightshift_job_batches", "Batches of the job by state.", labels=(*job_labels, "state")
    )
    status = GaugeMetricFamily(
        "nightshift_job_status",
        "Always 1; the label says how the job stands.",
        labels=(*job_labels, "status"),
    )
    for row in snapshot.jobs:
        job = (str(row["job"]), row["name"], row["pool"])
        for state in ROW_STATES:
            rows.add_metric((*job, state), row[f"rows_{state}"])
        for state in BATCH_STATES:
            batches.add_metric((*job, state), row[f"batches_{state}"])
        status.add_metric((*job, row["status"]), 1)
    yield from (rows, batches, status)


def _of_pools(snapshot: LedgerSnapshot) -> Iterator[Family]:
    for column, (name, meaning) in POOL_GAUGES.items():
        gauge = GaugeMetricFamily(name, meaning, labels=("pool",))
        for row in snapshot.pools:
            gauge.add_metric((row["pool"],), row[column])
        yield gauge
    workers = GaugeMetricFamily(
        "nightshift_pool_workers",
        "Living worker children as the ledger knows them.",
        labels=("pool", "state"),
    )
    for row in snapshot.workers:
        workers.add_metric((row["pool"], row["state"]), row["workers"])
    yield workers
