"""Processes of a test that are forked from one that has made their imports.

A `python -m nightshift…` imports for seconds of a core, one that runs vLLM for half a minute. Here
a nursery, which has made these imports and does nothing else, forks it: the new process is a child
of the one that asked, with its argument list, environment, folder, files, group and limits. It has
a nursery of its own for what it starts itself, vLLM's engine process included, and both end with
it. What cannot be forked so (see `_fits`) is started in the ordinary way.

Run by itself, `python -P warm.py DESCRIPTOR MODULE…`, this file is the nursery of a test run.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import inspect
import json
import multiprocessing.util
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LIGHT = (
    "alembic.command",
    "celery.apps.worker",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.worker.components",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "logging.config",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "sqlalchemy.dialects.postgresql.psycopg",
    "nightshift.common.ledger.schema",
    "nightshift.producer.local",
    "nightshift.producer.reaper.loop",
    "nightshift.producer.results.collect",
    "nightshift.producer.verify.verify",
    "nightshift.worker.celery_app",
    "nightshift.worker.supervisor.supervisor",
)
"""What the processes of a fleet import; what is not there is passed over."""

VLLM = (
    "nightshift.worker.engines.vllm.engine",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    *LIGHT,
)
"""What a child with vLLM and its engine process import."""

REGISTRY = "vllm.model_executor.models.registry"
"""Module that vLLM runs in a process to learn what a model's class can do; it keeps the answer in its cache."""

IN_COMMANDS = {"WARM": "vllm", "PYTHONPATH": str(Path(__file__).parent / "build")}
"""Environment for commands started by bash or a script: each forks its children from a nursery of its own."""

READ_AT_IMPORT = ("HF_", "HUGGINGFACE", "TRANSFORMERS_", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_")
"""How variables begin that a library reads while it is imported."""

STARTED_COLD = {"CLOCK_SECONDS"}
"""Variables of test builds that change what is imported."""

TITLE = "tests-nursery"
ROOM = {"ROOM", "SPT_NOENV"}
MESSAGE_BYTES = 1 << 20
MOST_FILES = 64
NEWLY_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)

started = 0
"""How many processes this one has started."""

_plain_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_plain_spawn = multiprocessing.util.spawnv_passfds


