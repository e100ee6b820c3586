"""A job from Python: looked at, waited for, controlled, and its rows read."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nightshift import display
from nightshift.common.errors import BadInput, LedgerAbandoned, Permanent
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.states import JobState, RowErrorKind
from nightshift.common.text import counted
from nightshift.producer import closed_jobs, retry
from nightshift.producer.control import job_moves
from nightshift.producer.results import collect, live_dataset, part_files, past_end
from nightshift.producer.views import progress as views
from nightshift.snapshot import JobStatus, statuses

if TYPE_CHECKING:
    import pandas
    import polars

Opened = Callable[[], AbstractContextManager[tuple[Ledger, bool]]]
"""Gives the ledger of a job for the time of one call, and whether nobody can work on the job then."""

FAILED_ROWS = pa.schema(
    [
        ("row_index", pa.int64()),
        ("row_id", pa.string()),
        ("kind", pa.string()),
        ("message", pa.string()),
    ]
)


class JobStopped(Permanent):
    """The job was waited for and did not come to its end: it failed, was paused or was cancelled.

    `status` says how the job stood.
    """

    def __init__(self, status: JobStatus) -> None:
        reason = f": {status.reason}" if status.reason else ""
        super().__init__(
            f"job {status.job} ({status.name}) is {status.state} with {status.rows_open:,} of "
            f"{counted(status.rows_total, 'row')} unfinished{reason}"
        )
        self.status = status


class Job:
    """One job of a ledger, made by `ns.run`, `Client.submit` and `Client.job`.

    Rows come in the order of the dataset, each with its `row_index`, its id where the job has one, the
    columns that are passed through, the answer, and `error`, which is null where there is an answer.
    While the job runs they are the rows that are finished so far.
    """

    def __init__(self, opened: Opened, job_id: int, name: str, output_uri: str) -> None:
        self._opened = opened
        self.id = job_id
        self.name = name
        self.output_uri = output_uri

    def __repr__(self) -> str:
        return f"Job({self.id}, name={self.name!r}, output_uri={self.output_uri!r})"

    def status(self) -> JobStatus:
        """The job as it stands now."""
        with self._opened() as (ledger, _):
            return self._status(ledger)

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> JobStatus:
        """Waits until the job is over, and shows how it goes, in a terminal as in a notebook.

        Raises JobStopped when the job failed, is paused or cancelled, and TimeoutError after `timeout`
        seconds; the job goes on then. Rows with errors are no reason to raise. A job that watches its
        input stays open: the wait ends when everything that was found so far is done, with JobStopped
        where some of it could not be. Raises BadInput where the output of a completed job is gone.
        """
        deadline, console = views.after(timeout), display.console(progress=progress)
        while True:
            with self._opened() as (ledger, alone):
                if alone and not views.snapshot(ledger, self.id).at_rest:
                    raise BadInput(f"no worker runs job {self.id}: the same ns.run(…) continues it")
                try:
                    seen = views.follow(ledger, self.id, console, stop=deadline, until_idle=True)
                except LedgerAbandoned:  # by the run, whose server this call may start again
                    continue
                past_end.refuse_lost(ledger, seen.job)
                break
        status = JobStatus.of(seen.progress)
        if seen.at_rest:
            return ended(status)
        if seen.is_idle and not seen.progress["batches_dead"]:
            return status
        if seen.is_idle:
            raise JobStopped(status)
        raise TimeoutError(f"{status}, and the time to wait is over")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches in the order of the dataset; memory holds a few of them.

        A job of `ns.run` keeps the ledger of its folder open until the last batch: no other call can
        run there meanwhile.
        """
        with self._opened() as (ledger, _):
            _, rows = self._rows(ledger)
            yield from part_files.read_ahead(rows)

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table in the order of the dataset."""
        with self._opened() as (ledger, _):
            schema, rows = self._rows(ledger)
            return pa.Table.from_batches(part_files.read_ahead(rows), schema)

    def to_pandas(self, **options: Any) -> "pandas.DataFrame":
        """All rows as a pandas DataFrame; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> "polars.DataFrame":
        """All rows as a Polars DataFrame."""
        import polars

        found = polars.from_arrow(self.to_arrow())
        assert isinstance(found, polars.DataFrame)
        return found

    def dataset(self) -> Any:
        """The parts of the job as a `pyarrow.dataset.Dataset`, to be scanned with filters.

        The parts are those of this moment: while the job runs, call it again later. Rows of one part
        are in order; sort by `row_index` where all must be. Raises BadInput for parts of JSON lines.
        """
        with self._opened() as (ledger, _):
            return live_dataset.dataset(ledger, self._job(ledger))

    def errors(self, kind: str | None = None) -> pa.Table:
        """The rows that failed: `row_index`, `row_id`, `kind`, `message`, in the order of the dataset."""
        if kind is not None and kind not in list(RowErrorKind):
            raise BadInput(f"kind {kind!r} is not one of {', '.join(RowErrorKind)}")
        with self._opened() as (ledger, _):
            _, rows = closed_jobs.errors(ledger, self._job(ledger), kind=kind, limit=sys.maxsize)
        return pa.Table.from_pylist([dict(row) for row in rows], FAILED_ROWS)

    def pause(self) -> JobStatus:
        """Stops the job from taking more work; batches that are under way end as usual."""
        return self._changed(job_moves.pause)

    def resume(self, budget: float | None = None) -> JobStatus:
        """Resumes a paused job, with another `limits.budget` where one is given."""
        return self._changed(lambda ledger, job: job_moves.resume(ledger, job, budget))

    def cancel(self) -> JobStatus:
        """Ends the job for good; parts that are written stay."""
        return self._changed(job_moves.cancel)

    def retry(self, kind: str | None = None) -> JobStatus:
        """Lets every row that failed run again, or only those of one kind of error; the others keep
        their answers.
        """
        if kind is not None and kind not in list(RowErrorKind):
            raise BadInput(f"kind {kind!r} is not one of {', '.join(RowErrorKind)}")
        with self._opened() as (ledger, _):
            wanted = None if kind is None else RowErrorKind(kind)
            job = self._job(ledger)
            retry.retry(ledger, job, failed=True, dead=kind is None, kind=wanted)
            return self._status(ledger)

    def _changed(self, change: Callable[[Ledger, jobs.Job], object]) -> JobStatus:
        with self._opened() as (ledger, _):
            change(ledger, self._job(ledger))
            return self._status(ledger)

    def _job(self, ledger: Ledger) -> jobs.Job:
        with ledger.transaction() as connection:
            return jobs.find(connection, str(self.id))

    def _status(self, ledger: Ledger) -> JobStatus:
        with ledger.transaction() as connection:
            found = jobs.find(connection, str(self.id))
            [status] = statuses(connection, [job_pace.of(connection, found.id)])
            return status

    def _rows(self, ledger: Ledger) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The columns and rows of the job; all rows where it came to its end, else those that are
        there.
        """
        job = self._job(ledger)
        partial = job.closed_at is None or self._status(ledger).rows_open > 0
        job, rows = collect.rows_for(ledger, job, (), partial=partial, force=False)
        return live_dataset.schema(job), live_dataset.as_in_files(job, rows)


def ended(status: JobStatus) -> JobStatus:
    """The same status; raises JobStopped for a job that did not come to its end."""
    if status.state is not JobState.COMPLETED:
        raise JobStopped(status)
    return status
