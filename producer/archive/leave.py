"""A closed job leaves the ledger: its rows are written, the files are proved, the rows are deleted.

After a crash at any moment another call goes on: until the ledger names the files every row is in
Postgres, and from then on every row is in the files.
"""

from dataclasses import replace

import structlog

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import archives
from nightshift.common.ledger.jobs.archives import Archive, ArchiveFile
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.states import ArchiveState
from nightshift.common.text import counted
from nightshift.producer.archive import table_files
from nightshift.producer.archive.table_files import Rest

log = structlog.get_logger(__name__)


def leave(ledger: Ledger, job: Job, archive: Archive, days: int, rest: Rest) -> bool:
    """Brings a job that was taken to the end of its way out; False when its rows are needed.

    Raises BadInput when the output or a file of the archive is not there, ArchiveTaken when another process has the job,
    and what storage raises.
    """
    if archive.is_kept:
        files = _write(ledger, job, archive, rest)
        if files is None:
            return False
        with ledger.transaction() as connection:
            left = archives.leave(connection, archive, files, days)
        if not left:
            table_files.delete(ledger, job, [file.name for file in files])
            return False
        archive = replace(archive, state=ArchiveState.LEAVING, files=tuple(files))
    else:
        for file in archive.files:
            table_files.prove(job, file)
    table_files.sweep(ledger, job, archive.files)
    reached(Moment.LEAVING)
    for table in archives.TABLES:
        for _ in table_files.pages(ledger, archive, table, archives.delete_between, rest):
            pass
    with ledger.transaction() as connection:
        left = archives.move(connection, archive, ArchiveState.ARCHIVED)
    if left:
        log.info("job_archived", job_id=job.id, rows=sum(file.rows for file in archive.files))
    return left


def _write(ledger: Ledger, job: Job, archive: Archive, rest: Rest) -> list[ArchiveFile] | None:
    """Writes and proves the files; None when something needs the rows of the job."""
    with ledger.transaction() as connection:
        if not archives.may_leave(connection, job.id):
            return None
    # A folder that is not mounted looks like one that is empty.
    manifest = part_names.final(job.output_uri, part_names.MANIFEST)
    if not storage.exists(manifest, links=False):
        raise BadInput(
            f"{private(manifest)} is not there: the batches of job {job.id} stay in the ledger"
        )
    files = [table_files.write(ledger, job, archive, table, rest) for table in archives.TABLES]
    reached(Moment.ARCHIVING)
    for file in files:
        table_files.prove(job, file)
        found_rows = sum(
            table_files.pages(ledger, archive, file.table, archives.count_between, rest)
        )
        if found_rows != file.rows:
            raise BadInput(
                f"{file.name} of job {job.id} has {counted(file.rows, 'row')} and the ledger {found_rows:,}: "
                "the rows stay in the ledger"
            )
    return files
