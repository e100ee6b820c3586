"""The callable of a function job, imported in a process of its own before any server starts."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import Settings, function_environment
from nightshift.common.spec import FunctionEngineSpec
from nightshift.producer.local import import_callable

START_SECONDS = 30.0
"""A start of the process that takes longer is announced to the user."""

END_SECONDS = 5.0
"""A process whose connection ended has so long to say how it ended."""

MOMENT = 0.001
"""A timeout of 0 would be none; what has arrived is read all the same."""

MOST_BYTES = 65_536
"""What is read at once."""


class CallableCheck:
    """An import that is under way; `seconds` count from its beginning, once the process has started. Leaving the
    context ends the process, with what it started.
    """

    def __init__(self, engine: FunctionEngineSpec, settings: Settings, seconds: float) -> None:
        """`settings` are those of the worker that will call the function."""
        self._module = engine.module
        setup = {
            "callable": engine.callable,
            "args": engine.args,
            "folders": settings.callable_paths,
        }
        self._end, theirs = socket.socketpair()
        with theirs:
            try:
                self._group = ProcessGroup.start(
                    [sys.executable, "-P", import_callable.__file__, str(theirs.fileno())],
                    env=function_environment(settings),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                self._end.close()
                raise
        # The process reads at once, and ends where this one is gone.
        with suppress(OSError):
            self._end.sendall(json.dumps(setup).encode() + b"\n")
        self._seconds = seconds
        self._until = time.monotonic() + START_SECONDS
        self._said = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        with suppress(Retryable):  # the group ends with this process at the latest
            self._group.kill()

    def result(self, on_wait: Callable[[str], None]) -> None:
        """Wait for the import, however long it takes: a module that fills a cache or a table at import would leave
        half of it if its process were killed, and the worker would use that. `on_wait` gets one line for the user
        once the import has taken long. BadInput says what is wrong.
        """
        try:
            began: float = self._line(self._until)["began"]
        except TimeoutError:
            on_wait(
                f"Python takes more than {START_SECONDS:g} s to start for {self._module}: waiting for it"
            )
            began = self._line(None)["began"]
        try:
            problem: str | None = self._line(began + self._seconds)["problem"]
        except TimeoutError:
            on_wait(f"{self._module} takes more than {self._seconds:g} s to import: waiting for it")
            problem = self._line(None)["problem"]
        if problem is not None:
            raise BadInput(f"engine.callable: {problem}")

    def _line(self, until: float | None) -> Any:
        """The next object that the process writes. TimeoutError if none is there at `until`, BadInput if the
        process has ended.
        """
        while b"\n" not in self._said:
            self._end.settimeout(None if until is None else max(MOMENT, until - time.monotonic()))
            try:
                piece = self._end.recv(MOST_BYTES)
            except TimeoutError:
                raise
            except OSError:
                piece = b""
            if not piece:
                raise BadInput(f"engine.callable: {self._ended()}")
            self._said += piece
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def _ended(self) -> str:
        how = "without a word"
        with suppress(TimeoutError):
            code = self._group.wait(END_SECONDS)
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the process that imported {self._module} ended {how}"
