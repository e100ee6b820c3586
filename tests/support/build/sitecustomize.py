"""Makes a Python process a test build: Python imports this at its start, from PYTHONPATH.

FAULTS         folder of orders: `armed/<moment>.<number>` holds what to do when that moment is
               reached next, by whichever process renames it to `fired/` first
CLOCK_SECONDS  how far this process's clock is off
MODES_COUNT    root is stopped by the modes of files and folders, as everybody else is
MESSAGES       how many times each hint is sent: 0 drops all of them
WARM           fork child processes from one that has already imported vLLM (warm.py)
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path


def _take(folder: Path, moment: str) -> str | None:
    """The next order for this moment; a rename is had by one process only."""
    for order in sorted((folder / "armed").glob(f"{moment}.*")):
        taken = folder / "fired" / f"{order.name}.{os.getpid()}"
        try:
            action = order.read_text()
            order.rename(taken)
        except FileNotFoundError:
            continue
        return action
    return None


def _observe(folder: Path) -> None:
    from nightshift.common import failpoints

    def observer(moment: failpoints.Moment) -> None:
        action = _take(folder, moment)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        elif action == "freeze":
            # To this thread: it would go on for moments where another one takes the signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif action == "hold":
            while not (folder / "go").exists():
                time.sleep(0.01)
        elif action == "hang":
            time.sleep(600)
        elif action is not None and action.startswith("errno "):
            number = int(action.split()[1])
            raise OSError(number, os.strerror(number))
        elif action is not None:
            raise AssertionError(f"no such action: {action!r}")

    failpoints.observer = observer


def _shift_clock(seconds: float) -> None:
    import datetime

    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_time_ns() + int(seconds * 1e9)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Shifted":
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> "Shifted":
            return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    # pyarrow imports pandas where pandas is there: its C code crashes where it finds this class.
    with suppress(ImportError):
        import pandas  # noqa: F401
    datetime.datetime = Shifted


def _obey_modes() -> None:
    import ctypes

    version, override, read_search = 0x20080522, 1 << 1, 1 << 2
    header = (ctypes.c_uint32 * 2)(version, 0)
    # effective, permitted, inheritable; twice, for the lower and the upper 32 capabilities
    held = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, held):
        raise OSError(ctypes.get_errno(), "capget")
    for at in (0, 1, 2):
        held[at] &= ~(override | read_search)
    if libc.capset(header, held):
        raise OSError(ctypes.get_errno(), "capset")


def _repeat_messages(times: int) -> None:
    from celery import Celery

    send = Celery.send_task

    def send_task(*args: object, **options: object) -> object:
        sent = None
        for _ in range(times):
            sent = send(*args, **options)
        return sent

    Celery.send_task = send_task


def _fork_children() -> None:
    import importlib.util

    name = "warm"
    if name not in sys.modules:
        place = Path(__file__).parents[1] / "warm.py"
        found = importlib.util.spec_from_file_location(name, place)
        sys.modules[name] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[name])
    warm = sys.modules[name]
    warm.use(warm.VLLM)


if "CLOCK_SECONDS" in os.environ:
    _shift_clock(float(os.environ["CLOCK_SECONDS"]))
if "MODES_COUNT" in os.environ:
    _obey_modes()
# The module path is known only for `python -m …`; other programs of the fleet are no test builds.
if "FAULTS" in os.environ and sys.argv[:1] in (["-m"], ["-c"]):
    _observe(Path(os.environ["FAULTS"]))
if "MESSAGES" in os.environ and sys.argv[:1] == ["-m"]:
    _repeat_messages(int(os.environ["MESSAGES"]))
if "WARM" in os.environ and not str(sys.argv[0]).endswith("warm.py"):
    _fork_children()
