"""Read the footers of foreign Parquet files in a process of its own first, whose death is an error message.

A footer that ends pyarrow's process in a way that `foreign_footer` does not know ends only the trial. Both processes
read the same bytes, never the file by its name, so a file that changes meanwhile gains nothing.
"""

import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nightshift.common.errors import StorageUnavailable
from nightshift.common.settings import trial_environment
from nightshift.common.system_errors import told

PROCESS = Path(__file__).with_name("trial_process.py")
"""The script of the process, which imports pyarrow."""

DONE = b"."
"""The answer of the process for each footer that did not end it."""

PROCESSES = 4
"""Most trials at once."""

SECONDS = 60.0
"""Longest time that one footer may take, with the start of the process."""


class TrialFailedError(Exception):
    """The process of a trial died or took too long; the message says which."""


class FooterTrial:
    """Processes that read footers; many threads may call `check`. They start at the first footer and end with this
    object or with this process.
    """

    def __init__(self, processes: int = PROCESSES, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        # None is a place for a process that has not started yet.
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(processes):
            self._idle.put(None)

    def check(self, file: bytes) -> None:
        """Read the footer of a file without row groups, `PAR1` to `PAR1`. Raises TrialFailedError, and
        StorageUnavailable if no process can be started.
        """
        process = self._idle.get()
        try:
            if process is not None:
                # An idle process may have been killed, for example for lack of memory: the footer is not to blame.
                with suppress(TrialFailedError):
                    _read(process, file, time.monotonic() + self._seconds)
                    return
                _end(process)
                process = None
            process = _start()
            _read(process, file, time.monotonic() + self._seconds)
        except BaseException:
            if process is not None:
                _end(process)
            process = None
            raise
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes; the next `check` starts new ones."""
        for process in [self._idle.get() for _ in range(self._idle.qsize())]:
            if process is not None:
                _end(process)
            self._idle.put(None)


_begun: list[FooterTrial] = []


@contextmanager
def begun() -> Iterator[None]:
    """Meanwhile this process reads no footer that a trial has not survived: for processes that many people share."""
    trial = FooterTrial()
    _begun.append(trial)
    try:
        yield
    finally:
        _begun.remove(trial)
        trial.close()


def try_footer(file: bytes) -> None:
    """`FooterTrial.check` while the process is `begun`; else nothing."""
    for trial in _begun[-1:]:
        trial.check(file)


def _start() -> subprocess.Popen[bytes]:
    try:
        return _started()
    except OSError as error:
        raise StorageUnavailable(
            f"no process can be started to read a footer: {told(error)}"
        ) from error


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - constants
        [sys.executable, "-P", str(PROCESS)],
        env={**trial_environment(), "ARROW_DEFAULT_MEMORY_POOL": "system"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent, with which the pipe ends
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _read(process: subprocess.Popen[bytes], file: bytes, until: float) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    # The process reads a whole footer before it works on it, so a write ends soon or with the process.
    writing = threading.Thread(target=_write, args=(process.stdin, file), daemon=True)
    writing.start()
    answers = select.poll()
    answers.register(process.stdout, select.POLLIN)
    if not answers.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TrialFailedError("it takes too long to read")
    if process.stdout.read(1) != DONE:
        code = process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise TrialFailedError(f"it ends the process that reads it, by {how}")
    writing.join()


def _write(pipe: IO[bytes], file: bytes) -> None:
    with suppress(OSError, ValueError):
        pipe.write(len(file).to_bytes(8, "little") + file)
        pipe.flush()
