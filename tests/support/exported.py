"""Every metric that a fleet exports, read from the text of two scrapes: a worker machine's and a reaper's."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.reaper import duties
from nightshift.producer.reaper.duty import Reaper
from nightshift.producer.reaper.metrics import (
    BATCH_STATES,
    POOL_GAUGES,
    ROW_STATES,
    LedgerGauges,
    LedgerSnapshot,
    Rounds,
)
from nightshift.worker.telemetry.counts import Counts
from nightshift.worker.telemetry.gpus import Gpus
from nightshift.worker.telemetry.machine import MachineMetrics
from nightshift.worker.telemetry.utilization import Utilization

OPEN_LABELS = {"pool", "engine", "slot", "gpu", "job_id", "name", "version"}
"""Labels whose values are not known beforehand."""


@dataclass(slots=True)
class Exported:
    """One metric; `labels` are the values that each label has, empty for an open one."""

    kind: str
    meaning: str
    labels: dict[str, set[str]] = field(default_factory=dict)
    series: set[str] = field(default_factory=set)
    """The names that an expression may use."""


def metrics() -> Mapping[str, Exported]:
    """Return the metrics by name."""
    disable_created_metrics()  # as the listener does
    found: dict[str, Exported] = {}
    for registry in (_machine(), _reaper()):
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            metric = found.setdefault(name, Exported(family.type, family.documentation))
            for sample in family.samples:
                metric.series.add(sample.name)
                for label, value in sample.labels.items():
                    if label != "le":
                        values = metric.labels.setdefault(label, set())
                        values |= set() if label in OPEN_LABELS else {value}
    return found


def _machine() -> CollectorRegistry:
    """A machine with a child in the same process, and a GPU."""
    registry = CollectorRegistry()
    Counts(Utilization(4), "p", "function", 0, registry)
    nvml = SimpleNamespace(
        NVMLError=OSError,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=1, total=2),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=50),
    )
    registry.register(MachineMetrics("p", gpus=Gpus(nvml, [("0", None)])))
    return registry


def _reaper() -> CollectorRegistry:
    """A reaper with the duties of every wing, and a job in each state."""
    registry = CollectorRegistry()
    settings = Settings(serve_store="/nowhere", retention_days=1)
    with closing(Ledger("postgresql://nobody@127.0.0.1:1/none")) as ledger:
        reaper = Reaper(ledger, settings, Rounds(registry), delete=print)
        duties.table(reaper)
        reaper.at_end.close()
    states = ("loading", "ready", "draining", "lost")
    snapshot = LedgerSnapshot(
        [_job(status) for status in JobState],
        0,
        [{"pool": "p", **dict.fromkeys(POOL_GAUGES, 0)}],
        [{"pool": "p", "state": state, "workers": 1} for state in states],
        0.0,
    )
    registry.register(LedgerGauges(lambda: snapshot, 60))
    return registry


def _job(status: JobState) -> Mapping[str, object]:
    counts = [*(f"rows_{state}" for state in ROW_STATES)]
    counts += [f"batches_{state}" for state in BATCH_STATES]
    return {"job": 1, "name": "a", "pool": "p", "status": str(status), **dict.fromkeys(counts, 0)}
