"""Every metric that Nightshift exports: name, type, labels and meaning, as data.

docs/metrics.md lists the same, and a test holds the two together. Names follow Prometheus: base
units, `_total` for counters, `_seconds`, `_bytes` and `_ratio`.
"""

from nightshift.common.telemetry.metric_types import ANY, Kind, Metric

BATCH_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_ENGINE = {"pool": ANY, "engine": ANY}
_SLOT = {**_ENGINE, "slot": ANY}
_JOB = {"job_id": ANY, "name": ANY, "pool": ANY}

# Of both: the supervisor and the reaper.

BUILD_INFO = Metric(
    "nightshift_build_info",
    Kind.GAUGE,
    "Always 1; the label says which code runs.",
    {"version": ANY},
)

# Of the supervisor of a worker machine, for all its children.

ROWS = Metric(
    "nightshift_rows_total",
    Kind.COUNTER,
    "Rows in committed parts: with an answer, or with an error in place of one. A row that runs "
    "again counts again.",
    {**_ENGINE, "outcome": ("ok", "failed")},
    "rows",
)
TOKENS = Metric(
    "nightshift_tokens_total",
    Kind.COUNTER,
    "Tokens of the rows in nightshift_rows_total.",
    {**_ENGINE, "kind": ("prompt", "output")},
    "tokens",
)
BATCHES = Metric(
    "nightshift_batches_total",
    Kind.COUNTER,
    "Leases that ended on this machine: committed whole (done), committed in part at a drain "
    "(split), given back uncharged (released), failed and charged (failed), found to belong to "
    "others (lost), held by a child when it died (died).",
    {**_ENGINE, "outcome": ("done", "split", "released", "failed", "lost", "died")},
    "batches",
)
BATCH_SECONDS = Metric(
    "nightshift_batch_seconds",
    Kind.HISTOGRAM,
    "Time from the claim of a batch to its commit.",
    _ENGINE,
    "seconds",
    BATCH_BUCKETS,
)
STAGE_SECONDS = Metric(
    "nightshift_stage_seconds_total",
    Kind.COUNTER,
    "Time that threads spent in each stage of a batch, summed over threads.",
    {
        **_ENGINE,
        "stage": (
            "claim",
            "read",
            "render",
            "tokenize",
            "queue",
            "infer",
            "table",
            "write",
            "commit",
            "settle",
        ),
    },
    "seconds",
)
LEASE_RENEWALS = Metric(
    "nightshift_lease_renewals_total",
    Kind.COUNTER,
    "Leases asked to be renewed: held for longer, or lost to others. `failed` counts heartbeats "
    "that Postgres did not answer, whatever they held.",
    {"pool": ANY, "outcome": ("held", "lost", "failed")},
    "leases",
)
ENGINE_ROWS = Metric(
    "nightshift_engine_rows",
    Kind.GAUGE,
    "Rows in the engine now, running or waiting in its own queue.",
    _SLOT,
    "rows",
)
ENGINE_CONCURRENCY = Metric(
    "nightshift_engine_concurrency",
    Kind.GAUGE,
    "Rows that the engine can run at once.",
    _SLOT,
    "rows",
)
ENGINE_SECONDS = Metric(
    "nightshift_engine_seconds_total",
    Kind.COUNTER,
    "Time since the engine was ready, by how full it was: as many rows as it can run or more "
    "(full), fewer (partial), none although the child had or expected work (empty), none because "
    "no work was admitted (no_work).",
    {**_SLOT, "state": ("full", "partial", "empty", "no_work")},
    "seconds",
)
ENGINE_LOAD_SECONDS = Metric(
    "nightshift_engine_load_seconds",
    Kind.GAUGE,
    "How long the load of the engine in this slot took.",
    _SLOT,
    "seconds",
)
ENGINE_LOADS = Metric(
    "nightshift_engine_loads_total",
    Kind.COUNTER,
    "Engine loads that ended, by how; a child that died while loading is a failed one.",
    {"pool": ANY, "outcome": ("ready", "failed")},
    "loads",
)
CHILDREN = Metric(
    "nightshift_children",
    Kind.GAUGE,
    "Slots of this machine by the state of their child; free: no child.",
    {"pool": ANY, "state": ("loading", "ready", "draining", "free")},
    "slots",
)
CHILD_EXITS = Metric(
    "nightshift_child_exits_total",
    Kind.COUNTER,
    "Children that ended: as asked, by themselves, because their engine could not be loaded, or "
    "killed since they hung.",
    {"pool": ANY, "reason": ("asked", "died", "load_failed", "hung")},
    "children",
)
GPU_MEMORY_USED = Metric(
    "nightshift_gpu_memory_used_bytes",
    Kind.GAUGE,
    "Memory of the GPU in use, by whatever process. Absent without a GPU and NVML.",
    {"gpu": ANY},
    "bytes",
)
GPU_MEMORY_TOTAL = Metric(
    "nightshift_gpu_memory_total_bytes",
    Kind.GAUGE,
    "Memory of the GPU. Absent without a GPU and NVML.",
    {"gpu": ANY},
    "bytes",
)
GPU_UTILIZATION = Metric(
    "nightshift_gpu_utilization_ratio",
    Kind.GAUGE,
    "Share of NVML's last sample period (up to 1 s) in which a kernel ran, 0 to 1. Absent "
    "without a GPU and NVML.",
    {"gpu": ANY},
    "ratio",
)

