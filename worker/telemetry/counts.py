"""What a child counts for Prometheus; NO_TALLY where nobody asked.

The counts lie in files of prometheus_client's multiprocess mode (PROMETHEUS_MULTIPROC_DIR), which
the supervisor reads: whatever ends this child, what it counted stays.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

from nightshift.common.telemetry import metrics
from nightshift.worker.telemetry.utilization import Profile, Stage

log = structlog.get_logger(__name__)

ROOM_BYTES = 2**20
"""Must be free where a child counts: its files are written through a memory map, and a page for
which there is no room ends the process by SIGBUS.
"""

SHOW_SECONDS = 1.0
"""Pause between two looks at the profile; a killed child loses what came after the last."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one commit brought; `seconds` since its claim, `whole` unless the rest was split off."""

    rows: int
    rows_failed: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    whole: bool


class Tally:
    """The counts of one child, from all of its threads."""

    def __init__(
        self, pool: str, engine: str, slot: int, registry: CollectorRegistry | None = None
    ) -> None:
        registry = registry or CollectorRegistry()
        each = {"pool": pool, "engine": engine}
        here = {**each, "slot": str(slot)}
        rows = metrics.counter(metrics.ROWS, registry)
        self._rows = rows.labels(**each, outcome="ok")
        self._rows_failed = rows.labels(**each, outcome="failed")
        tokens = metrics.counter(metrics.TOKENS, registry)
        self._prompt_tokens = tokens.labels(**each, kind="prompt")
        self._output_tokens = tokens.labels(**each, kind="output")
        batches = metrics.counter(metrics.BATCHES, registry)
        self._batches = {
            outcome: batches.labels(**each, outcome=outcome)
            for outcome in metrics.BATCHES.labels["outcome"]
        }
        self._batch_seconds = metrics.histogram(metrics.BATCH_SECONDS, registry).labels(**each)
        renewals = metrics.counter(metrics.LEASE_RENEWALS, registry)
        self._renewals = {
            outcome: renewals.labels(pool=pool, outcome=outcome)
            for outcome in metrics.LEASE_RENEWALS.labels["outcome"]
        }
        self._loads = metrics.counter(metrics.ENGINE_LOADS, registry).labels(
            pool=pool, outcome="ready"
        )
        stages = metrics.counter(metrics.STAGE_SECONDS, registry)
        states = metrics.counter(metrics.ENGINE_SECONDS, registry)
        self._seconds = {
            **{stage.value: stages.labels(**each, stage=stage.value) for stage in Stage},
            **{
                state: states.labels(**here, state=state)
                for state in metrics.ENGINE_SECONDS.labels["state"]
            },
        }
        self._shown = dict.fromkeys(self._seconds, 0.0)
        self._engine_rows = metrics.gauge(metrics.ENGINE_ROWS, registry).labels(**here)
        self._concurrency = metrics.gauge(metrics.ENGINE_CONCURRENCY, registry).labels(**here)
        self._load_seconds = metrics.gauge(metrics.ENGINE_LOAD_SECONDS, registry).labels(**here)
        self._showing = threading.Lock()

    def loaded(self, seconds: float, concurrency: int) -> None:
        """The engine is ready."""
        self._loads.inc()
        self._load_seconds.set(seconds)
        self._concurrency.set(concurrency)

    def committed(self, ran: Ran) -> None:
        """A batch is committed, whole or in part."""
        self._rows.inc(ran.rows - ran.rows_failed)
        self._rows_failed.inc(ran.rows_failed)
        self._prompt_tokens.inc(ran.prompt_tokens)
        self._output_tokens.inc(ran.output_tokens)
        self._batches["done" if ran.whole else "split"].inc()
        self._batch_seconds.observe(ran.seconds)

    def ended(self, outcome: str) -> None:
        """A lease ended without a commit: released, failed or lost."""
        self._batches[outcome].inc()

    def renewed(self, held: int, lost: int) -> None:
        """A heartbeat was answered."""
        self._renewals["held"].inc(held)
        self._renewals["lost"].inc(lost)

    def unanswered(self) -> None:
        """A heartbeat was not."""
        self._renewals["failed"].inc()

    def follow(self, profile: Profile) -> None:
        """Shows where the time goes from now on, in a thread of its own."""
        paused = threading.Event()

        def show_on() -> None:
            while not paused.wait(SHOW_SECONDS):
                self.show(profile)

        threading.Thread(target=show_on, name="tally", daemon=True).start()

    def show(self, profile: Profile) -> None:
        """Brings what the profile knows up to date."""
        with self._showing:
            engine = profile.engine.sums()
            spent = {stage.value: seconds for stage, seconds in profile.seconds().items()}
            self._advance(
                {
                    **spent,
                    "full": engine.seconds - engine.fewer_seconds,
                    "partial": engine.fewer_seconds - engine.empty_seconds,
                    "empty": engine.empty_seconds,
                    "no_work": engine.no_work_seconds,
                }
            )
            self._engine_rows.set(profile.engine.rows)

    def _advance(self, now: Mapping[str, float]) -> None:
        for name, seconds in now.items():
            # A difference of sums may lose its last bit; a counter never falls.
            self._seconds[name].inc(max(0.0, seconds - self._shown[name]))
            self._shown[name] = max(seconds, self._shown[name])


class _NoTally(Tally):
    def __init__(self) -> None: ...
    def loaded(self, seconds: float, concurrency: int) -> None: ...
    def committed(self, ran: Ran) -> None: ...
    def ended(self, outcome: str) -> None: ...
    def renewed(self, held: int, lost: int) -> None: ...
    def unanswered(self) -> None: ...
    def follow(self, profile: Profile) -> None: ...
    def show(self, profile: Profile) -> None: ...


NO_TALLY: Tally = _NoTally()
"""Keeps nothing: what a child has whose metrics nobody asked for."""


def tally_in(folder: str | None, pool: str, engine: str, slot: int) -> Tally:
    """The counts of a child that was told to count in `folder`; none where there is no room."""
    if folder is None:
        return NO_TALLY
    if not has_room(folder):
        log.warning("no_room_to_count", folder=folder, needed_bytes=ROOM_BYTES)
        return NO_TALLY
    return Tally(pool, engine, slot)


def has_room(folder: str | os.PathLike[str]) -> bool:
    """Whether a child can count there."""
    try:
        free = os.statvfs(folder)
    except OSError:
        return False
    # A file system without a size of its own, as a tmpfs with size=0, has 0 blocks.
    return free.f_blocks == 0 or free.f_bavail * free.f_frsize >= ROOM_BYTES
