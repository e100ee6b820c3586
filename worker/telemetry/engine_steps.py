"""The steps of a child and of its engine's processes, for the file of `--profile`."""

import logging
import multiprocessing
from typing import Any

from nightshift.common.telemetry.steps import Step, StepFile
from nightshift.worker.telemetry.recorder import EngineLoaded, Subscriber

VLLM_SAYS = {
    "Starting to load model": Step.LOAD,
    "Loading weights took": Step.WEIGHTS,
    "init engine (": Step.WARM_UP,
}
"""How lines of vLLM's log begin (0.32). A step whose line has other words is left out."""


def note_process(file: StepFile) -> None:
    """Notes that this process began, a child or a process of its engine, and what vLLM logs in it."""
    name = multiprocessing.current_process().name
    # The parent of a spawned process is not known yet; its name is.
    if name == "MainProcess":
        file.note(Step.CHILD)
    else:
        file.note(Step.PROCESS, name=name)
    make = logging.getLogRecordFactory()

    def noted(
        logger: str | None,
        level: int,
        path: str,
        number: int,
        message: object,
        *rest: Any,
        **more: Any,
    ) -> logging.LogRecord:
        # Who copies a record (logging.makeLogRecord, structlog) makes one without a name first.
        if (logger or "").startswith("vllm."):
            for words, step in VLLM_SAYS.items():
                if str(message).startswith(words):
                    file.note(step)
        return make(logger, level, path, number, message, *rest, **more)

    logging.setLogRecordFactory(noted)


class ChildSteps(Subscriber):
    """Notes when the engine is ready, and when the first row has left the engine."""

    def __init__(self, file: StepFile) -> None:
        self._file = file
        self._answered = False

    def engine_loaded(self, loaded: EngineLoaded) -> None:
        """The engine is ready."""
        self._file.note(Step.READY)

    def rows_left(self, rows: int = 1) -> None:
        """Counts the first time only."""
        if not self._answered:
            self._answered = True
            self._file.note(Step.FIRST_ROW)