# Of each reaper.

REAPER_ROUNDS = Metric(
    "nightshift_reaper_rounds_total",
    Kind.COUNTER,
    "Rounds that came to their end, also those in which a duty failed.",
    {},
    "rounds",
)
REAPER_ROUND_SECONDS = Metric(
    "nightshift_reaper_round_seconds",
    Kind.HISTOGRAM,
    "How long a round took.",
    {},
    "seconds",
    ROUND_BUCKETS,
)
REAPER_LAST_ROUND = Metric(
    "nightshift_reaper_last_round_timestamp_seconds",
    Kind.GAUGE,
    "When the last round came to its end, in Unix time; 0 before the first.",
    {},
    "seconds",
)
REAPER_DUTY_FAILURES = Metric(
    "nightshift_reaper_duty_failures_total",
    Kind.COUNTER,
    "Duties that failed and are tried again.",
    {"duty": ("hold_budgets", "hold", "dispatch", "reap", "tidy", "finish_round", "finish")},
    "failures",
)
LEASES_REAPED = Metric(
    "nightshift_leases_reaped_total",
    Kind.COUNTER,
    "Expired leases that this reaper took back.",
    {},
    "leases",
)
JOB_ROWS = Metric(
    "nightshift_job_rows",
    Kind.GAUGE,
    "Rows of the job: of its dataset, with an answer, with an error. What is left is total - done "
    "- failed.",
    {**_JOB, "state": ("total", "done", "failed")},
    "rows",
)
JOB_BATCHES = Metric(
    "nightshift_job_batches",
    Kind.GAUGE,
    "Batches of the job by state.",
    {**_JOB, "state": ("pending", "queued", "leased", "done", "dead")},
    "batches",
)
JOB_STATUS = Metric(
    "nightshift_job_status",
    Kind.GAUGE,
    "Always 1; the label says how the job stands.",
    {**_JOB, "status": ("running", "paused", "completed", "failed", "cancelled")},
)
JOBS_LEFT_OUT = Metric(
    "nightshift_jobs_left_out",
    Kind.GAUGE,
    "Jobs that are open or were closed in the last hour and are not shown, since they are too "
    "many.",
    {},
    "jobs",
)
POOL_BATCHES_WAITING = Metric(
    "nightshift_pool_batches_waiting",
    Kind.GAUGE,
    "Batches of running jobs that nobody has leased. 0 for a pool that has workers and no work.",
    {"pool": ANY},
    "batches",
)
POOL_BATCHES_LEASED = Metric(
    "nightshift_pool_batches_leased",
    Kind.GAUGE,
    "Batches of running jobs that workers hold.",
    {"pool": ANY},
    "batches",
)
POOL_DESIRED_WORKERS = Metric(
    "nightshift_pool_desired_workers",
    Kind.GAUGE,
    "Children that would have something to do, at least one for each engine with open work.",
    {"pool": ANY},
    "workers",
)
POOL_WORKERS = Metric(
    "nightshift_pool_workers",
    Kind.GAUGE,
    "Living worker children as the ledger knows them.",
    {"pool": ANY, "state": ("loading", "ready", "draining")},
    "workers",
)
LEDGER_UP = Metric(
    "nightshift_ledger_up",
    Kind.GAUGE,
    "1 when Postgres answered this reaper's last look, 0 when not; then the gauges of jobs and "
    "pools are absent.",
    {},
)
LEDGER_LOOK = Metric(
    "nightshift_ledger_look_timestamp_seconds",
    Kind.GAUGE,
    "When the gauges of jobs and pools were read, in Unix time; old while Postgres is slow.",
    {},
    "seconds",
)

METRICS: tuple[Metric, ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Metric)
)
"""All of them, in the order in which docs/metrics.md has them."""
