"""The recorder of one child, with the subscribers that the child's command line asks for."""

import threading
from pathlib import Path

from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.telemetry.steps import Step, StepFile
from nightshift.worker.telemetry.counts import Counts
from nightshift.worker.telemetry.engine_steps import ChildSteps
from nightshift.worker.telemetry.log_lines import LogLines
from nightshift.worker.telemetry.recorder import Recorder, Subscriber
from nightshift.worker.telemetry.report import ProfileFile
from nightshift.worker.telemetry.utilization import Utilization
from nightshift.worker.telemetry.waits import Waits


class ChildTelemetry:
    """The recorder of one child. Time is measured only for a profile or for metrics."""

    def __init__(
        self, child: Child, engine: str, concurrency: int, profile: str | None, metrics: str | None
    ) -> None:
        """`profile` is the file of the times, `metrics` the folder of the counts."""
        self._outputs: list[ProfileFile | Counts] = []
        self._ended = threading.Event()
        path = None if profile is None else Path(profile)
        self._steps = StepFile(path, {"supervisor": child.supervisor, "worker_id": child.id})
        self.waits = Waits()
        subscribers: list[Subscriber] = [LogLines(), self.waits]
        if path is not None or metrics is not None:
            utilization = Utilization(concurrency)
            subscribers.append(utilization)
            if path is not None:
                file = ProfileFile(path, utilization, child.id, child.supervisor)
                subscribers.append(ChildSteps(self._steps))
                self._outputs.append(file)
            if metrics is not None:
                counts = Counts.in_folder(metrics, utilization, child.pool, engine, child.slot)
                if counts is not None:
                    subscribers.append(counts)
                    self._outputs.append(counts)
        self.recorder = Recorder(*subscribers)

    def start(self) -> None:
        """Updates each output from now on, in a thread of its own."""
        for output in self._outputs:
            name = type(output).__name__
            threading.Thread(target=self._keep, args=(output,), name=name, daemon=True).start()

    def finish(self) -> None:
        """Brings each output up to date for the last time."""
        self._ended.set()
        self._steps.note(Step.CLOSED)
        for output in self._outputs:
            output.update()

    def _keep(self, output: ProfileFile | Counts) -> None:
        while not self._ended.wait(output.every_seconds):
            output.update()
