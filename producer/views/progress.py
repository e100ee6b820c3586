"""What people see of a running job: a live picture in a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from nightshift.common.errors import Retryable
from nightshift.common.ledger import Ledger, Row, jobs, workers
from nightshift.common.ledger.jobs import Job
from nightshift.common.states import JobState
from nightshift.producer.views import tables
from nightshift.producer.views.rates import Values

LINE_SECONDS = 5.0
"""Pause between two lines where nobody can see a bar."""

EXIT_ANSWERED, EXIT_ROW_ERRORS, EXIT_NOT_FINISHED = 0, 1, 3


@dataclass(slots=True)
class Outage:
    """Since when Postgres does not answer, in monotonic seconds; None while it does."""

    since: float | None = None
    said: str = ""

    def note(self) -> Text | None:
        """What stands under the last picture meanwhile."""
        if self.since is None:
            return None
        seconds = time.monotonic() - self.since
        return Text(f"{self.said} ({seconds:.0f} s ago; the job goes on without us)", "yellow")


@dataclass(slots=True)
class Picture:
    """What is on the screen: the last answer of the ledger, drawn anew at each refresh."""

    drawn: RenderableType = ""
    outage: Outage = field(default_factory=Outage)

    def __rich__(self) -> RenderableType:
        note = self.outage.note()
        return self.drawn if note is None else Group(self.drawn, note)


@dataclass(frozen=True, slots=True)
class Look:
    """One job as it stands, and the workers of its pool that have its engine."""

    job: Job
    progress: Row
    workers: list[Row]

    @property
    def at_rest(self) -> bool:
        """Nothing will change by itself: closed, or paused."""
        if self.job.state is JobState.PAUSED:
            return True
        return self.job.state.over and self.job.closed_at is not None


def look(ledger: Ledger, job_id: int) -> Look:
    """Asks the ledger once, in one transaction."""
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
        assert job is not None, "jobs are never deleted"
        mine = [
            row
            for row in workers.status(connection)
            if row["pool"] == job.spec.pool and row["engine_key"] == job.spec.engine_key
        ]
        return Look(job, jobs.progress(connection, job_id), mine)


def follow(
    ledger: Ledger,
    job_id: int,
    console: Console,
    *,
    stop: Callable[[], bool] | None = None,
    interval_seconds: float = 0.5,
) -> Job:
    """Shows a job until it is over and its files are finished, paused, or `stop` says so.

    Outages of Postgres are waited out under the last picture, except at the very first look.
    """
    seen = look(ledger, job_id)
    show = _LiveShow(console) if console.is_terminal else _LineShow(console)
    with show:
        while True:
            show.update(seen)
            if seen.at_rest or (stop is not None and stop()):
                return seen.job
            time.sleep(interval_seconds)
            try:
                seen = look(ledger, job_id)
                show.outage.since = None
            except Retryable as error:
                _note(show.outage, error)


def watch_all(ledger: Ledger, console: Console, interval_seconds: float = 0.5) -> None:
    """Shows the open and the latest jobs, and every worker, until Ctrl-C."""
    picture = Picture()
    drawn = _all_jobs(ledger)
    if not console.is_terminal:
        console.print(drawn)
        return
    with Live(picture, console=console, refresh_per_second=4, transient=False):
        while True:
            picture.drawn = drawn
            time.sleep(interval_seconds)
            try:
                drawn = _all_jobs(ledger)
                picture.outage.since = None
            except Retryable as error:
                _note(picture.outage, error)


def report_end(ledger: Ledger, job: Job, console: Console) -> int:
    """Prints the summary of a job that is over or paused; returns the exit code of `run` and
    `wait` (DESIGN section 11).
    """
    with ledger.transaction() as connection:
        row = jobs.progress(connection, job.id)
    summary(console, row)
    return exit_code(row)


def exit_code(row: Values) -> int:
    """0 every row has an answer; 1 finished, with row errors; 3 failed, paused or cancelled."""
    if row["status"] != JobState.COMPLETED:
        return EXIT_NOT_FINISHED
    return EXIT_ROW_ERRORS if row["rows_failed"] else EXIT_ANSWERED


def summary(console: Console, row: Values) -> None:
    """Rows done and failed, tokens, rate, where the output lies, and what to do next."""
    console.print(tables.summary(row))


class _LiveShow:
    """A picture that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._picture = Picture()
        self._live = Live(self._picture, console=console, refresh_per_second=4, transient=True)
        self.outage = self._picture.outage

    def __enter__(self) -> "_LiveShow":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, seen: Look) -> None:
        self._picture.drawn = tables.job(seen.progress, seen.workers, closing=_closing(seen))


class _LineShow:
    """One plain line every few seconds, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at = float("-inf")
        self.outage = Outage()

    def __enter__(self) -> "_LineShow":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, seen: Look) -> None:
        if not seen.at_rest and time.monotonic() - self._said_at < LINE_SECONDS:
            return
        self._said_at = time.monotonic()
        line = self.outage.note() or tables.line(seen.progress)
        self._console.print(line, soft_wrap=True, highlight=False)


def _closing(seen: Look) -> bool:
    """Every batch is over (or the job is), and finish still has files to move."""
    row = seen.progress
    waiting = row["batches_pending"] + row["batches_queued"] + row["batches_leased"]
    return seen.job.closed_at is None and (seen.job.state.over or waiting == 0)


def _all_jobs(ledger: Ledger) -> RenderableType:
    with ledger.transaction() as connection:
        return tables.overview(jobs.listed(connection, 20), workers.status(connection))


def _note(outage: Outage, error: Retryable) -> None:
    outage.since = outage.since or time.monotonic()
    outage.said = str(error)
