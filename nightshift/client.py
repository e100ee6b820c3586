"""A fleet from Python: jobs are submitted to its ledger and found there."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self, Unpack

from nightshift import display
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.job import Job
from nightshift.producer.connect import open_ledger
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import submit
from nightshift.snapshot import JobStatus, statuses
from nightshift.specs import JobOptions, spec_of, spelled_out

CONNECTIONS = 4
"""Connections to Postgres that a client keeps, at most; threads may share a client."""


class Client:
    """The jobs of a fleet, by the Postgres that its workers share.

    `database_url` is postgresql://…; without it NIGHTSHIFT_DATABASE_URL counts. Raises BadInput where
    neither names a ledger, SchemaMismatch where its tables do not fit this version.
    """

    def __init__(self, database_url: str | None = None) -> None:
        self._settings = display.settings_of(database_url=database_url)
        if self._settings.database_url is None:
            raise BadInput(
                "no ledger is named: give ns.Client('postgresql://…') that of a fleet; ns.run needs "
                "none and works on this machine"
            )
        with ExitStack() as stack:
            opened = open_ledger(self._settings, connections=CONNECTIONS)
            self._ledger, _ = stack.enter_context(opened)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; its jobs cannot be looked at any more."""
        self._open.close()

    @spelled_out
    def submit(
        self,
        data: object,
        *,
        stage: str | None = None,
        new: bool = False,
        adopt: bool = False,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Gives a job to the fleet; the same call again gives the same job.

        `data` is a whole spec (a `JobSpec`, a mapping, a .yaml file), files (a path, a glob, a URI, a
        list of them), or a table: whatever Arrow can read as a stream, pandas, Polars, Hugging Face
        datasets, DuckDB relations, `ns.sql`. A table is written to a Parquet file in the folder
        `stage`, whose name is a hash of the rows. The workers must reach that folder, the files and
        the output directory `out`. `new` wants another job in another output directory. `adopt` takes
        the output directory over from the same job of a ledger that is lost: the parts of that job are
        removed, and their rows run again. A UserWarning says what a job that is known keeps of what it
        was, and what else to know of the job.

        Raises BadInput for everything that can be refused without a worker.
        """
        roots = self._settings.allowed_roots
        spec = spec_of(data, options, stage=stage, out=None, allowed_roots=roots)
        submitted = submit(self._ledger, spec, self._settings, Asked(new, adopt))
        for remark in submitted.remarks:
            warnings.warn(remark, stacklevel=2)
        return self._job(submitted.job_id)

    def jobs(self, limit: int = 1000) -> list[JobStatus]:
        """The jobs of the ledger as they stand, newest first."""
        with self._ledger.transaction() as connection:
            return statuses(connection, job_pace.listed(connection, limit))

    def job(self, reference: int | str) -> Job:
        """The job with this number or name; BadInput when there is none."""
        with self._ledger.transaction() as connection:
            found = jobs.find(connection, str(reference))
        return self._job(found.id)

    def _job(self, job_id: int) -> Job:
        with self._ledger.transaction() as connection:
            found = jobs.find(connection, str(job_id))
        return Job(self._opened, found.id, found.spec.name, found.output_uri)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Ledger, bool]]:
        yield self._ledger, False
