"""A function's process as the child sees it: started, called, watched, and ended when it must be."""

import math
import mmap
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from nightshift.common.errors import (
    EngineDead,
    EngineLoadFailed,
    EngineNotHere,
    LoadUnexplained,
    MachineCannotLoad,
    Permanent,
    Retryable,
)
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.public_text import marked, public
from nightshift.common.text import counted
from nightshift.worker.engines.function.answers import Found, packed, unpacked
from nightshift.worker.engines.function.code import digests
from nightshift.worker.engines.function.host import Channel

HOST = Path(__file__).with_name("host.py")

LOOK_SECONDS = 0.1
"""Pause between two looks at the process: how late a call that takes too long is seen."""

LONGEST_LOOK_SECONDS = 1.0
"""What a look counts at most: more has passed only where this process was frozen or kept waiting."""

UNWANTED_SECONDS = 1.0
"""A call that nobody wants any more has so long to end by itself: another process may take minutes to
start."""

END_SECONDS = 1.0
"""A process whose connection ended has so long to say how it ended."""


class HostDied(Exception):
    """The process ended during a call; the message says how.

    `was_late` is True where the call took too long. Of any other end an earlier call may be the
    cause, as of a leak, or somebody else.
    """

    def __init__(self, message: str, *, was_late: bool = False) -> None:
        super().__init__(message)
        self.was_late = was_late


class Host(Protocol):
    """Calls a function. One thread at a time may use it, except for `close`."""

    row_seconds: float
    """What the function took for a row in the last call; infinite before the first."""

    code: Mapping[str, str]
    """The function's files as they were loaded: the SHA-256 of each, by its path below their folder."""

    @property
    def is_over(self) -> bool:
        """True when no further call can be made."""

    def call(
        self, rows: pa.Table, sizes: Sequence[int], seconds: float, unwanted: Callable[[], bool]
    ) -> list[Found]:
        """Calls the function with the first `sizes[0]` of the rows, then with the next, and so on.

        HostDied when the process ended before it replied, took more than `seconds` in all, or was
        ended since the calls became `unwanted`.
        """

    def close(self) -> None:
        """Ends it, at once and with everything that it started."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a function's process is made of: the callable, where it is, and what it gets.

    `memory_bytes` is the resident size at which the process is ended, None for no limit.
    """

    callable: str
    args: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    log_level: str = "info"


def _wanted() -> bool:
    return False


