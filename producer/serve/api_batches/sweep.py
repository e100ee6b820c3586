"""Garbage collection of the API: bytes of files that were deleted, expired or uploaded in part, old rows of webhooks, and
jobs of batches whose results were deleted.
"""

from collections.abc import Callable, Sequence

import structlog

from nightshift.common import storage
from nightshift.common.errors import NightshiftError, StorageUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.serve.ledger import (
    api_batches,
    files,
    outbox,
)

log = structlog.get_logger(__name__)

MOST_FILES = 100
"""Files of one sweep, so that other duties are not held up."""

SILENT_SECONDS = 3600.0
"""A file that is being received, and that nobody has touched for so long, never comes."""

KEPT_DAYS = 30
"""How long the rows of webhooks stay that were delivered or given up."""

MOST_JOBS = 10
"""Jobs that one sweep deletes."""

MOST_ROWS = 1000
"""Rows of one table that one sweep deletes."""


def sweep_once(ledger: Ledger) -> bool:
    """Remove the bytes of some files, then their rows, and old rows; return False if nothing is left to do."""
    with ledger.transaction() as connection:
        unwanted = files.take_unwanted(connection, MOST_FILES, SILENT_SECONDS)
    _sweep(ledger, unwanted)
    return sweep_rows(ledger) or len(unwanted) == MOST_FILES


def _sweep(ledger: Ledger, unwanted: Sequence[tuple[str, str]]) -> None:
    """Remove the bytes of files by (id, uri), then their rows. Bytes go first: a row without bytes is swept again,
    and bytes without a row would stay for ever.
    """
    for id, uri in unwanted:
        try:
            storage.delete(uri)
        except StorageUnavailable as error:
            log.warning("file_not_swept", id=id, why=str(error))
            continue
        with ledger.transaction() as connection:
            files.forget(connection, id)


def sweep_rows(ledger: Ledger) -> bool:
    """Delete rows of webhooks that were delivered or given up long ago; return False if none is left."""
    with ledger.transaction() as connection:
        return outbox.forget(connection, KEPT_DAYS, MOST_ROWS) == MOST_ROWS


def sweep_jobs(ledger: Ledger, delete: Callable[[Job], object]) -> bool:
    """Deletes the jobs of batches whose files of results are all deleted or expired, by `delete`: their
    parts hold the same lines. False where no more are left, or one could not be deleted.
    """
    with ledger.transaction() as connection:
        found = [
            jobs.get(connection, id)
            for id in api_batches.jobs_without_results(connection, MOST_JOBS)
        ]
    refused = 0
    for job in found:
        if job is None:
            continue
        try:
            delete(job)
        except NightshiftError as error:
            log.warning("job_not_swept", job_id=job.id, why=str(error))
            refused += 1
    return len(found) == MOST_JOBS and not refused
