"""Every metric that Nightshift exports: name, type, unit, meaning and labels, as data.

docs/metrics.md lists the same, and a test holds the two together. Names follow Prometheus: base
units, `_total` for counters, `_seconds`, `_bytes` and `_ratio`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric as Family

ANY: tuple[str, ...] = ()
"""A label whose values are not known beforehand."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` are their names with the values that each can have (ANY: open)."""

    kind: ClassVar[str]

    name: str
    unit: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The name without `_total`, as prometheus_client and OpenMetrics keep it."""
        return self.name.removesuffix("_total")

    @property
    def series(self) -> tuple[str, ...]:
        """The names that an expression may use."""
        return (self.name,)

    def empty(self) -> Family:
        """The family of the metric without samples, to add samples to."""
        return Family(self.family, self.help, self.kind)


class CounterMetric(Metric):
    """A metric that only rises."""

    kind = "counter"

    def live(self, registry: CollectorRegistry) -> Counter:
        """A live counter."""
        return Counter(self.name, self.help, tuple(self.labels), registry=registry)


class GaugeMetric(Metric):
    """A metric that rises and falls."""

    kind = "gauge"

    def live(self, registry: CollectorRegistry) -> Gauge:
        """A live gauge; of several processes, the last one that set it counts."""
        return Gauge(
            self.name,
            self.help,
            tuple(self.labels),
            registry=registry,
            multiprocess_mode="mostrecent",
        )


@dataclass(frozen=True, slots=True)
class HistogramMetric(Metric):
    """A metric that counts values by size."""

    kind = "histogram"

    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names that an expression may use."""
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))

    def live(self, registry: CollectorRegistry) -> Histogram:
        """A live histogram."""
        labels = tuple(self.labels)
        return Histogram(self.name, self.help, labels, registry=registry, buckets=self.buckets)


class Stage(StrEnum):
    """What a child does for its batches, in the order in which a batch meets it."""

    CLAIM = "claim"
    READ = "read"
    RENDER = "render"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    INFER = "infer"
    TABLE = "table"
    WRITE = "write"
    COMMIT = "commit"
    SETTLE = "settle"


BATCH_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_ENGINE = {"pool": ANY, "engine": ANY}
_GPU = {"gpu": ANY}
_POOL = {"pool": ANY}
_SLOT = {**_ENGINE, "slot": ANY}
_JOB = {"job_id": ANY, "name": ANY, "pool": ANY}

# Both the supervisor and the reaper export this.

BUILD_INFO = GaugeMetric(
    "nightshift_build_info", "", "Always 1; the label says which code runs.", {"version": ANY}
)

# The supervisor of a worker machine exports these for all its children.

ROWS = CounterMetric(
    "nightshift_rows_total",
    "rows",
    "Rows in committed parts: with an answer, or with an error in place of one. A row that runs "
    "again counts again.",
    {**_ENGINE, "outcome": ("ok", "failed")},
)
TOKENS = CounterMetric(
    "nightshift_tokens_total",
    "tokens",
    "Tokens of the rows in nightshift_rows_total; cached are those of prompt that a cache had, reasoning "
    "those of output that are thoughts.",
    {**_ENGINE, "kind": ("prompt", "output", "cached", "reasoning")},
)
ROWS_SHARED = CounterMetric(
    "nightshift_rows_shared_total",
    "rows",
    "Rows of nightshift_rows_total with the answer of a row whose request is equal.",
    _ENGINE,
)
BATCHES = CounterMetric(
    "nightshift_batches_total",
    "batches",
    "Leases that ended on this machine: committed whole (done), committed in part at a drain "
    "(split), given back uncharged (released), failed and charged (failed), found to belong to "
    "others (lost), held by a child when it died (died).",
    {**_ENGINE, "outcome": ("done", "split", "released", "failed", "lost", "died")},
)
BATCH_SECONDS = HistogramMetric(
    "nightshift_batch_seconds",
    "seconds",
    "Time from the claim of a batch to its commit.",
    _ENGINE,
    BATCH_BUCKETS,
)
STAGE_SECONDS = CounterMetric(
    "nightshift_stage_seconds_total",
    "seconds",
    "Time that threads spent in each stage of a batch, summed over threads.",
    {**_ENGINE, "stage": tuple(Stage)},
)
LEASE_RENEWALS = CounterMetric(
    "nightshift_lease_renewals_total",
    "leases",
    "Leases asked to be renewed: held for longer, or lost to others. `failed` counts heartbeats "
    "that Postgres did not answer, whatever they held.",
    {**_POOL, "outcome": ("held", "lost", "failed")},
)
ENGINE_ROWS = GaugeMetric(
    "nightshift_engine_rows",
    "rows",
    "Rows in the engine now, running or waiting in its own queue.",
    _SLOT,
)
ENGINE_CONCURRENCY = GaugeMetric(
    "nightshift_engine_concurrency", "rows", "Rows that the engine can run at once.", _SLOT
)
ENGINE_SECONDS = CounterMetric(
    "nightshift_engine_seconds_total",
    "seconds",
    "Time since the engine was ready, by how full it was: as many rows as it can run or more "
    "(full), fewer (partial), none although the child had or expected work (empty), none because "
    "no work was admitted (no_work).",
    {**_SLOT, "state": ("full", "partial", "empty", "no_work")},
)
ENGINE_LOAD_SECONDS = GaugeMetric(
    "nightshift_engine_load_seconds",
    "seconds",
    "How long the load of the engine in this slot took.",
    _SLOT,
)
ENGINE_LOADS = CounterMetric(
    "nightshift_engine_loads_total",
    "loads",
    "Engine loads that ended, by how; a child that died while loading is a failed one.",
    {**_POOL, "outcome": ("ready", "failed")},
)
CHILDREN = GaugeMetric(
    "nightshift_children",
    "slots",
    "Slots of this machine by the state of their child; free: no child; lost: a killed child that the "
    "kernel does not let go.",
    {**_POOL, "state": ("loading", "ready", "draining", "free", "lost")},
)
CHILD_EXITS = CounterMetric(
    "nightshift_child_exits_total",
    "children",
    "Children that ended: as asked, by themselves, because their engine could not be loaded, or "
    "since they hung.",
    {**_POOL, "reason": ("asked", "died", "load_failed", "hung")},
)
GPU_MEMORY_USED = GaugeMetric(
    "nightshift_gpu_memory_used_bytes",
    "bytes",
    "Memory of the GPU in use, by whatever process. Absent without a GPU and NVML.",
    _GPU,
)
GPU_MEMORY_TOTAL = GaugeMetric(
    "nightshift_gpu_memory_total_bytes",
    "bytes",
    "Memory of the GPU. Absent without a GPU and NVML.",
    _GPU,
)
GPU_UTILIZATION = GaugeMetric(
    "nightshift_gpu_utilization_ratio",
    "ratio",
    "Share of NVML's last sample period (up to 1 s) in which a kernel ran, 0 to 1. Absent "
    "without a GPU and NVML.",
    _GPU,
)

