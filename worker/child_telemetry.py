"""What a child tells: its recorder, with the subscribers that its supervisor asked for."""

import threading
from pathlib import Path

from nightshift.worker.engines.protocol import Engine
from nightshift.worker.supervisor.children import ChildConfig
from nightshift.worker.telemetry.counts import Counts
from nightshift.worker.telemetry.log_lines import LogLines
from nightshift.worker.telemetry.recorder import Recorder, Subscriber
from nightshift.worker.telemetry.report import ProfileFile
from nightshift.worker.telemetry.utilization import Utilization


class ChildTelemetry:
    """The recorder of one child. Time is measured only for a profile or for metrics."""

    def __init__(self, config: ChildConfig, engine: Engine) -> None:
        self._outputs: list[ProfileFile | Counts] = []
        self._ended = threading.Event()
        subscribers: list[Subscriber] = [LogLines()]
        if config.profile is not None or config.metrics is not None:
            utilization = Utilization(engine.concurrency)
            subscribers.append(utilization)
            if config.profile is not None:
                file = ProfileFile(Path(config.profile), utilization, config.id, config.supervisor)
                self._outputs.append(file)
            if config.metrics is not None:
                counts = Counts.in_folder(
                    config.metrics, utilization, config.pool, engine.name, config.slot
                )
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
        for output in self._outputs:
            output.update()

    def _keep(self, output: ProfileFile | Counts) -> None:
        while not self._ended.wait(output.every_seconds):
            output.update()
