"""Reapers that commit to tables, die in the middle of it or stand still there: a process each, forked from one that
has made the imports and nothing else.

A death is SIGKILL, or the kernel's own end of a process by a timer: neither runs a handler.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import deltalake  # noqa: F401  # a child does not import it again
import structlog
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, Engine, event

from nightshift.common import failpoints
from nightshift.common.errors import BadInput, Retryable
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.reaper import finish, finish_jobs, generation_files, loop  # noqa: F401
from nightshift.producer.reaper.duty import Reaper
from nightshift.producer.reaper.metrics import Rounds
from nightshift.producer.tables import commit, file_io
from tests.support.fleet import wait_until

CONTEXT = multiprocessing.get_context("forkserver")

OVER_SECONDS = 120
"""A reaper that has not come to its end by then hangs."""


@dataclass(frozen=True, slots=True)
class Order:
    """What becomes of a reaper: at a moment; before or after so many files or catalog commits of the library's own
    commit (`calls`); or so many seconds after the table was checked. Nothing becomes of one without any of these.
    """

    moment: Moment | None = None
    stops: bool = False
    calls: int | None = None
    is_after: bool = False
    seconds: float | None = None

    def __str__(self) -> str:
        if self.moment is not None:
            return str(self.moment)
        if self.calls is not None:
            return f"{'after' if self.is_after else 'before'} call {self.calls} of the library"
        return "some time in the library" if self.seconds is not None else "never"


@dataclass(frozen=True, slots=True)
class Site:
    """What a reaper works on: the ledger, the operator's catalogs, and a job."""

    url: str
    catalogs: dict[str, dict[str, str]]
    job_id: int


class TableReaper:
    """A reaper that is at work. `work` is `finish` (the job is taken from whoever has it), `duty` (the job that is
    next) or `generations` (of all open jobs).
    """

    def __init__(self, site: Site, work: str, order: Order, log: Path) -> None:
        self.order = order
        self._log = log
        self._process: BaseProcess = CONTEXT.Process(
            target=_run, args=(site, work, order, str(log)), daemon=True
        )
        self._process.start()

    def wait(self) -> str:
        """Waits until it is `killed`, `done` or `stopped`."""
        return str(wait_until(self._state, OVER_SECONDS, f"the end of a reaper: {self.order}"))

    def go_on(self) -> None:
        """Ends a standstill."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self._process.is_alive():
            self._signal(signal.SIGKILL)
        self._process.join(OVER_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def _state(self) -> str | None:
        if not self._process.is_alive():
            code = self._process.exitcode
            assert code in (0, -signal.SIGKILL, -signal.SIGALRM), (code, self._log.read_text())
            return "done" if code == 0 else "killed"
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return "stopped" if stat.rpartition(")")[2].split()[0] == "T" else None


def _run(site: Site, work: str, order: Order, log: str) -> None:
    file = open(log, "a", buffering=1)  # noqa: SIM115  # for as long as the process lives
    os.dup2(file.fileno(), 2)
    sys.stdout = file
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file))
    failpoints.observer = _observer(order)
    ledger = Ledger(site.url, connections=4)
    settings = Settings(catalogs=site.catalogs)
    try:
        WORK[work](ledger, settings, site.job_id)
    except Retryable as error:
        print(f"tried again later: {error}", file=file)
    except BadInput as error:
        # It stood still until others had finished the job and deleted it.
        if "was deleted" not in str(error):
            raise
    # Without the end of the interpreter, which takes the libraries apart.
    file.flush()
    os._exit(0)


def _finish(ledger: Ledger, settings: Settings, job_id: int) -> None:
    finish.finish(ledger, job_id, settings)


def _duty(ledger: Ledger, settings: Settings, job_id: int) -> None:
    reaper = Reaper(ledger, settings, Rounds(CollectorRegistry()), delete=print)
    while finish_jobs.Finish(reaper)():
        pass


def _generations(ledger: Ledger, settings: Settings, job_id: int) -> None:
    generation_files.write_finished(ledger)
    commit.commit_finished(ledger, settings)


WORK: dict[str, Callable[[Ledger, Settings, int], None]] = {
    "finish": _finish,
    "duty": _duty,
    "generations": _generations,
}


def _observer(order: Order) -> Callable[[Moment], None]:
    left = {order.moment}

    def observer(moment: Moment) -> None:
        if moment in left:
            left.clear()
            _obey(order)
        if moment is not Moment.TABLE_CHECKED or not left:
            return
        if order.seconds is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, order.seconds)
        if order.calls is not None:
            left.clear()
            _count_calls(order, order.calls)

    return observer


def _count_calls(order: Order, calls: int) -> None:
    """The steps of pyiceberg's commit: its manifests, the list of them, the metadata, the row of the catalog."""
    left = [calls]

    def step(is_after: bool) -> None:
        if is_after is order.is_after:
            left[0] -= 1
            if left[0] == 0:
                _obey(order)

    close = file_io.StoredSink.close

    def counted(sink: file_io.StoredSink) -> None:
        if sink.closed:
            return
        step(False)
        close(sink)
        step(True)

    file_io.StoredSink.close = counted  # type: ignore[method-assign]

    def before_commit(connection: Connection) -> None:
        if connection.engine.dialect.name == "sqlite":
            step(False)

    event.listen(Engine, "commit", before_commit)


def _obey(order: Order) -> None:
    # A stop is of the whole process, and a thread may go on for moments: another one takes the signal.
    os.kill(os.getpid(), signal.SIGSTOP if order.stops else signal.SIGKILL)


CONTEXT.set_forkserver_preload([__name__, "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"])
