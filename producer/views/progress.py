"""A running job on the console: a live view in a terminal, a line every few seconds elsewhere."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from nightshift.common.errors import BadInput, LedgerAbandoned, LedgerUnavailable, Retryable
from nightshift.common.exit_codes import ExitCode
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger import Connection, Ledger, Row
from nightshift.common.ledger.fleet import outages, workers
from nightshift.common.ledger.fleet.outages import Outage
from nightshift.common.ledger.jobs import answer_counts, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows, job_pace
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.views import facts, rates, tables, watching
from nightshift.producer.views.deadlines import with_deadlines
from nightshift.producer.views.last_sign import with_load_log
from nightshift.producer.views.notebook import CellView
from nightshift.producer.views.rates import Values
from nightshift.producer.views.standings import with_standings, without_places
from nightshift.producer.views.watching import Watching

LINE_SECONDS = 5.0
"""Pause between two lines where there is no live view."""

SILENT_SECONDS = 5.0
"""A question to Postgres that has no answer for so long is an outage that is said, whatever comes of it."""


BEGINS = frozenset({"no_reaper", "no_worker", "other_engine_only", "making_room", "soon"})
"""Kinds of reasons of a job whose reaper and worker are still starting."""


@dataclass(slots=True)
class LiveView:
    """What is on the screen: the last figures of the ledger, and a note during an outage.

    `away_since` says since when Postgres does not answer, in monotonic seconds; None while it does.
    """

    content: RenderableType = ""
    away_since: float | None = None
    message: str = ""

    def begin_outage(self, error: Retryable, since: float | None = None) -> None:
        """Record the latest message and, for the first error, when the outage began: `since`, or now."""
        self.away_since = self.away_since or since or time.monotonic()
        self.message = str(error)

    def note(self) -> Text | None:
        """The line below the last figures while the outage lasts."""
        if self.away_since is None:
            return None
        seconds = time.monotonic() - self.away_since
        return Text(
            f"{self.message} (for {seconds:.0f} s; the job goes on, and this view waits)", "yellow"
        )

    def __rich__(self) -> RenderableType:
        note = self.note()
        return self.content if note is None else Group(self.content, note)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """One job as it stands, and the workers of its pool that have its engine."""

    job: Job
    progress: Values
    workers: list[Row]
    watching: Watching | None
    outages: list[Outage]

    @property
    def at_rest(self) -> bool:
        """Whether the job is closed or paused: then nothing changes by itself."""
        if self.job.state is JobState.PAUSED:
            return True
        return self.job.state.over and self.job.closed_at is not None

    @property
    def served_by(self) -> tuple[str, str]:
        """Pool and key of the engine that runs the job."""
        return self.job.spec.pool, self.job.engine_key

    @property
    def begins(self) -> bool:
        """Whether nothing is said of the job but that nobody works on it yet."""
        standing = self.progress.get("standing")
        return self.job.state is JobState.RUNNING and getattr(standing, "kind", "") in BEGINS

    @property
    def is_idle(self) -> bool:
        """Whether a watched job has done everything that was found so far."""
        return self.watching is not None and self.watching.is_idle


def snapshot(ledger: Ledger, job_id: int, here: Here = FLEET) -> JobSnapshot:
    """Reads job, progress and workers in one transaction."""
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
        if job is None:
            raise BadInput(f"there is no job {job_id} in the ledger: it was deleted")
        own = [
            row
            for row in workers.status(connection)
            if row["pool"] == job.spec.pool and row["engine_key"] == job.engine_key
        ]
        row = with_load_log(connection, facts.read(connection, job_id, here), here)
        away = outages.listed(connection, job_id)
        return JobSnapshot(job, row, own, watching.watching(connection, job_id), away)


def follow(
    ledger: Ledger,
    job_id: int,
    console: Console,
    *,
    stop: Callable[[], bool] | None = None,
    until_idle: bool = False,
    served: tuple[str, str] | None = None,
    starting: Callable[[], bool] = lambda: False,
    here: Here = FLEET,
    patient: bool = False,
    interval_seconds: float = 0.5,
) -> JobSnapshot:
    """Shows a job until it is over and its files are finished, paused, or `stop` says so; with
    `until_idle` until a watched job has done everything that was found so far; with `served` until it
    needs another pool and engine key than these. While the processes that are to work on it are `starting`,
    that none is there is not said. What helps is what helps `here`. Returns the last look.

    Where there is no live view, a line is printed when something has changed.

    Waits for the end of an outage of Postgres; raises Retryable only at the first look, and not there either if it is
    `patient`; raises BadInput for a job that is deleted meanwhile.
    """
    looks = Looks(lambda: snapshot(ledger, job_id, here), ledger.place)
    view, printed_at, begins = LiveView(), float("-inf"), True
    printed: tuple[object, ...] = ()
    if patient:
        seen = _first_look(looks, view, console, interval_seconds)
    else:
        seen = snapshot(ledger, job_id, here)
    with _screen(view, console) as live:
        while True:
            begins = begins and starting() and seen.begins
            if live is not None:
                said = [] if seen.watching is None else watching.lines(seen.watching)
                known = view.away_since is None
                view.content = tables.job(
                    seen.progress if known else rates.without_pace(seen.progress),
                    seen.workers,
                    closing=_closing(seen),
                    watching=said,
                    outages=seen.outages,
                    starting=begins,
                )
                live.refresh()
            elif seen.at_rest or (
                (not begins or view.away_since is not None)
                and time.monotonic() - printed_at >= LINE_SECONDS
            ):
                printed_at, before, printed = time.monotonic(), printed, _change(seen, view)
                if printed != before:
                    console.print(view.note() or _line(seen), soft_wrap=True, highlight=False)
            if served not in (None, seen.served_by):
                return seen
            if seen.at_rest or (until_idle and seen.is_idle) or (stop is not None and stop()):
                return seen
            found = looks.next(interval_seconds)
            if isinstance(found, Retryable):
                refuse_abandoned(ledger, found)
                view.begin_outage(found, looks.asked_at)
            elif found is not None:
                seen, view.away_since = found, None


def refuse_abandoned(ledger: Ledger, error: Retryable) -> None:
    """Raise LedgerAbandoned in an outage that does not end by itself."""
    if ledger.is_abandoned():
        raise LedgerAbandoned(
            f"the command that kept Postgres at {ledger.place} up has ended"
        ) from error


def _first_look(
    looks: "Looks",
    view: LiveView,
    console: Console,
    interval_seconds: float,
) -> JobSnapshot:
    """Wait for the first look that has an answer, with a line during an outage."""
    is_printed = False
    while not isinstance(found := looks.next(interval_seconds if is_printed else 0.1), JobSnapshot):
        if found is not None:
            view.begin_outage(found, looks.asked_at)
            if not is_printed:
                console.print(view.note(), soft_wrap=True, highlight=False)
            is_printed = True
    view.away_since = None
    return found


class Looks:
    """Looks at a job, one after the other, each in a thread: a Postgres that is frozen stops no screen. `asked_at` is
    the start of the pending query, in monotonic seconds; None if no query is pending.
    """

    def __init__(self, look: Callable[[], JobSnapshot], place: str) -> None:
        self._look = look
        self._place = place
        self._answers: SimpleQueue[JobSnapshot | Exception] = SimpleQueue()
        self.asked_at: float | None = None

    def next(self, seconds: float) -> JobSnapshot | Retryable | None:
        """The next look, which begins after so long; why there is none, or None while there is no answer
        yet. Raises an error of a look that a later look would meet, too.
        """
        if self.asked_at is None:
            time.sleep(seconds)
            self.asked_at = time.monotonic()
            threading.Thread(target=self._ask, daemon=True).start()
        try:
            found = self._answers.get(timeout=seconds)
        except Empty:
            silent = time.monotonic() - self.asked_at > SILENT_SECONDS
            return LedgerUnavailable(f"Postgres at {self._place} is silent") if silent else None
        self.asked_at = None
        if isinstance(found, Exception) and not isinstance(found, Retryable):
            raise found
        return found

    def _ask(self) -> None:
        try:
            reached(Moment.LOOKING)
            self._answers.put(self._look())
        except Exception as error:
            self._answers.put(error)


def _screen(view: LiveView, console: Console) -> AbstractContextManager[Live | CellView | None]:
    """The screen that shows the view while a job is followed: a terminal, a cell of a notebook, or none."""
    if console.is_jupyter:
        return CellView(view, console)
    return Live(view, console=console, transient=True) if console.is_terminal else nullcontext()


def watch_all(
    ledger: Ledger, console: Console, here: Here = FLEET, interval_seconds: float = 0.5
) -> None:
    """Shows the open and the latest jobs, and every worker, until Ctrl-C."""
    seen = all_jobs(ledger, here)
    view = LiveView(seen.drawn())
    if not console.is_terminal:
        console.print(view.content)
        return
    with Live(view, console=console):
        while True:
            time.sleep(interval_seconds)
            try:
                seen = all_jobs(ledger, here)
                view.content, view.away_since = seen.drawn(), None
            except Retryable as error:
                refuse_abandoned(ledger, error)
                view.content = seen.of_before().drawn()
                view.begin_outage(error)


def after(seconds: float | None) -> Callable[[], bool]:
    """A `stop` for `follow`: True once `seconds` have passed; never where they are None."""
    until = None if seconds is None else time.monotonic() + seconds
    return lambda: until is not None and time.monotonic() >= until


def report_end(
    ledger: Ledger, job: Job, console: Console, here: Here = FLEET, *, ran: bool = True
) -> int:
    """Prints the summary of a job that is over or paused, with what helps `here`; returns the exit code
    of `run` and `wait` (DESIGN section 11). The rate of a job of which nothing `ran` now is left out.
    """
    with ledger.transaction() as connection:
        row = facts.read(connection, job.id, here)
        found = watching.watching(connection, job.id)
        if row["rows_failed"]:
            row = {**row, "error_kinds": failed_rows.count_by_kind(connection, job.id)}
    console.print(tables.summary(row, here, ran=ran))
    if found is not None and not job.state.over:
        for line in (*watching.lines(found), watching.how_to_end(job.id)):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    return exit_code(row, is_idle=found is not None and found.is_idle)


def end_as_json(ledger: Ledger, job: Job) -> tuple[dict[str, object], int]:
    """The same for machines: what `status --json` says, and the exit code."""
    with ledger.transaction() as connection:
        row = facts.read(connection, job.id, FLEET)
        found = watching.watching(connection, job.id)
    is_idle = found is not None and found.is_idle
    return _as_json(row, found), exit_code(row, is_idle=is_idle)


def job_as_json(
    connection: Connection, job_id: int, here: Here, tenant: str | None = None
) -> dict[str, object]:
    """What `status JOB --json` says; to readers of a `tenant` without names of machines, of others' jobs and of
    people, and without causes of outages.
    """
    (row,) = without_places(connection, [facts.read(connection, job_id, here, tenant)], tenant)
    is_guest = tenant is not None
    away = [each.as_json(is_guest=is_guest) for each in outages.listed(connection, job_id)]
    answers = answer_counts.of_job(connection, job_id).as_json()
    watch = watching.watching(connection, job_id, tenant)
    return {**_as_json(row, watch), **answers, "outages": away}


def _as_json(row: Values, found: Watching | None) -> dict[str, object]:
    values = rates.as_json(row)
    return values if found is None else {**values, "watch": found.as_json()}


def exit_code(row: Values, *, is_idle: bool = False) -> int:
    """0 every row has an answer; 1 finished, with row errors; 3 failed, paused or cancelled. A watched
    job that `is_idle` is judged as if it ended now.
    """
    ended_well = is_idle and not row["batches_dead"]
    if row["status"] != JobState.COMPLETED and not ended_well:
        return ExitCode.NOT_FINISHED
    return ExitCode.ROW_ERRORS if row["rows_failed"] else ExitCode.DONE


def _closing(seen: JobSnapshot) -> bool:
    """Whether every batch or the whole job is over, and finish still has files to move."""
    row = seen.progress
    waiting = row["batches_pending"] + row["batches_queued"] + row["batches_leased"]
    ends = waiting == 0 and seen.watching is None
    return seen.job.closed_at is None and (seen.job.state.over or ends)


def _change(seen: JobSnapshot, view: LiveView) -> tuple[object, ...]:
    """What a line is about: the next one is printed once this is another."""
    if view.away_since is not None:
        return (view.message,)
    found = seen.watching
    watch = None if found is None else (found.row["waiting_for_files"], found.row["files_listed"])
    return (*tables.facts_of_line(seen.progress, seen.outages), watch)


def _line(seen: JobSnapshot) -> str:
    line = tables.line(seen.progress, seen.outages)
    return line if seen.watching is None else f"{line}; {watching.lines(seen.watching)[0]}"


@dataclass(frozen=True, slots=True)
class AllJobs:
    """The open and the latest jobs at one moment, and every worker."""

    rows: Sequence[Values]
    workers: list[Row]
    outages: list[Outage]

    def drawn(self) -> RenderableType:
        """As `watch` shows them."""
        return tables.overview(self.rows, self.workers, outages=self.outages)

    def of_before(self) -> "AllJobs":
        """The same without rates, for the time in which Postgres tells no new ones."""
        return replace(self, rows=[rates.without_pace(row) for row in self.rows])


def all_jobs(ledger: Ledger, here: Here = FLEET) -> AllJobs:
    """Reads the jobs and the workers in one transaction."""
    with ledger.transaction() as connection:
        rows = with_deadlines(connection, job_pace.listed(connection, 20))
        rows = with_standings(connection, rows, here)
        return AllJobs(rows, workers.status(connection), outages.listed(connection))
