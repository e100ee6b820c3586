"""Retention: jobs that have been closed for long leave the ledger, one at a time, beside the rounds."""

import threading
from collections.abc import Sequence
from functools import partial

import structlog

from nightshift.common import storage
from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.jobs import archives, jobs
from nightshift.common.ledger.jobs.archives import Archive
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.producer.archive.leave import leave
from nightshift.producer.reaper.duty import Duty, Reaper
from nightshift.producer.submit.output_owner import OwnedDirectory

log = structlog.get_logger(__name__)

LATER_SECONDS = 3600.0
"""When a job is tried again whose rows are needed, or whose output could not be written."""


RETENTION_SECONDS = 60.0
"""Pause between two looks for jobs that have been closed for long."""


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Beside the rounds, since the rows of a large job take their time; none where no job leaves."""
    if reaper.settings.retention_days is None:
        return []
    archive = partial(archive_due, reaper.ledger, reaper.settings, reaper.stop, reaper.name)
    return [Duty("archive_due", RETENTION_SECONDS, archive, threads=1)]


class Stopped(Exception):
    """The reaper was asked to stop; another one, or the next start, goes on with the job."""


def archive_due(
    ledger: Ledger, settings: Settings, stop: threading.Event, who: str = "reaper"
) -> None:
    """Archives jobs until none is left that has been closed for `retention_days`.

    A job whose rows are needed or whose files cannot be written is left alone for LATER_SECONDS,
    with a line in the log. Raises what the ledger raises.
    """
    days = settings.retention_days
    while days is not None and not stop.is_set():
        taken = take(ledger, days, who)
        if taken is None:
            return
        job, archive = taken
        why, unexpected = "its rows are needed", False
        try:
            storage.hold(job.output_uri, settings.allowed_roots)
            OwnedDirectory.of_job(ledger, job).refuse_foreign(job.id)
            if leave(ledger, job, archive, days, partial(_rest, stop)):
                continue
        except Stopped:
            return
        except Exception as error:  # no job may keep the others from their turn
            why, unexpected = str(error), not isinstance(error, NightshiftError)
        log.warning("job_not_archived", job_id=job.id, why=why, exc_info=unexpected)
        with ledger.transaction() as connection:
            archives.postpone(connection, archive, LATER_SECONDS)


def _rest(stop: threading.Event, seconds: float) -> None:
    """Works half of the time at most, so that claims find Postgres free."""
    if stop.wait(seconds):
        raise Stopped


def take(ledger: Ledger, days: int, who: str) -> tuple[Job, Archive] | None:
    """Takes a job that has been closed for `days`, for this process alone; None where there is none."""
    with ledger.transaction() as connection:
        if not dispatch.try_duty(connection, archives.ARCHIVE_LOCK):
            return None
        archive = archives.take(connection, days, who)
        job = None if archive is None else jobs.get(connection, archive.job_id)
        return None if archive is None or job is None else (job, archive)
