"""What reads the batches of a closed job: they come back from its archive first, and stay for a while."""

from collections import Counter

import pyarrow.compute as pc

from nightshift.common.errors import NightshiftError, Permanent
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import archives
from nightshift.common.ledger.jobs.archives import Archive, ArchiveFile
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.states import ArchiveState
from nightshift.common.text import counted
from nightshift.producer.archive import table_files


def bring_back(ledger: Ledger, job: Job) -> None:
    """Sees to it that every row of a job is in Postgres, and stays there for `retention_days`.

    A second call goes on after a crash, and two at the same time help each other. Raises BadInput
    when a file of the archive is gone or is another one now, ArchiveTaken.
    """
    archive = _needed(ledger, job)
    if archive is None or archive.is_kept:
        return
    try:
        _return(ledger, job, archive)
    except (NightshiftError, FileNotFoundError):
        # Another command may have brought the rows back meanwhile, and removed the files.
        now = _needed(ledger, job)
        if now is None or not now.is_kept:
            raise


def archived_errors(
    ledger: Ledger, job: Job, *, kind: str | None, limit: int
) -> tuple[dict[str, int], list[Row]] | None:
    """How many rows of each kind failed, and the first of them, read from the archive of a job; None
    where Postgres has the rows.
    """
    archive = _needed(ledger, job)
    if archive is None or archive.is_kept:
        return None
    return _errors_of(job, archive, kind, limit)


def _errors_of(
    job: Job, archive: Archive, kind: str | None, limit: int
) -> tuple[dict[str, int], list[Row]]:
    [file] = [file for file in archive.files if file.table == "row_errors"]
    table_files.prove(job, file)
    kinds: Counter[str] = Counter()
    rows: list[Row] = []
    for batch in table_files.read(job, file):
        kinds.update(batch.column("kind").to_pylist())
        chosen = batch if kind is None else batch.filter(pc.equal(batch.column("kind"), kind))
        rows += chosen.slice(0, limit - len(rows)).to_pylist()
    return dict(sorted(kinds.items(), key=lambda each: (-each[1], each[0]))), rows


def _needed(ledger: Ledger, job: Job) -> Archive | None:
    """Where the rows of a job are, which do not leave soon; None for a job that is not closed."""
    if job.closed_at is None:
        return None
    with ledger.transaction() as connection:
        return archives.need(connection, job.id)


def _return(ledger: Ledger, job: Job, archive: Archive) -> None:
    for file in archive.files:
        table_files.prove(job, file)
    with ledger.transaction() as connection:
        if not archives.move(connection, archive, ArchiveState.RETURNING):
            raise table_files.taken(archive)
        archive = archives.need(connection, job.id)
    # Batches first: attempts are found by them.
    for file in reversed(archive.files):
        _add(ledger, job, archive, file)
    _keep(ledger, archive)
    table_files.sweep(ledger, job, ())


def _add(ledger: Ledger, job: Job, archive: Archive, file: ArchiveFile) -> None:
    for batch in table_files.read(job, file):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        with ledger.transaction() as connection:
            table_files.hold(connection, archive)
            archives.add(connection, file.table, batch.schema.names, rows)


def _keep(ledger: Ledger, archive: Archive) -> None:
    """Counts what came back, and lets the rows in Postgres count from now on."""
    for file in archive.files:
        found_rows = sum(
            table_files.pages(ledger, archive, file.table, archives.count_between, lambda _: None)
        )
        if found_rows != file.rows:
            raise Permanent(
                f"{found_rows:,} of {counted(file.rows, 'row')} of {file.table} came back to job "
                f"{archive.job_id}: they stay in {file.name}"
            )
    with ledger.transaction() as connection:
        table_files.hold(connection, archive)
        # The caller removes the files next.
        if not archives.keep(connection, archive):
            raise table_files.taken(archive)
