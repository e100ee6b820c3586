"""The metrics in which children and their supervisor count, as prometheus_client's own objects."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ROW_OUTCOMES = ("ok", "failed")
TOKEN_KINDS = ("prompt", "output", "cached", "reasoning")
BATCH_OUTCOMES = ("done", "split", "released", "failed", "lost", "died")
RENEWAL_OUTCOMES = ("held", "lost", "failed")
LOAD_OUTCOMES = ("ready", "failed")
ENGINE_STATES = ("full", "partial", "empty", "no_work")

BATCH_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

ENGINE_CONCURRENCY = "nightshift_engine_concurrency"


class WorkerMetrics:
    """The metrics of one child, or of one supervisor, which counts in some of them as well.

    A supervisor adds up its own counts and those of its children. A series exists from the first use of its labels.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(
                name,
                meaning,
                ("pool", "engine", "slot"),
                registry=registry,
                multiprocess_mode="mostrecent",  # without a label for the process
            )

        self.rows = counter(
            "nightshift_rows_total",
            "Rows in committed parts: with an answer, or with an error in place of one. A row that runs "
            "again counts again.",
            *("pool", "engine", "outcome"),
        )
        self.tokens = counter(
            "nightshift_tokens_total",
            "Tokens of the rows in nightshift_rows_total; cached are those of prompt that a cache had, reasoning "
            "those of output that are thoughts.",
            *("pool", "engine", "kind"),
        )
        self.rows_shared = counter(
            "nightshift_rows_shared_total",
            "Rows of nightshift_rows_total with the answer of a row whose request is equal.",
            *("pool", "engine"),
        )
        self.batches = counter(
            "nightshift_batches_total",
            "Leases that ended on this machine: committed whole (done), committed in part at a drain "
            "(split), given back uncharged (released), failed and charged (failed), found to belong to "
            "others (lost), held by a child when it died (died).",
            *("pool", "engine", "outcome"),
        )
        self.batch_seconds = Histogram(
            "nightshift_batch_seconds",
            "Time from the claim of a batch to its commit.",
            ("pool", "engine"),
            registry=registry,
            buckets=BATCH_BUCKETS,
        )
        self.stage_seconds = counter(
            "nightshift_stage_seconds_total",
            "Time that threads spent in each stage of a batch, summed over threads.",
            *("pool", "engine", "stage"),
        )
        self.lease_renewals = counter(
            "nightshift_lease_renewals_total",
            "Leases asked to be renewed: held for longer, or lost to others. `failed` counts heartbeats "
            "that Postgres did not answer, whatever they held.",
            *("pool", "outcome"),
        )
        self.engine_rows = gauge(
            "nightshift_engine_rows",
            "Rows in the engine now, running or waiting in its own queue.",
        )
        self.engine_concurrency = gauge(ENGINE_CONCURRENCY, "Rows that the engine can run at once.")
        self.engine_seconds = counter(
            "nightshift_engine_seconds_total",
            "Time since the engine was ready, by how full it was: as many rows as it can run or more "
            "(full), fewer (partial), none although the child had or expected work (empty), none because "
            "no work was admitted (no_work).",
            *("pool", "engine", "slot", "state"),
        )
        self.engine_load_seconds = gauge(
            "nightshift_engine_load_seconds",
            "How long the load of the engine in this slot took.",
        )
        self.engine_loads = counter(
            "nightshift_engine_loads_total",
            "Engine loads that ended, by how; a child that died while loading is a failed one.",
            *("pool", "outcome"),
        )


def by_value(
    metric: Counter, labels: Mapping[str, str], label: str, values: Sequence[str]
) -> dict[str, Counter]:
    """Return the counters of a metric by each value of a label, exported from 0 on: a first event is a rise."""
    return {value: metric.labels(**labels, **{label: value}) for value in values}