class Nursery:
    """The asking side: forks processes as children of this one."""

    def __init__(
        self,
        connection: socket.socket,
        environment: Mapping[str, str],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._connection = connection
        self._process = process
        self._asking = threading.Lock()
        self._owner = os.getpid()
        self._home = _home()
        self.environment = environment

    @classmethod
    def start(cls, modules: Sequence[str]) -> "Nursery":
        """A nursery in a process of its own, which ends with this one."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            room = "x" * 4096  # for the argument lists of those who are forked
            process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(there.fileno()), *modules, room],
                env={**os.environ, "ROOM": room, "SPT_NOENV": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )
        return cls(here, dict(os.environ), process)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment would import what the nursery has imported."""
        if os.getpid() != self._owner or STARTED_COLD & environment.keys():
            return False
        for name in {*self.environment, *environment}:
            if name.startswith(READ_AT_IMPORT) and self.environment.get(name) != environment.get(
                name
            ):
                return False
        return not any(
            (Path(each) / "nightshift").is_dir() and Path(each).resolve() != self._home
            for each in _python_path(environment)
        )

    def fork(self, request: dict[str, Any], files: Mapping[int, int]) -> int | None:
        """The id of a new child with these `files` (its numbers to ours); None if none was made."""
        request["files"] = list(files)
        message = json.dumps(request).encode()
        with self._asking:
            # The nursery's grandchild becomes our child when its parent ends, as we ask for here.
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._connection, [message], list(files.values()))
                answer = self._connection.recv(100)
            except OSError:
                answer = b""
            finally:
                _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return int(answer) if answer.isdigit() else None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended, so that it can fork nothing more."""
        return self._process is not None and self._process.poll() is not None

    def close(self) -> None:
        """The nursery ends."""
        self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(60)
            finally:
                self._process.kill()


_own: Nursery | None = None
"""That of this process."""

_modules: tuple[str, ...] = ()
_started: dict[tuple[str, ...], Nursery] = {}
_starting = threading.Lock()


def use(modules: tuple[str, ...], *, at_once: bool = False) -> None:
    """From now on this process forks what it can; a nursery with these imports starts when the
    first process is wanted, or at once.
    """
    global _modules
    _modules = modules
    _patch()
    if at_once:
        _nursery()


def end() -> None:
    """Ends every nursery that this process has started, and goes back to the ordinary way."""
    use(())
    while _started:
        _started.popitem()[1].close()


def _nursery() -> Nursery | None:
    if _own is not None or not _modules:
        return _own
    # Of threads that want their first process at once, one starts the nursery.
    with _starting:
        if _modules not in _started or _started[_modules].has_ended:
            _started[_modules] = Nursery.start(_modules)
        return _started[_modules]


def _patch() -> None:
    subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = _spawn


# ---------------------------------------------------------------- the side that asks


def _execute(popen: Any, *arguments: Any, **named: Any) -> None:
    """In place of Popen._execute_child: a fork for `python -m nightshift…`."""
    _count()
    given = inspect.signature(_plain_execute).bind(popen, *arguments, **named).arguments
    child = _forked(given)
    if child is None:
        _plain_execute(popen, *arguments, **named)
        return
    popen.pid = child
    popen._child_created = True
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    popen._close_pipe_fds(*(given[each] for each in ends))


def _count() -> None:
    global started
    started += 1


os.register_at_fork(after_in_parent=_count)


def _forked(given: Mapping[str, Any]) -> int | None:
    argv = given["args"]
    environment = dict(os.environ if given["env"] is None else given["env"])
    special = ("preexec_fn", "shell", "gid", "gids", "uid", "executable")
    nursery = _nursery() if _is_ours(argv) else None
    if nursery is None or not nursery.fits(environment):
        return None
    if any(given[each] not in (None, False, argv[0]) for each in special) or given["umask"] >= 0:
        return None
    files = {0: given["p2cread"], 1: given["c2pwrite"], 2: given["errwrite"]}
    files = {number: number if end < 0 else end for number, end in files.items()}
    request = {
        "argv": list(map(str, argv)),
        "environment": environment,
        "folder": os.fspath(given["cwd"] or Path.cwd()),
        "session": bool(given["start_new_session"]),
        "group": given["process_group"],
    }
    return nursery.fork(request, files | {each: each for each in given["pass_fds"]})


def _is_ours(argv: Any) -> bool:
    if not isinstance(argv, list) or not argv or argv[0] != sys.executable:
        return False
    options = [each for each in argv[1:3] if each != "-P"]
    module = str(argv[argv.index("-m") + 1]) if "-m" in argv[:3] else ""
    return options[:1] == ["-m"] and (module.startswith("nightshift.") or module == REGISTRY)


def _spawn(path: Any, argv: Any, files: Iterable[int]) -> int:
    """In place of multiprocessing's own: a fork for a process of vLLM."""
    _count()
    words = [os.fsdecode(each) for each in argv]
    files = list(map(int, files))
    is_vllm = "--multiprocessing-fork" in words and "vllm.v1.engine.core" in sys.modules
    nursery = _nursery() if is_vllm else None
    if nursery is not None and nursery.fits(os.environ):
        request = {
            "argv": words,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "session": False,
            "group": -1,
        }
        child = nursery.fork(request, {each: each for each in (0, 1, 2, *files)})
        if child is not None:
            return child
    return int(_plain_spawn(path, argv, files))


