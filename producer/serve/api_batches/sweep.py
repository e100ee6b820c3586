"""What nobody wants any more: bytes of files that were deleted, have expired or never came whole, and rows
of uploads and webhooks that are over for long; jobs of batches whose results are gone.
"""

from collections.abc import Callable, Sequence

import structlog

from nightshift.common import storage
from nightshift.common.errors import NightshiftError, StorageUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.serve.ledger import (
    api_batches,
    files,
    outbox,
    uploads,
)

log = structlog.get_logger(__name__)

MOST_FILES = 100
"""Files of one sweep, so that other duties are not held up."""

SILENT_SECONDS = 3600.0
"""A file that is being received, and that nobody has touched for so long, never comes."""

KEPT_DAYS = 30
"""How long the rows of uploads and webhooks stay that are over."""

MOST_JOBS = 10
"""Jobs that one sweep deletes."""

MOST_ROWS = 1000
"""Rows of one table that one sweep deletes."""


def sweep_once(ledger: Ledger) -> bool:
    """Removes the bytes of some files and parts of uploads, then their rows, and old rows; False where nothing
    is left to do.
    """
    with ledger.transaction() as connection:
        unwanted = files.take_unwanted(connection, MOST_FILES, SILENT_SECONDS)
    _sweep(ledger, "file", unwanted, files.forget)
    with ledger.transaction() as connection:
        parts = uploads.take_unwanted(connection, MOST_FILES)
    _sweep(ledger, "part of an upload", parts, uploads.forget_part)
    return sweep_rows(ledger) or MOST_FILES in (len(unwanted), len(parts))


def _sweep(
    ledger: Ledger,
    what: str,
    unwanted: Sequence[tuple[str, str]],
    forget: Callable[[Connection, str], object],
) -> None:
    """Removes the bytes of (id, uri), then their rows. Bytes go first: a row without bytes is swept again, and
    bytes without a row would stay for ever.
    """
    for id, uri in unwanted:
        try:
            storage.delete(uri)
        except StorageUnavailable as error:
            log.warning("not_swept", what=what, id=id, why=str(error))
            continue
        with ledger.transaction() as connection:
            forget(connection, id)


def sweep_rows(ledger: Ledger) -> bool:
    """Deletes the rows of uploads and webhooks that are over for long; False where no more are left."""
    with ledger.transaction() as connection:
        gone = [each.forget(connection, KEPT_DAYS, MOST_ROWS) for each in (uploads, outbox)]
    return MOST_ROWS in gone


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