class HostProcess:
    """A process that has loaded the function, in a group of its own.

    EngineLoadFailed when the function cannot be loaded, or not within `seconds`.
    """

    def __init__(self, setup: Setup, seconds: float = math.inf) -> None:
        self.row_seconds = math.inf
        self.code: Mapping[str, str] = {}
        self._setup = setup
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._fault: str | None = None
        self._was_late = False
        self._looked_at = time.monotonic()
        self._seconds = self._left = math.inf
        self._unwanted: Callable[[], bool] = _wanted
        self._unwanted_seconds = 0.0
        self._end, theirs = socket.socketpair()
        with theirs:
            try:
                self._group = ProcessGroup.start(
                    [sys.executable, "-P", str(HOST), str(theirs.fileno())],
                    env=setup.environment,
                    pass_fds=[theirs.fileno()],
                )
            except Permanent as error:
                self._end.close()
                raise MachineCannotLoad(marked(error)) from error
        self._channel = Channel(self._end)
        threading.Thread(target=self._watch, name="function-watch", daemon=True).start()
        self._load(seconds)

    @property
    def is_over(self) -> bool:
        """True once the process was ended, or ended by itself."""
        return self._over.is_set()

    def call(
        self, rows: pa.Table, sizes: Sequence[int], seconds: float, unwanted: Callable[[], bool]
    ) -> list[Found]:
        """Like Host.call. EngineDead when the kernel does not let the process go."""
        head, streams = self._ask({"calls": list(sizes)}, packed(rows), seconds, unwanted)
        try:
            found = unpacked(head, streams, sizes)
            self.row_seconds = float(head["seconds"]) / max(1, len(rows))
        except Exception as error:  # the function shares the process that wrote this
            fault = f"its reply cannot be read: {type(error).__name__}: {error}"
            raise HostDied(self._ended_by(fault)) from error
        # The memory limit is checked here, between two calls. A process that kept too much ends now, so no
        # later call fails because of it.
        if (too_large := self._too_large()) is not None:
            self._ended_by(too_large)
        return found

    def close(self) -> None:
        """Like Host.close."""
        with suppress(EngineDead):
            self._ended_by("it was closed")
        self._channel.close()

    def _load(self, seconds: float) -> None:
        setup = self._setup
        told = {
            "callable": setup.callable,
            "args": dict(setup.args),
            "folders": list(setup.folders),
            "log_level": setup.log_level,
        }
        try:
            head, _ = self._ask(told, b"", seconds)
        except HostDied as died:
            self.close()
            message = f"{setup.callable!r} cannot be loaded in its process: {died}"
            raise LoadUnexplained(message) from died
        if head["problem"] is not None:
            self.close()
            if any("builtins.ModuleNotFoundError" in names for names in head["causes"][:1]):
                raise EngineNotHere(public(head["problem"]))
            raise EngineLoadFailed(public(head["problem"]), head["causes"])
        # A function may lie elsewhere, on PYTHONPATH or installed: then its own package counts.
        self.code = digests(head["files"], setup.folders) or digests(head["own"], [head["root"]])

    def _ask(
        self,
        head: Mapping[str, Any],
        streams: pa.Buffer | bytes,
        seconds: float,
        unwanted: Callable[[], bool] = _wanted,
    ) -> tuple[dict[str, Any], bytes]:
        with self._changing:
            self._looked_at, self._seconds, self._left = time.monotonic(), seconds, seconds
            self._unwanted, self._unwanted_seconds = unwanted, 0.0
        try:
            self._channel.send(head, streams)
            return self._channel.receive()
        except Exception as error:
            fault = self._ended_by(None)
            raise HostDied(fault, was_late=self._was_late) from error
        finally:
            with self._changing:
                self._left, self._unwanted = math.inf, _wanted

    def _watch(self) -> None:
        """Ends the process when a call takes too long or is wanted no more, or when its memory is too
        large, and sees its end.
        """
        while not self._over.wait(LOOK_SECONDS):
            with self._changing:
                fault = self._look()
                if fault is not None and not self.is_over:
                    with suppress(EngineDead):  # the call says so
                        self._kill(fault)

    def _look(self) -> str | None:
        """Why the process must end now; None while it may go on."""
        now = time.monotonic()
        passed = min(now - self._looked_at, LONGEST_LOOK_SECONDS)
        self._left -= passed
        self._looked_at = now
        if self._unwanted():
            self._unwanted_seconds += passed
            if self._unwanted_seconds > UNWANTED_SECONDS:
                return "its call is not wanted any more"
        if self._left < 0:
            self._was_late = True
            return f"it took more than {self._seconds:g} s"
        try:
            code = self._group.poll()
        except Retryable as error:
            return str(error)
        return self._too_large() if code is None else _cause(code)

    def _too_large(self) -> str | None:
        limit = self._setup.memory_bytes
        if limit is None or (size := resident_bytes(self._group.pid)) <= limit:
            return None
        return f"its resident memory was {counted(size, 'byte')}, and the limit is {limit:,}"

    def _ended_by(self, fault: str | None) -> str:
        """Ends the process unless it is over; why it ended."""
        with self._changing:
            if not self.is_over:
                self._kill(fault)
            if self._fault is None:
                raise EngineDead(f"the kernel does not let process {self._group.pid} go")
            return self._fault

    def _kill(self, fault: str | None) -> None:
        """Ends the group; the caller has the lock. Without a fault the process is about to say it.

        EngineDead when the kernel keeps a process.
        """
        try:
            if fault is None:
                try:
                    fault = _cause(self._group.wait(END_SECONDS))
                except TimeoutError:
                    fault = "it closed its connection"
            self._group.kill()
            self._fault = fault
        except Retryable as error:
            raise EngineDead(marked(error)) from error
        finally:
            self._over.set()
            with suppress(OSError):  # a call that waits for this process waits no longer
                self._end.shutdown(socket.SHUT_RDWR)


def resident_bytes(pid: int) -> int:
    """Memory of a process that lies in RAM; 0 where it is gone. Address space says nothing: CUDA
    reserves much more than it uses.
    """
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0


def _cause(code: int) -> str:
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}"
