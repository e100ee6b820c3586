"""The process of a user's function: loads the function, calls it, hands its answers back as Arrow.

Run by path, as `python -P host.py DESCRIPTOR`. Nothing of ours but `reply.py` is loaded here, and
NumPy and pyarrow are imported before the user's folders come first on the path: a user's `common/` is
the user's own. Requests and replies go over the descriptor alone, so a function may print.
"""

import fcntl
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING or __name__ != "__main__":
    from nightshift.worker.engines.function.reply import Reply
else:  # by its path, and under a name that no module of a user has
    _spec = importlib.util.spec_from_file_location(
        "_function_reply", Path(__file__).with_name("reply.py")
    )
    _reply = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_reply)
    Reply = _reply.Reply

pa.array([0])  # pyarrow imports pandas here, where pandas is there: no call pays for that
Rows = list[dict[str, Any]]
Function = Callable[[Rows], Sequence[Mapping[str, Any]]]

Message = tuple[dict[str, Any], bytes]
"""What one side tells the other: a JSON object, and Arrow streams one after the other."""

SIZES = struct.Struct("<QQ")  # bytes of the JSON object and of the streams, in front of both
BUFFER_BYTES = 2**16  # a message that fits is one write and one read


class Channel:
    """Messages over a connected socket, for one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = end.makefile("rb", buffering=BUFFER_BYTES)

    def send(self, head: Mapping[str, Any], streams: pa.Buffer | bytes = b"") -> None:
        """Sends one message; OSError when the other side is gone."""
        text = json.dumps(head).encode()
        parts = (SIZES.pack(len(text), len(streams)), text, streams)
        for part in parts if len(streams) > BUFFER_BYTES else (b"".join(parts),):
            self._end.sendall(part)

    def receive(self) -> Message:
        """The next message; EOFError or OSError when the other side is gone."""
        head, streams = SIZES.unpack(self._read(SIZES.size))
        return json.loads(self._read(head)), self._read(streams)

    def close(self) -> None:
        """Lets the socket go."""
        self._reader.close()
        self._end.close()

    def _read(self, size: int) -> bytes:
        data: bytes = self._reader.read(size)
        if len(data) < size:
            raise EOFError("the other side is gone")
        return data


class LoadProblem(Exception):
    """The function cannot be loaded; the message is one sentence."""


def loaded(setup: Mapping[str, Any]) -> Function:
    """Imports `setup["callable"]` from `setup["folders"]`, and makes an instance where it is a class.

    LoadProblem says what stands in the way.
    """
    where, args = setup["callable"], setup["args"]
    module, _, name = where.partition(":")
    _refuse_collision(module, setup["folders"])
    sys.path[:] = [*setup["folders"], *(each for each in sys.path if each not in setup["folders"])]
    try:
        # A class is made without the lock: several may load models at once.
        with _alone(setup["folders"]):
            imported = importlib.import_module(module)
        found: Function = getattr(imported, name)
    except AttributeError as error:
        raise LoadProblem(f"{module!r} has no {name!r}: {error}") from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise LoadProblem(f"{where!r} cannot be imported: {_said(error)}") from error
    if isinstance(found, type):
        try:
            found = found(**args)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            why = _said(error)
            raise LoadProblem(f"{where!r} cannot be made with engine.args: {why}") from error
    elif args:
        raise LoadProblem(f"engine.args are for a class, and {where!r} is a {type(found).__name__}")
    if not callable(found):
        raise LoadProblem(f"{where!r} is not callable")
    return found


@contextmanager
def _alone(folders: Sequence[str]) -> Iterator[None]:
    """Hold the lock of the first folder while user code is imported: a module that fills a cache or a table at import
    must not meet the half-filled one of another process. The check of `nightshift run` takes the same lock.
    Without effect on file systems that have no such locks.
    """
    with ExitStack() as held:
        with suppress(OSError, IndexError):
            folder = os.open(folders[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
            # A process that the module has forked has the folder open, too, and would keep the lock.
            held.callback(fcntl.flock, folder, fcntl.LOCK_UN)
        yield


def error_types(error: BaseException | None) -> list[list[str]]:
    """The qualified names of an error's types, then those of its causes. An OSError without a number
    is not named so: a library raised it, and the system's error is its cause.
    """
    found: list[list[str]] = []
    while error is not None and len(found) < 20:  # causes may go round in a circle
        without = OSError if isinstance(error, OSError) and error.errno is None else None
        kinds = [kind for kind in type(error).__mro__ if kind is not without]
        found.append([f"{kind.__module__}.{kind.__qualname__}" for kind in kinds])
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _refuse_collision(module: str, folders: Sequence[str]) -> None:
    """LoadProblem for a name that an installed module has as well: others want that one."""
    top = module.partition(".")[0]
    own = [folder for folder in sys.path if folder and folder not in folders]
    find_spec = importlib.machinery.PathFinder.find_spec
    if find_spec(top, folders) and (top in sys.builtin_module_names or find_spec(top, own)):
        raise LoadProblem(f"an installed module has the name {top!r}, too: rename yours")


def answered(function: Function, where: str, head: Mapping[str, Any], streams: bytes) -> Message:
    """The reply to some calls, made one after the other with the numbers of rows of `head["calls"]`:
    answers by row, and by call the problem that all of its rows share.
    """
    sizes: list[int] = head["calls"]
    problems: dict[int, str] = {}
    results: dict[int, object] = {}
    try:
        table = pa.ipc.open_stream(streams).read_all()
        rows = table.to_pylist() if table.num_columns else [{} for _ in range(sum(sizes))]
        began = time.monotonic()
        for call, stop in enumerate(itertools.accumulate(sizes)):
            start = stop - sizes[call]
            found = _called(function, where, rows[start:stop])
            if isinstance(found, str):
                problems[call] = found
            else:
                results.update(enumerate(found, start))
        seconds = time.monotonic() - began
        reply = Reply(table)
        reply.take(results, where)
    except BaseException as error:
        problem = f"rows or answers of {where} cannot be handed on: {_said(error)}"
        return {"problems": dict.fromkeys(range(len(sizes)), problem), "seconds": 0.0}, b""
    return reply.message(problems, seconds)


def _counted(count: int, noun: str) -> str:
    """As `common.text.counted`: this process imports nothing of ours."""
    return f"{count} {noun if count == 1 else noun + 's'}"


def _called(function: Function, where: str, rows: Rows) -> list[object] | str:
    """What one call returned for each row, or why it returned nothing of use."""
    try:
        results: object = function(rows)
        if not isinstance(results, Sequence) or isinstance(results, str | bytes):
            return f"{where} returned {type(results).__name__}, not a list of dicts"
        if len(results) != len(rows):
            return f"{where} returned {_counted(len(results), 'result')} for {_counted(len(rows), 'row')}"
        return list(results)
    except BaseException as error:
        return f"{where} raised {_said(error)}"


def _said(error: BaseException) -> str:
    """Type and message of an error, whose own code makes the message."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def _ignore_sigterm() -> None:
    """SIGTERM asks the worker, whose drain wants this process: batch systems such as Slurm send it to all of them
    at once. A process that the function forks ends by it as ever, wherever it is at: `multiprocessing` ends pools so.
    """
    masks = threading.local()

    def stay(_number: int, _frame: object) -> None: ...

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def become_child() -> None:
        if signal.getsignal(signal.SIGTERM) is stay:  # and not a handler of the function
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    signal.signal(signal.SIGTERM, stay)
    # Python forgets what a child receives before its hooks run, so SIGTERM waits until then.
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=become_child)


