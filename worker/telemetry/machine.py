"""What one worker machine exports: the counts of its children, living and ended, slots and GPUs.

Each child writes into a folder of its own. When a child ends, its counts are added to the totals
of the supervisor, and its folder is removed. A scrape reads files: neither scrape nor supervisor
waits for the other.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from nightshift.common.errors import BadInput
from nightshift.common.own_folder import own_folder
from nightshift.common.settings import Settings, named_gpus
from nightshift.common.system_errors import told
from nightshift.common.telemetry import listener
from nightshift.common.telemetry.run_state import VARIABLE
from nightshift.worker.telemetry.counts import ROOM_BYTES, has_room
from nightshift.worker.telemetry.gpus import NO_GPUS, Gpus
from nightshift.worker.telemetry.metrics import (
    ENGINE_CONCURRENCY,
    LOAD_OUTCOMES,
    RENEWAL_OUTCOMES,
    WorkerMetrics,
    by_value,
)

log = structlog.get_logger(__name__)

FOLDERS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client writes in a child; the library reads the variable at its import."""

CHILD_STATES = ("loading", "ready", "draining", "free", "lost")
EXIT_REASONS = ("asked", "died", "load_failed", "hung")

GPU_METRICS = {
    "memory_used": (
        "nightshift_gpu_memory_used_bytes",
        "Memory of the GPU in use, by whatever process. Absent without a GPU and NVML.",
    ),
    "memory_total": (
        "nightshift_gpu_memory_total_bytes",
        "Memory of the GPU. Absent without a GPU and NVML.",
    ),
    "busy": (
        "nightshift_gpu_utilization_ratio",
        "Share of NVML's last sample period (up to 1 s) in which a kernel ran, 0 to 1. Absent "
        "without a GPU and NVML.",
    ),
}
"""Name and meaning of the metric of each figure of a GPU."""

Sample = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class SampleTotals:
    """Samples by family; samples of one name and labels from several sources are added up."""

    families: dict[str, tuple[Family, dict[Sample, float]]] = field(default_factory=dict)

    def add_all(self, families: Iterable[Family], **labels: str) -> None:
        """Adds the samples of a child or of the supervisor. Families of other libraries, as vLLM, get `labels` that tell
        children apart.
        """
        for family in families:
            ours = family.name.startswith("nightshift_")
            for sample in family.samples:
                named = sample.labels if ours else {**sample.labels, **labels}
                self._add(family, sample.name, named, sample.value)

    def copy(self) -> "SampleTotals":
        """A copy that later additions do not change."""
        return SampleTotals(
            {name: (family, dict(values)) for name, (family, values) in self.families.items()}
        )

    def samples(self) -> Iterator[Family]:
        """Every family with its samples."""
        for known, values in self.families.values():
            family = Family(known.name, known.documentation, known.type)
            for (sample, labels), value in values.items():
                family.add_sample(sample, dict(labels), value)
            yield family

    def _add(self, family: Family, sample: str, labels: Mapping[str, str], value: float) -> None:
        known, values = self.families.setdefault(family.name, (family, {}))
        if known.type == family.type:  # of two metrics with one name, the first is exported
            key = (sample, tuple(sorted(labels.items())))
            values[key] = values.get(key, 0.0) + value


@dataclass(slots=True)
class ChildFolder:
    """Where a living child counts, and in which slot it is."""

    path: Path
    slot: int
    _last: dict[str, Family] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> list[Family]:
        """The child's counts so far; files that cannot be read now count as when last read."""
        with self._lock:
            try:
                files = [str(file) for file in self.path.glob("*.db")]
                read = list(MultiProcessCollector.merge(files))
            except FileNotFoundError:
                read = []  # the child ended meanwhile, or somebody removes files
            except Exception as error:
                log.warning("child_metrics_unreadable", folder=str(self.path), error=str(error))
                read = []
            self._last |= {family.name: family for family in read}
            return list(self._last.values())