# ---------------------------------------------------------------- the nursery


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Forks on request; returns in each new process, with what it was asked to be."""
    for each in NEWLY_IGNORED:
        signal.signal(each, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_FILES)
        if not message:
            os._exit(0)
        request = json.loads(message)
        go_read, go_write = os.pipe()
        ready_read, ready_write = os.pipe()
        middle = os.fork()
        if middle == 0:
            os.close(go_write)
            os.close(ready_read)
            if os.fork():
                os._exit(0)
            os.read(go_read, 1)  # now the one who asked is our parent
            _become(request, files, ready_write)
            return dict(request)
        os.close(go_read)
        os.close(ready_write)
        for each in files:
            os.close(each)
        os.waitpid(middle, 0)
        os.write(go_write, b"g")
        os.close(go_write)
        answer = os.read(ready_read, 100)
        os.close(ready_read)
        connection.send(answer or b"none")


def _become(request: dict[str, Any], files: list[int], ready: int) -> None:
    """All that exec would have changed, and what a child has from its parent."""
    if request["session"]:
        os.setsid()
    if request["group"] is not None and request["group"] >= 0:
        os.setpgid(0, request["group"])
    parent = os.getppid()
    for kind in range(resource.RLIM_NLIMITS if hasattr(resource, "RLIM_NLIMITS") else 16):
        limits = resource.prlimit(parent, kind)
        if resource.getrlimit(kind) != limits:
            resource.setrlimit(kind, limits)
    os.chdir(request["folder"])
    wanted: list[int] = request["files"]
    above = max(*wanted, *(int(each.name) for each in Path("/proc/self/fd").iterdir())) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in files]
    ready = fcntl.fcntl(ready, fcntl.F_DUPFD, above)
    os.closerange(0, above)
    for number, each in zip(wanted, moved, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["environment"])
    _show(request["argv"], request["environment"])
    for each in NEWLY_IGNORED:
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(ready, str(os.getpid()).encode())
    os.close(ready)


def _run(request: dict[str, Any], base: list[str]) -> None:
    """Does what Python does with such an argument list."""
    argv = request["argv"]
    sys.orig_argv = list(argv)
    is_safe = "-P" in argv[:2]
    flag = "-m" if "-m" in argv[:3] else "-c"
    rest = argv[argv.index(flag) + 2 :]
    first = [] if is_safe else [request["folder"] if flag == "-m" else ""]
    sys.path[:] = [*first, *_python_path(request["environment"]), *base]
    sys.argv = [flag, *rest]
    importlib.invalidate_caches()
    if values := sys.modules.get("prometheus_client.values"):
        values.ValueClass = values.get_value_class()  # it looks at the environment
    _bind_threads(request["environment"])
    for folder in _python_path(request["environment"]):
        if (Path(folder) / "sitecustomize.py").exists():
            sys.modules.pop("sitecustomize", None)
            importlib.import_module("sitecustomize")
            break
    sys.modules["__main__"] = type(sys)("__main__")
    code = argv[argv.index(flag) + 1]
    if flag == "-c":
        exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
        return
    sys.modules.pop(code, None)
    runpy._run_module_as_main(code)  # type: ignore[attr-defined]


def _bind_threads(environment: Mapping[str, str]) -> None:
    """What OpenMP would have read when it was loaded; vLLM's worker process is told so."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and environment.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    cores = environment.get("GOMP_CPU_AFFINITY", "").split()
    if cores and all(each.isdigit() for each in cores):
        os.sched_setaffinity(0, set(map(int, cores)))


def _leave(run: Callable[..., None], *arguments: Any) -> None:
    """Runs and ends as Python would, but for taking every imported module apart, which takes long."""
    code: Any = 0
    try:
        run(*arguments)
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        raise
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _show(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Lets others see this argument list and environment under /proc."""
    # Everything after the name, which may hold blanks and brackets; fields 48 to 51 of proc(5).
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = map(int, stat[45:49])
    for place, end, texts in (
        (arguments, arguments_end, argv),
        (variables, variables_end, [f"{name}={value}" for name, value in environment.items()]),
    ):
        room = end - place
        shown = b"".join(text.encode(errors="surrogateescape") + b"\0" for text in texts)
        ctypes.memset(place, 0, room)
        ctypes.memmove(place, shown, min(len(shown), room - 1))


def _own_nursery(environment: Mapping[str, str]) -> socket.socket | None:
    """Gives this process a nursery; in that one itself, returns its end of the connection."""
    global _own
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork():
        there.close()
        _own = Nursery(here, environment)
        _patch()
        return None
    here.close()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    for each in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), each)
    _show([TITLE], dict(os.environ))
    return there


def _python_path(environment: Mapping[str, str]) -> list[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def _home() -> Path:
    found = importlib.util.find_spec("nightshift")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1].resolve()


def freeze_imports() -> None:
    """Exempt what this process has imported from garbage collection, and enable collection.

    Collections took an eighth of the CPU time in a profile of 60 s of `make test-slow`.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def main() -> None:
    """The nursery of a run: imports, then forks until nobody can ask any more."""
    descriptor, *modules, _ = sys.argv[1:]
    connection: socket.socket | None = socket.socket(fileno=int(descriptor))
    base = [each for each in sys.path if each not in _python_path(os.environ)]
    with suppress(ImportError):
        # It finds its room only while the environment lies where exec has put it.
        importlib.import_module("setproctitle").setproctitle(TITLE)
    environment = {name: value for name, value in os.environ.items() if name not in ROOM}
    os.environ.clear()  # what C has of it lies elsewhere then
    os.environ.update(environment)
    # No PR_SET_PDEATHSIG here: it would end the nursery with the thread that started it, not with its process. It ends
    # when the connection is closed.
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{TITLE}: {error}", file=sys.stderr)
    _show([TITLE], environment)
    freeze_imports()
    while connection is not None:
        request = _serve(connection)
        connection.detach()  # closed, as every file of the nursery
        connection = _own_nursery(environment)
    _leave(_run, request, base)


if __name__ == "__main__":
    sys.modules["warm"] = sys.modules["__main__"]
    main()