def main() -> None:
    """Serves calls over the descriptor until the other side is gone."""
    _ignore_sigterm()
    with suppress(OSError):  # where memory runs out, the kernel ends this process before the child
        Path("/proc/self/oom_score_adj").write_text("1000")
    (end := socket.socket(fileno=int(sys.argv[1]))).set_inheritable(False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    channel = Channel(end)
    with suppress(EOFError, OSError):
        logging.basicConfig(level=(setup := channel.receive()[0])["log_level"].upper())
        try:
            function = loaded(setup)
        except LoadProblem as problem:
            channel.send({"problem": str(problem), "causes": error_types(problem.__cause__)})
            return
        channel.send({"problem": None, **_files(setup["callable"])})
        while True:
            channel.send(*answered(function, setup["callable"], *channel.receive()))


def _files(where: str) -> dict[str, Any]:
    """The files of all modules; those of the package that the callable is in, and the folder in which that lies."""
    modules = {name: each for name, each in sys.modules.items() if type(each) is type(sys)}
    files = {name: str(vars(each).get("__file__")) for name, each in modules.items()}
    package = where.partition(":")[0].partition(".")[0]
    own = [file for name, file in files.items() if name.partition(".")[0] == package]
    folder = Path(files.get(package, "None")).parent
    is_package = hasattr(modules.get(package), "__path__")
    root = folder.parent if is_package else folder
    return {"files": [*files.values()], "own": own, "root": str(root)}


if __name__ == "__main__":
    main()
