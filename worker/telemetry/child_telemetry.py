"""The recorder of one child, with the subscribers that the child's command line asks for."""

import threading
from pathlib import Path

from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.telemetry.steps import Step, StepFile
from nightshift.worker.telemetry.counts import Counts
from nightshift.worker.telemetry.engine_steps import ChildSteps
from nightshift.worker.telemetry.log_lines import LogLines
from nightshift.worker.telemetry.recorder import Recorder, Subscriber
from nightshift.worker.telemetry.utilization import Utilization
from nightshift.worker.telemetry.waits import Waits


class ChildTelemetry:
    """The recorder of one child. Time is measured only for metrics."""

    def __init__(
        self, child: Child, engine: str, concurrency: int, profile: str | None, metrics: str | None
    ) -> None:
        """`profile` is the file of the steps, `metrics` the folder of the counts."""
        self._counts: Counts | None = None
        self._ended = threading.Event()
        path = None if profile is None else Path(profile)
        self._steps = StepFile(path, {"supervisor": child.supervisor, "worker_id": child.id})
        self.waits = Waits()
        subscribers: list[Subscriber] = [LogLines(), self.waits]
        if path is not None:
            subscribers.append(ChildSteps(self._steps))
        if metrics is not None:
            utilization = Utilization(concurrency)
            self._counts = Counts.in_folder(metrics, utilization, child.pool, engine, child.slot)
            if self._counts is not None:
                subscribers += [utilization, self._counts]
        self.recorder = Recorder(*subscribers)

    def start(self) -> None:
        """Updates the counts from now on, in a thread of its own."""
        if self._counts is not None:
            keep = threading.Thread(
                target=self._keep, args=(self._counts,), name="Counts", daemon=True
            )
            keep.start()

    def finish(self) -> None:
        """Brings the counts up to date for the last time."""
        self._ended.set()
        self._steps.note(Step.CLOSED)
        if self._counts is not None:
            self._counts.update()

    def _keep(self, counts: Counts) -> None:
        while not self._ended.wait(counts.every_seconds):
            counts.update()
