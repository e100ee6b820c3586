"""What a metric is, and the live objects of prometheus_client that are made from one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric as Family


class Kind(StrEnum):
    """Prometheus's types that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


ANY: tuple[str, ...] = ()
"""A label whose values are not known beforehand."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` are their names with the values that each can have (ANY: open)."""

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """The name without `_total`, as prometheus_client and OpenMetrics keep it."""
        return self.name.removesuffix("_total")

    @property
    def series(self) -> tuple[str, ...]:
        """The names that an expression may use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    def empty(self) -> Family:
        """The family of the metric without samples, to add samples to."""
        return Family(self.family, self.help, self.kind.value)


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """A live counter."""
    assert metric.kind is Kind.COUNTER
    return Counter(metric.name, metric.help, tuple(metric.labels), registry=registry)


def gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    """A live gauge; of several processes, the last one that set it counts."""
    assert metric.kind is Kind.GAUGE
    return Gauge(
        metric.name,
        metric.help,
        tuple(metric.labels),
        registry=registry,
        multiprocess_mode="mostrecent",
    )


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """A live histogram."""
    assert metric.kind is Kind.HISTOGRAM
    return Histogram(
        metric.name,
        metric.help,
        tuple(metric.labels),
        registry=registry,
        buckets=metric.buckets,
    )
