"""The home folder of a `nightshift run`: its lock, and the small files that are kept in it.

    home/lock               shared by commands that use the servers, exclusive for who starts, stops or deletes
                            them (`HomeLock`)
    home/holder             which `run`, `serve` or `console` keeps the servers up, for those who say what helps; JSON
    home/ending             there while the holder drains its worker: the next one waits for it
    home/processes/         records of our process groups, for the boot after a crash
    home/postgres/          data/ and password; renamed into place whole
    home/postgres.port      chosen once, kept while no other process takes it; so is redis.port
    home/postgres.log  redis.log  redis.conf  redis.password

Servers are started by the owner of the folder alone. So a process or a file that looks like a leftover of the folder
is one, and is ended or removed.
"""

import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.system_errors import told

T = TypeVar("T")

READ_SECONDS = 20.0
LOOK_ON_SECONDS = 2.0
"""Longest waits of a command that stops the servers, for others that use them: of a command that has started them
to read, and of a `nightshift run` that has ended, which somebody may watch for longer."""

_LOCK_SECONDS = 5.0  # a holder that was just killed may still be on its way out
_ENDING_SECONDS = 120.0  # one that drains its worker takes longer, and is sure to end
_START_SECONDS = 120.0  # servers that are started, and may have much to recover
_COMMAND_SECONDS = 120.0  # another command that uses the servers, such as a submit of many files
_TURN_SECONDS = 0.3  # of two commands that want to start the servers at once, one gets its turn
_LOOK_SECONDS = 0.02

# Below Linux's range for outgoing connections, which could take our port by chance.
_PORTS = range(20_000, 32_768)


class HomeInUse(BadInput):
    """Another process holds the home folder."""


class HomeLock:
    """The lock of a home folder, in one of two modes.

    Shared, while a command uses the servers of the folder: nobody else may stop them or delete what they keep.
    Exclusive, while a command starts or stops the servers, or deletes the folder's ledger. A shared lock never
    becomes exclusive: two commands would wait for each other. It is released, the exclusive one is taken, and
    what was seen before is checked again.
    """

    def __init__(self, home: Path) -> None:
        """Open the lock in neither mode. Raise BadInput if the folder cannot be used."""
        self.home, self._owns = home, False
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadInput(f"{home} cannot be the home folder: {told(error)}") from error

    def use(self, seconds: float = _START_SECONDS) -> bool:
        """Take the lock shared; return False if another command owns the folder for longer than `seconds`."""
        return self._take(fcntl.LOCK_SH, lambda: seconds)

    def own(self, seconds: Callable[[], float]) -> bool:
        """Take the lock exclusively, and release a shared one first; return False if others use or own the
        folder for longer than `seconds` says, which is asked again and again.
        """
        if not self._owns:
            self.release()
            self._owns = self._take(fcntl.LOCK_EX, seconds)
        return self._owns

    def share(self) -> None:
        """Let others use what this process has started: an exclusive lock becomes shared."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        self._owns = False

    def release(self) -> None:
        """Hold the lock in neither mode."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._owns = False

    def close(self) -> None:
        """Release the lock for good."""
        os.close(self._descriptor)

    def is_abandoned(self) -> bool:
        """Return True if nobody else uses the folder. Releases the lock: for a command whose server is silent."""
        if not self.own(lambda: 0.0):
            return False
        self.release()
        return True

    def leave(self, seconds: float) -> bool:
        """Return True if this process may stop the servers that it keeps: as owner, or after `seconds` also under
        those who still use them, since servers end with the process that has started them. False if the folder
        has another owner by now, who ends the servers itself.
        """
        (self.home / "holder").unlink(missing_ok=True)
        until = time.monotonic() + seconds
        while not self.own(lambda: 0.0):
            if not self.use(0):
                return False
            if time.monotonic() >= until:
                return True
            time.sleep(_LOOK_SECONDS)
        return True

    def clean(self) -> None:
        """End what earlier owners left running, and remove their state files. The caller must be the owner."""
        # Readers of the small files need neither this nor tenacity, whose import takes longer than reading them.
        from nightshift.common.processes.process_group import end_recorded

        for name in ("holder", "ending"):  # of one that was killed
            (self.home / name).unlink(missing_ok=True)
        end_recorded(self.home / "processes")
        kept_text(self.home / ".gitignore", lambda: "*\n")  # passwords lie here

    def _take(self, mode: int, seconds: Callable[[], float]) -> bool:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() - began >= seconds():
                    return False
                time.sleep(_LOOK_SECONDS)


@contextmanager
def home_lock(
    home: Path, say: Callable[[str], None] = lambda _: None, seconds: float | None = None
) -> Iterator[HomeLock]:
    """Make this process the owner of `home`, and end what earlier owners left running. The process may share the
    folder once its servers are up.

    Raise HomeInUse if another process uses the folder for more than 5 seconds, or 120 if it is ending or is a short
    command, or else for `seconds`; BadInput when the folder cannot be used; Retryable when a leftover process
    cannot be ended. `say` gets a line if there is something to wait for.
    """
    lock = HomeLock(home)
    try:
        if not lock.own(lambda: 0.0):
            if seconds is None:
                say(f"waiting for another {_command(home)} in {home}")
            if not lock.own(lambda: _lock_seconds(home) if seconds is None else seconds):
                raise in_use(home)
        lock.clean()
        yield lock
    finally:
        lock.close()


def use_or_own(
    lock: HomeLock, server: Callable[[], T | Retryable | None], refuse: Callable[[], None]
) -> T | None:
    """Enter a home folder. Return what `server` finds, under the shared lock; None if there is no server, as
    owner, who starts it. `refuse` raises if there is nothing to be used.

    Raise what `server` returned as an error if the folder is used and its server does not answer; HomeInUse if
    others use or own the folder all the time.
    """
    began = time.monotonic()
    turn_seconds = random.uniform(0.5, 1.5) * _TURN_SECONDS
    while True:
        if not lock.use():
            raise in_use(lock.home)
        refuse()
        found = server()
        if found is not None and not isinstance(found, Retryable):
            return found
        if lock.own(lambda: turn_seconds):
            refuse()
            return None
        if time.monotonic() - began > _LOCK_SECONDS:
            # A `run` or `serve` that keeps the folder has written the address, and does not answer there.
            if found is not None and "works" in holder(lock.home):
                raise found
            if time.monotonic() - began > _lock_seconds(lock.home):
                raise in_use(lock.home)


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


def in_use(home: Path) -> HomeInUse:
    """The error of a command that cannot have the folder."""
    return HomeInUse(
        f"another {_command(home)} uses {home}; wait for it, or choose another folder with "
        "NIGHTSHIFT_HOME"
    )


def _command(home: Path) -> str:
    names = {
        "run": "`nightshift run`",
        "serve": "`nightshift serve`",
        "pages": "`nightshift console`",
    }
    return names.get(str(holder(home).get("works")), "`nightshift` command")


def _lock_seconds(home: Path) -> float:
    """How long a command waits for those that use the folder."""
    if (home / "ending").exists():
        return _ENDING_SECONDS
    return _LOCK_SECONDS if "works" in holder(home) else _COMMAND_SECONDS


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
