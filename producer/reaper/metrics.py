"""What a reaper exports: its own rounds, and jobs and pools as the ledger has them."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
"""However many scrape, the ledger is asked no more often."""

WAIT_SECONDS = 3.0
"""A scrape waits so long for a new look and then shows the last; Prometheus gives up after 10."""

KEEP_SECONDS = 60.0
"""A look is shown for so long while a newer one is under way: two scrapes, usually."""

ANSWER_SECONDS = 15.0
"""Longest that Postgres may take for one statement of a look; then it counts as away."""

RECENT_SECONDS = 3600.0
"""Jobs that were closed so lately are still shown."""

MOST_JOBS = 200
"""Jobs shown at most, so that series do not grow with the ledger."""


class Rounds:
    """Counts the rounds and duties of one reaper."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._rounds = metrics.counter(metrics.REAPER_ROUNDS, registry)
        self._seconds = metrics.histogram(metrics.REAPER_ROUND_SECONDS, registry)
        self._last = metrics.gauge(metrics.REAPER_LAST_ROUND, registry)
        self._failures = metrics.counter(metrics.REAPER_DUTY_FAILURES, registry)
        for duty in metrics.REAPER_DUTY_FAILURES.labels["duty"]:  # a first failure is a rise
            self._failures.labels(duty)
        self._reaped = metrics.counter(metrics.LEASES_REAPED, registry)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around a round."""
        began = time.monotonic()
        yield
        self._seconds.observe(time.monotonic() - began)
        self._rounds.inc()
        self._last.set_to_current_time()

    def duty_failed(self, duty: str) -> None:
        """A duty failed and comes again."""
        self._failures.labels(duty).inc()

    def reaped(self, leases: int) -> None:
        """Expired leases were taken back."""
        self._reaped.inc(leases)


@dataclass(frozen=True, slots=True)
class Look:
    """What the ledger said at one moment."""

    jobs: Sequence[figures.JobFigures]
    jobs_left_out: int
    pools: Sequence[figures.PoolFigures]
    workers: Sequence[figures.WorkerFigures]
    at: float
    """In Unix time."""


class LedgerGauges(Collector):
    """Gauges of jobs, pools and workers, asked at a scrape in a thread that nobody waits for long.

    `look` asks the ledger. One that failed gives nightshift_ledger_up 0 and no other gauge. While
    a slow one is under way the last is shown, but not for ever: a figure that is no longer known
    is not repeated. `now` is in monotonic seconds.
    """

    def __init__(
        self,
        look: Callable[[], Look],
        wait_seconds: float = WAIT_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = look
        self._wait_seconds = wait_seconds
        self._now = now
        self._look: Look | None = None
        self._looked_at = -math.inf
        self._asking: threading.Event | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Family]:
        """For one scrape."""
        look = self._latest()
        yield _family(metrics.LEDGER_UP, [((), look is not None)])
        yield _family(metrics.BUILD_INFO, [((code_version(),), 1)])
        if look is not None:
            yield _family(metrics.LEDGER_LOOK, [((), look.at)])
            yield from _of_jobs(look)
            yield from _of_pools(look)

    def _latest(self) -> Look | None:
        with self._lock:
            if self._now() - self._looked_at < CACHE_SECONDS:
                return self._look
            if self._asking is None:
                self._asking = self._begin()
            asked = self._asking
        if asked is not None:
            asked.wait(self._wait_seconds)
        with self._lock:
            return self._look if self._now() - self._looked_at < KEEP_SECONDS else None

    def _begin(self) -> threading.Event | None:
        asked = threading.Event()
        thread = threading.Thread(target=self._renew, args=(asked,), name="look", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had now; the next scrape tries again
            log.warning("look_failed", error=str(error))
            return None
        return asked

    def _renew(self, asked: threading.Event) -> None:
        look = None
        try:
            look = self._ask()
        except NightshiftError as error:
            log.warning("look_failed", error=str(error))
        except Exception:
            log.exception("look_crashed")
        with self._lock:
            self._look, self._asking = look, None
            self._looked_at = self._now()
        asked.set()


@contextmanager
def served(settings: Settings) -> Iterator[Rounds]:
    """The counts of a reaper, and the listener that shows them if the settings ask for one."""
    registry = CollectorRegistry()
    rounds = Rounds(registry)
    if settings.metrics_port is None:
        yield rounds
        return
    # A connection of its own: a round waits for none of it.
    ledger = Ledger(settings.database_url or "", connections=1, answer_seconds=ANSWER_SECONDS)

    def look() -> Look:
        with ledger.transaction() as connection:
            shown, left_out = figures.jobs(connection, RECENT_SECONDS, MOST_JOBS)
            return Look(
                shown,
                left_out,
                figures.pools(connection),
                figures.living(connection),
                time.time(),
            )

    registry.register(LedgerGauges(look))
    open_listener = listener.serve(settings, registry)
    assert open_listener is not None
    try:
        yield rounds
    finally:
        open_listener.close()
        ledger.close()


Values = Iterable[tuple[Sequence[object], float]]


def _family(metric: Metric, values: Values) -> Family:
    """A family from label values, in the order of the metric's labels."""
    family = metric.empty()
    for labels, value in values:
        named = dict(zip(metric.labels, map(str, labels), strict=True))
        family.add_sample(metric.name, named, float(value))
    return family


def _of_jobs(look: Look) -> Iterator[Family]:
    each = [((job.job, job.name, job.pool), job) for job in look.jobs]
    yield _family(metrics.JOBS_LEFT_OUT, [((), look.jobs_left_out)])
    yield _family(
        metrics.JOB_ROWS,
        [((*who, state), rows) for who, job in each for state, rows in job.rows.items()],
    )
    yield _family(
        metrics.JOB_BATCHES,
        [((*who, state), count) for who, job in each for state, count in job.batches.items()],
    )
    yield _family(metrics.JOB_STATUS, [((*who, job.status), 1) for who, job in each])


def _of_pools(look: Look) -> Iterator[Family]:
    pools = look.pools
    yield _family(metrics.POOL_BATCHES_WAITING, [((p.pool,), p.batches_waiting) for p in pools])
    yield _family(metrics.POOL_BATCHES_LEASED, [((p.pool,), p.batches_leased) for p in pools])
    yield _family(metrics.POOL_DESIRED_WORKERS, [((p.pool,), p.desired_workers) for p in pools])
    yield _family(metrics.POOL_WORKERS, [((w.pool, w.state), w.workers) for w in look.workers])
