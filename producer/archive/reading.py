"""Read archived jobs: their rows are loaded into temporary tables for one read-only transaction."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import csv

from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import archives
from nightshift.common.ledger.jobs.archives import ArchiveFile
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.one_transaction import OneTransaction
from nightshift.producer.archive import table_files


@contextmanager
def read_archived(ledger: Ledger, job: Job) -> Iterator[Ledger]:
    """Yield a ledger that has every row of a job: `ledger` itself or, for an archived job, one read-only transaction
    in which temporary tables of the same names have the rows of its files.

    A job that is not archived yet stays in Postgres for another `retention_days`. Raises BadInput if a file of the
    archive is missing or was modified, or if the job is being deleted.
    """
    if job.closed_at is None:
        yield ledger
        return
    with ledger.transaction() as connection:
        archive = archives.need(connection, job.id)
    if archive.is_kept:
        yield ledger
        return
    for file in archive.files:
        table_files.prove(job, file)
    with ledger.transaction() as connection:
        archives.begin_reading(connection)
        for file in archive.files:
            _load(connection, job, file)
        archives.only_read(connection)
        yield OneTransaction(ledger, connection)


def _load(connection: Connection, job: Job, file: ArchiveFile) -> None:
    def pages() -> Iterator[bytes]:
        for batch in table_files.read(job, file):
            text = io.BytesIO()
            # Null is an empty field, and each text is in quotes.
            csv.write_csv(batch.select(names), text, csv.WriteOptions(include_header=False))
            yield text.getvalue()

    known = archives.columns(connection, file.table)
    names = [name for name in table_files.columns(job, file) if name in known]
    archives.load(connection, file.table, names, pages())
