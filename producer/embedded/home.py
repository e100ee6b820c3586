"""The home folder of a `nightshift run`: its lock, and the small files that are kept in it.

    home/lock               held while a `nightshift run` owns the folder
    home/holder             who holds the lock, for those who say what helps; JSON
    home/ending             there while the holder drains its worker: the next one waits for it
    home/readers            locked, shared, by commands that read from the holder's Postgres
    home/processes/         records of our process groups, for the boot after a crash
    home/postgres/          data/ and password; renamed into place whole
    home/postgres.port      chosen once, kept while no other process takes it; so is redis.port
    home/postgres.log  redis.log  redis.conf  redis.password

Servers are started under `home_lock`. So a process or a file that looks like a leftover of the folder is one,
and is ended or removed.
"""

import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightshift.common.errors import BadInput
from nightshift.common.system_errors import told

if TYPE_CHECKING:
    from tenacity import RetryCallState

STOP_SECONDS = 10.0
"""Longest wait for a server that is being stopped."""

READ_SECONDS = 20.0
LOOK_ON_SECONDS = 2.0
"""Longest waits of a command that stops its server, for those that read from it: of one that has started it to
read, and of a `nightshift run` that has ended, which somebody may watch for longer."""

_LOCK_SECONDS = 5.0  # a holder that was just killed may still be on its way out
_ENDING_SECONDS = 120.0  # one that drains its worker takes longer, and is sure to end
_LOOK_SECONDS = 0.02

# Below Linux's range for outgoing connections, which could take our port by chance.
_PORTS = range(20_000, 32_768)


class HomeInUse(BadInput):
    """Another process holds the home folder."""


class Readers:
    """Commands that read from the server of another command: who stops a server waits for them.

    Where the folder or the disk has no room for the file of the lock, nobody waits for anybody.
    """

    def __init__(self, home: Path) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(home / "readers", os.O_RDWR | os.O_CREAT, 0o600)

    def join(self) -> None:
        """This command reads until `close`; waits while a server is being stopped, for STOP_SECONDS at most."""
        self._lock(fcntl.LOCK_SH, STOP_SECONDS)

    def wait(self, seconds: float) -> None:
        """Waits until no command reads, for `seconds` at most; nobody joins from then on until `close`."""
        self._lock(fcntl.LOCK_EX, seconds)

    def close(self) -> None:
        """Others may read, or wait, from now on; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, kind: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._descriptor is not None:
            try:
                return fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return None
                time.sleep(_LOOK_SECONDS)
        return None


@contextmanager
def home_lock(home: Path) -> Iterator[None]:
    """Makes this process the only owner of `home`, and ends what earlier owners left running.

    Raises HomeInUse when another process holds the folder for more than 5 seconds, 120 where it is
    ending; BadInput when the folder cannot be used; Retryable when a leftover process cannot be ended.
    """
    # Readers of the small files need neither this nor tenacity, whose import takes longer than reading them.
    from nightshift.common.processes.process_group import end_recorded

    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadInput(f"{home} cannot be the home folder: {told(error)}") from error
    try:
        _take(descriptor, home)
        for name in ("holder", "ending"):  # of one that was killed
            (home / name).unlink(missing_ok=True)
        end_recorded(home / "processes")
        kept_text(home / ".gitignore", lambda: "*\n")  # passwords lie here
        try:
            yield
        finally:
            (home / "holder").unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def say_holder(home: Path, facts: Mapping[str, object]) -> None:
    """Says to other commands what the holder of the lock works on; the words go with the lock."""
    write_whole(home / "holder", json.dumps(facts))


def holder(home: Path) -> dict[str, Any]:
    """What the holder of the lock has said of itself; empty where it said nothing, and without one."""
    try:
        found = json.loads((home / "holder").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _take(descriptor: int, home: Path) -> None:
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    def is_over(state: "RetryCallState") -> bool:
        return stop_after_delay(_lock_seconds(home))(state)

    lock = Retrying(
        stop=is_over,
        wait=wait_fixed(_LOOK_SECONDS),
        retry=retry_if_exception_type(BlockingIOError),
        reraise=True,
    )
    try:
        lock(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise HomeInUse(
            f"another {_command(home)} uses {home}; wait for it, or choose another folder with "
            "NIGHTSHIFT_HOME"
        ) from error


def _command(home: Path) -> str:
    works = holder(home).get("works")
    return {"serve": "`nightshift serve`", "pages": "`nightshift console`"}.get(
        str(works), "`nightshift run`"
    )


def _lock_seconds(home: Path) -> float:
    return _ENDING_SECONDS if (home / "ending").exists() else _LOCK_SECONDS


def kept_port(kept: Path) -> int:
    """The port of the last start if it is free, else a new one; it is kept in a file."""
    known = int(kept.read_text()) if kept.exists() else None
    if known is not None and is_free(known):
        return known
    chosen = next(port for port in random.sample(_PORTS, len(_PORTS)) if is_free(port))
    write_whole(kept, str(chosen))
    return chosen


def is_free(port: int) -> bool:
    """Whether a server can have this port of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as both servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def kept_text(path: Path, make: Callable[[], str]) -> str:
    """The text of a file, which `make` gives where there is none yet."""
    if not path.exists():
        write_whole(path, make())
    return path.read_text()


def write_whole(path: Path, text: str) -> None:
    """Writes a file that only we can read, whole or not at all."""
    part = path.with_name(path.name + ".new")
    with open(part, "w", opener=private) as file:
        file.write(text)
    sync(part)
    part.rename(path)


def private(path: str, flags: int) -> int:
    """Opener of a file that only we can read."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Writes a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
