"""Process groups that end with their parent, even when the parent is killed by SIGKILL.

Every group is led by a small watcher that reads a pipe. This process holds the only write end.
However this process ends, the kernel closes that end, the watcher reads end-of-file and kills its
whole group. A descendant that leaves the group (`setsid`, as Postgres backends do) is not killed.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from nightshift.common.errors import Permanent, Retryable
from nightshift.common.processes.process_table import Process, kernel, look
from nightshift.common.system_errors import told

# The traps come first, and a line reports them: from then on no signal to the group ends the
# watcher early. Nothing is ever written to its stdin: `read` returns at end-of-file only.
_WATCHER = "trap '' HUP INT QUIT USR1 USR2 PIPE ALRM TERM; echo; exec >&-; read _; kill -KILL 0"

EMPTY_SECONDS = 30.0
"""Longest time that a killed process may stay in the kernel (GPU drivers, slow disks)."""

_LOOK_SECONDS = 0.01

Stream = int | IO[Any] | None


class ProcessGroup:
    """A process and its descendants in a group of their own, which never outlives this process.

    The group lives as long as this process, whether or not the object is kept. A copy of this
    process made by a bare `os.fork` without `exec` would keep the group alive as well.
    """

    def __init__(
        self,
        watcher: subprocess.Popen[bytes],
        main: subprocess.Popen[bytes],
        lifeline: int,
        record: Path | None,
    ) -> None:
        self.watcher = watcher
        self.main = main
        self.lifeline: int | None = lifeline  # a plain number: no garbage collector closes it
        self._record = record
        self._ending = threading.Lock()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Stream = None,
        stderr: Stream = None,
        record: Path | None = None,
        user: int | None = None,
        group: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Starts `argv` with an empty stdin; `env=None` inherits our environment. Of our
        descriptors it gets `pass_fds` and no others.

        `record` is a folder that receives a file naming the group before `argv` starts, for
        `end_recorded` in a later boot. `user` and `group` (ids) replace those of root. Raises
        Permanent when `argv` cannot be started; nothing is left running or recorded then.
        """
        watcher, lifeline = _start_watcher()
        kept: Path | None = None
        try:
            kept = None if record is None else _write_record(record, watcher.pid)
            # A new child joins the group before it drops its copy of the pipe (both happen between
            # fork and exec, in this order), so a parent that dies here leaves nobody outside.
            main = subprocess.Popen(  # noqa: S603 - an argument list, no shell
                list(argv),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                process_group=watcher.pid,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                pass_fds=pass_fds,
            )
        except BaseException as error:
            watcher.kill()
            watcher.wait()
            os.close(lifeline)
            _forget(kept)
            if isinstance(error, OSError):
                raise Permanent(f"{argv[0]} cannot be started: {told(error)}") from error
            raise
        return cls(watcher, main, lifeline, kept)

    @property
    def pid(self) -> int:
        """Process id of the main process."""
        return self.main.pid

    @property
    def pgid(self) -> int:
        """Id of the process group, which is the watcher's process id."""
        return self.watcher.pid

    def poll(self) -> int | None:
        """Exit status of the main process (negative: its signal), or None while it runs.

        A group without its watcher might outlive this process, so the group is killed here.
        """
        if self.lifeline is not None and _is_dead_child(self.watcher.pid):
            self.killed()
        return self.main.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the main process; raises TimeoutError after `timeout` seconds."""
        try:
            return self.main.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s") from late

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Asks the main process to end, without its children; nothing happens when it is over."""
        self.main.send_signal(number)

    def kill(self) -> None:
        """Ends the whole group by SIGKILL, also what a dead main process left; may be repeated.

        Raises Retryable when the kernel does not end a member within 30 seconds.
        """
        until_none_left(lambda: not self.killed(), EMPTY_SECONDS, _not_ended(self.pgid))

    def killed(self) -> bool:
        """Kills the whole group and waits for nothing; True once none of it is left. To be called
        again until then.
        """
        with self._ending:
            if self.lifeline is None:
                return True
            # The watcher is reaped last: until then no other process gets its id, which names the group.
            os.killpg(self.pgid, signal.SIGKILL)
            self.main.kill()  # it may have left the group
            if _members(self.pgid) or self.main.poll() is None:
                return False
            self.watcher.wait()
            os.close(self.lifeline)
            self.lifeline = None
            _forget(self._record)
            return True

    def stop(self, grace_seconds: float, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks the main process to end, gives it `grace_seconds`, then ends the group.

        Returns the exit status of the main process.
        """
        self.terminate(number)
        try:
            with suppress(TimeoutError):
                self.wait(grace_seconds)
        finally:
            self.kill()
        return self.wait()


def end_recorded(directory: Path) -> None:
    """Ends the groups that an earlier boot recorded in `directory`, and removes the records.

    Call it under a lock that keeps out a living owner of these groups, before recording new ones.
    Raises Retryable when a group does not end within 30 seconds; its record stays.
    """
    for path in sorted(directory.glob("*.json*")):
        record = _read_record(path)
        if record is not None and is_still_ours(record):
            with suppress(ProcessLookupError):
                os.killpg(record["pgid"], signal.SIGKILL)
            _wait_until_empty(record["pgid"])
        _forget(path)


def _start_watcher() -> tuple[subprocess.Popen[bytes], int]:
    """The leader of a new group, and the write end of the pipe that it watches."""
    # Python makes both ends close-on-exec: no other child of ours ever keeps a copy.
    read_end, lifeline = os.pipe()
    try:
        watcher = subprocess.Popen(  # noqa: S603 - a constant
            ["/bin/sh", "-c", _WATCHER, "nightshift-watcher"],
            env={},
            cwd="/",
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(read_end)
    assert watcher.stdout is not None
    with watcher.stdout as ready:
        ready.read()
    return watcher, lifeline


def _is_dead_child(pid: int) -> bool:
    """Whether a child of ours is over; it is not reaped, so its id stays taken."""
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, look) is not None


def _members(pgid: int) -> list[Process]:
    """The living processes of a group."""
    everybody = (look(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [one for one in everybody if one and one.pgid == pgid and not one.is_over]


def _wait_until_empty(pgid: int) -> None:
    until_none_left(lambda: _members(pgid), EMPTY_SECONDS, _not_ended(pgid))


def _not_ended(pgid: int) -> str:
    return (
        f"process group {pgid} has not ended {EMPTY_SECONDS:.0f} s after SIGKILL; "
        "look at what holds it in the kernel"
    )


def until_none_left(left: Callable[[], object], seconds: float, message: str) -> None:
    """Looks again and again until nothing is left; Retryable with the message after `seconds`."""
    looks = Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_fixed(_LOOK_SECONDS),
        retry=retry_if_result(bool),
    )
    try:
        looks(left)
    except RetryError as error:
        raise Retryable(message) from error


def _write_record(directory: Path, pgid: int) -> Path:
    leader = look(pgid)
    assert leader is not None, "the watcher is our child and not reaped"
    facts = {
        "pgid": pgid,
        "started": leader.started,
        "session": leader.session,
        "kernel": kernel(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{pgid}.json"
    whole = path.with_suffix(".json.new")
    whole.write_text(json.dumps(facts))
    whole.rename(path)
    return path


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text())
        return record if record["kernel"] == kernel() else None
    except (ValueError, KeyError, TypeError):
        return None  # never renamed into place, so its main process was never started


def is_still_ours(record: dict[str, Any]) -> bool:
    """Whether a recorded group is the one that was recorded, not a later user of its number.

    Pids are reused, so the number alone proves nothing. A process with the leader's pid is the
    leader only if it started at the recorded clock tick. The kernel gives no number to a new
    process while a group of that number has members: another process with the number means that
    the recorded group is gone. Without such a process, members may belong to a later group whose
    leader has ended, too; a group lies in one session, and only the recorded group lies in the
    recorded session.
    """
    leader = look(record["pgid"])
    if leader is not None:
        return bool(leader.started == record["started"])
    members = _members(record["pgid"])
    return bool(members) and all(one.session == record["session"] for one in members)


def _forget(record: Path | None) -> None:
    if record is not None:
        record.unlink(missing_ok=True)