# Each reaper exports these.

REAPER_ROUNDS = CounterMetric(
    "nightshift_reaper_rounds_total",
    "rounds",
    "Rounds that came to their end, also those in which a duty failed.",
)
REAPER_ROUND_SECONDS = HistogramMetric(
    "nightshift_reaper_round_seconds", "seconds", "How long a round took.", {}, ROUND_BUCKETS
)
REAPER_LAST_ROUND = GaugeMetric(
    "nightshift_reaper_last_round_timestamp_seconds",
    "seconds",
    "When the last round came to its end, in Unix time; 0 before the first.",
)
REAPER_DUTY_FAILURES = CounterMetric(
    "nightshift_reaper_duty_failures_total",
    "failures",
    "Duties that failed and are tried again.",
    {
        "duty": (
            "hold_budgets",
            "hold",
            "unqueue",
            "dispatch",
            "reap",
            "tidy",
            "finish",
            "beat",
            "write_finished",
            "make_looks",
            "archive_due",
            "commit_tables",
            "remove_replaced",
            "validate",
            "expire",
            "finalize",
            "send_webhooks",
            "sweep_files",
            "sweep_jobs",
        )
    },
)
LEASES_REAPED = CounterMetric(
    "nightshift_leases_reaped_total", "leases", "Expired leases that this reaper took back."
)
JOB_ROWS = GaugeMetric(
    "nightshift_job_rows",
    "rows",
    "Rows of the job: of its dataset, with an answer, with an error. What is left is total - done "
    "- failed.",
    {**_JOB, "state": ("total", "done", "failed")},
)
JOB_BATCHES = GaugeMetric(
    "nightshift_job_batches",
    "batches",
    "Batches of the job by state.",
    {**_JOB, "state": ("pending", "queued", "leased", "done", "dead")},
)
JOB_STATUS = GaugeMetric(
    "nightshift_job_status",
    "",
    "Always 1; the label says how the job stands.",
    {**_JOB, "status": ("running", "paused", "completed", "failed", "cancelled")},
)
JOBS_LEFT_OUT = GaugeMetric(
    "nightshift_jobs_left_out",
    "jobs",
    "Jobs that are open or were closed in the last hour and are not shown, since they are too "
    "many.",
)
POOL_BATCHES_WAITING = GaugeMetric(
    "nightshift_pool_batches_waiting",
    "batches",
    "Batches of running jobs that no worker has leased. 0 for a pool that has workers and no work.",
    _POOL,
)
POOL_BATCHES_LEASED = GaugeMetric(
    "nightshift_pool_batches_leased", "batches", "Batches of running jobs that workers hold.", _POOL
)
POOL_DESIRED_WORKERS = GaugeMetric(
    "nightshift_pool_desired_workers",
    "workers",
    "Children that would have something to do, at least one for each engine with open work.",
    _POOL,
)
POOL_MACHINES_SET_ASIDE = GaugeMetric(
    "nightshift_pool_machines_set_aside",
    "machines",
    "Machines that could not load an engine and do not try again yet.",
    _POOL,
)
POOL_WORKERS = GaugeMetric(
    "nightshift_pool_workers",
    "workers",
    "Living worker children as the ledger knows them.",
    {**_POOL, "state": ("loading", "ready", "draining", "lost")},
)
LEDGER_UP = GaugeMetric(
    "nightshift_ledger_up",
    "",
    "1 when Postgres answered this reaper's last look, 0 when not; then the gauges of jobs and "
    "pools are absent.",
)
LEDGER_LOOK = GaugeMetric(
    "nightshift_ledger_look_timestamp_seconds",
    "seconds",
    "When the gauges of jobs and pools were read, in Unix time; old while Postgres is slow.",
)

METRICS: tuple[Metric, ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Metric)
)
"""All of them, in the order in which docs/metrics.md has them."""