class MachineMetrics(Collector):
    """The metrics of one supervisor; `folder` is its own. Without one no child counts."""

    def __init__(self, pool: str, folder: Path | None = None, gpus: Gpus = NO_GPUS) -> None:
        self._pool = pool
        self._folder = folder
        self._gpus = gpus
        self._totals = SampleTotals()
        self._children: dict[str, ChildFolder] = {}
        self._refused = False
        self._lock = threading.Lock()
        self._slots: Callable[[], Sequence[str]] = tuple
        self._own = CollectorRegistry()
        self._counts = WorkerMetrics(self._own)
        self._exits = Counter(
            "nightshift_child_exits_total",
            "Children that ended: as asked, by themselves, because their engine could not be loaded, or "
            "since they hung.",
            ("pool", "reason"),
            registry=self._own,
        )
        here = {"pool": pool}
        by_value(self._exits, here, "reason", EXIT_REASONS)
        by_value(self._counts.engine_loads, here, "outcome", LOAD_OUTCOMES)
        by_value(self._counts.lease_renewals, here, "outcome", RENEWAL_OUTCOMES)

    def watch(self, slots: Callable[[], Sequence[str]]) -> None:
        """Asks for the state of each slot's child at each scrape; in any thread."""
        self._slots = slots

    def child_starts(self, worker_id: str, slot: int) -> dict[str, str]:
        """Makes the folder for a child's counts. Returns the variables for the child's environment;
        none when the child cannot count, since work goes on without metrics.
        """
        if self._folder is None:
            return {}
        folder = self._folder / worker_id
        try:
            # The parent as well: a cleaner of /tmp may have removed it.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            why = None if has_room(folder) else f"less than {ROOM_BYTES} bytes are free"
        except OSError as error:
            why = told(error)
        if why is not None:
            if not self._refused:
                log.warning("child_cannot_count", folder=str(folder), error=why)
            self._refused = True
            shutil.rmtree(folder, ignore_errors=True)
            return {}
        self._refused = False
        with self._lock:
            self._children[worker_id] = ChildFolder(folder, slot)
        return {FOLDERS_VARIABLE: str(folder)}

    def child_ended(self, worker_id: str, reason: str) -> str | None:
        """Keeps the counts of a child that is gone; the name of its engine if that was ready."""
        with self._lock:
            folder = self._children.get(worker_id)
        counted = [] if folder is None else folder.read()
        lasting = [family for family in counted if family.type != "gauge"]
        with self._lock:
            if folder is not None:
                self._totals.add_all(lasting, pool=self._pool, slot=str(folder.slot))
                del self._children[worker_id]
        self._exits.labels(self._pool, reason).inc()
        if reason == "load_failed":
            self._counts.engine_loads.labels(self._pool, "failed").inc()
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        return _engine_of(counted)

    def reported(
        self, engine: str | None, freed: int, died: str | None, *, load_failed: bool
    ) -> None:
        """The end of a child was reported: `freed` leases were released, a load may have failed."""
        if freed:
            outcome = "released" if died is None else "died"
            self._counts.batches.labels(self._pool, engine or "", outcome).inc(freed)
        if load_failed:
            self._counts.engine_loads.labels(self._pool, "failed").inc()

    def collect(self) -> Iterable[Family]:
        """Everything, for one scrape."""
        yield from self._counted().samples()
        yield self._children_by_state()
        yield from self._of_gpus()
        yield listener.build_info()

    def _children_by_state(self) -> Family:
        family = GaugeMetricFamily(
            "nightshift_children",
            "Slots of this machine by the state of their child; free: no child; lost: a killed child that the "
            "kernel does not let go.",
            labels=("pool", "state"),
        )
        slots = self._slots()
        for state in CHILD_STATES:
            family.add_metric((self._pool, state), slots.count(state))
        return family

    def _of_gpus(self) -> Iterable[Family]:
        families = {
            figure: GaugeMetricFamily(name, meaning, labels=("gpu",))
            for figure, (name, meaning) in GPU_METRICS.items()
        }
        for figure, gpu, value in self._gpus.read():
            families[figure].add_metric((gpu,), value)
        return families.values()

    def _counted(self) -> SampleTotals:
        """What ended and living children counted, each exactly once."""
        with self._lock:
            children = dict(self._children)
        counted = {worker_id: child.read() for worker_id, child in children.items()}
        with self._lock:  # the totals have the last counts of children that ended since then
            totals, living = self._totals.copy(), set(self._children)
        totals.add_all(self._own.collect())
        for worker_id in living & counted.keys():
            slot = str(children[worker_id].slot)
            totals.add_all(counted[worker_id], pool=self._pool, slot=slot)
        return totals


@contextmanager
def served(settings: Settings, pool: str) -> Iterator[MachineMetrics]:
    """The metrics of a supervisor and their listener, if the settings ask for one."""
    if settings.metrics_port is None:
        yield MachineMetrics(pool)
        return
    with _own_folder(settings.run_dir) as folder:
        found = MachineMetrics(pool, folder, Gpus.find(named_gpus()))
        registry = CollectorRegistry()
        registry.register(found)
        with listener.serve(settings, registry):
            yield found


@contextmanager
def _own_folder(run_dir: Path | None) -> Iterator[Path]:
    """A folder for as long as this process lives, see `own_folder`. BadInput when the folder cannot be made."""
    parent = None if run_dir is None else run_dir.absolute() / "metrics"
    with ExitStack() as stack:
        try:
            if run_dir is not None and parent is not None:
                run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                parent.mkdir(mode=0o700, exist_ok=True)
            folder = stack.enter_context(own_folder("nightshift-metrics-", parent))
        except OSError as error:
            place = "the folder for temporary files" if run_dir is None else run_dir
            raise BadInput(f"{VARIABLE}: {place} cannot be used: {told(error)}") from error
        yield folder


def _engine_of(families: Iterable[Family]) -> str | None:
    return next(
        (
            sample.labels["engine"]
            for family in families
            if family.name == ENGINE_CONCURRENCY
            for sample in family.samples
        ),
        None,
    )
