"""Finish: error parts for dead batches, parts moved to their place, the manifest, the job closed.

Every step is harmless when it is done twice, by the same reaper or by two at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial

import structlog

from nightshift.common import storage
from nightshift.common.errors import LeaseLost, Permanent, Retryable, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_names
from nightshift.common.ledger import Connection, Ledger, holds
from nightshift.common.ledger.batches import dispatch, retries
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked
from nightshift.common.settings import Settings, load_settings
from nightshift.common.states import JobState
from nightshift.producer import wings
from nightshift.producer.reaper import (
    error_parts,
    generation_files,
    manifest,
    output_directory,
    sweep_copies,
)
from nightshift.producer.reaper.renewed_hold import renewed
from nightshift.producer.results import id_counts
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.output_owner import OwnedDirectory

log = structlog.get_logger(__name__)

MOST_MANIFESTS = 3
"""How often a late reaper writes a manifest again because it replaced that of a later end."""

PIECE = 5_000
"""Batches that one transaction changes at most, so that it stays short."""


def finish(
    ledger: Ledger, job_id: int, settings: Settings | None = None, *, hold: Hold | None = None
) -> None:
    """Brings a job whose batches are all over to its end; returns early if it is not over yet, or if another
    process has taken over the `hold`. Without a hold the job is taken from any process that finishes it.

    An error that no later try can solve, an error of our own included, ends the job as failed, with
    the reason and without a manifest. An output outside the roots of the settings is such an error, where roots are
    set, and so is one that belongs to another job or ledger by now. Raises Retryable on outages: finish is tried again.
    """
    settings = settings or load_settings()
    if hold is None:
        with ledger.transaction() as connection:
            hold = job_end.take(connection, job_id, "command")
        try:
            with renewed(ledger, hold):
                finish(ledger, job_id, settings, hold=hold)
        finally:
            with suppress(Retryable), ledger.transaction() as connection:
                holds.postpone(connection, hold, 0)
        return
    try:
        _finish(ledger, hold, settings)
    except LeaseLost as lost:
        log.info("finish_left", job_id=job_id, why=str(lost))
    except Retryable:
        raise
    except Exception as error:
        with ledger.transaction() as connection:
            given_up = job_end.abandon(
                connection,
                hold,
                Permanent(f"its output could not be finished: {marked(error)}"),
            )
        log.exception("job_abandoned" if given_up else "finish_failed", job_id=job_id)


def _finish(ledger: Ledger, hold: Hold, settings: Settings) -> None:
    job_id = int(hold.subject)
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    if job is None or job.closed_at is not None:
        return
    if not _owners_are_gone(ledger, job):
        return
    with writing(ledger, hold) as connection:
        if job_end.hold_refused(connection, job_id):
            return
    for step in wings.offered("resume"):
        step(ledger, job, settings)
    storage.hold(job.output_uri, settings.allowed_roots)
    OwnedDirectory.of_job(ledger, job).refuse_foreign(job.id)
    check(ledger, hold)
    _in_pieces(ledger, partial(retries.undo, job_id=job_id))
    error_parts.write_all(ledger, job)
    output_directory.complete_columns(ledger, job)
    output_directory.move(ledger, job)
    reached(Moment.FINISHING)
    # Swept before the job is closed: no reaper comes back for a closed job.
    if not output_directory.sweep_parts(ledger, job):
        return
    sweep_copies.sweep_copies(ledger, job)
    generation_files.write_finished(ledger, job_id)
    with suppress(Retryable), writing(ledger, hold) as connection:
        job_end.note_work(connection, job_id)
    _count_ids(ledger, job, hold)
    steps = wings.offered("before_close")
    if job.spec.output.table is not None and not steps:
        raise StorageUnavailable(
            "tables are written by reapers with the folder producer/tables alone"
        )
    for step in steps:
        step(ledger, job, settings)
    reached(Moment.CLOSING)
    state = _close(ledger, job, hold)
    if state is not None:
        log.info("job_closed", job_id=job_id, state=str(state))


@contextmanager
def writing(ledger: Ledger, hold: Hold) -> Iterator[Connection]:
    """A transaction of the process that finishes the job; LeaseLost once another process does. That only saves
    work: the end of the job must be written once, and the lock of the job's row sees to that.
    """
    with ledger.transaction() as connection:
        if not holds.is_held(connection, hold):
            raise LeaseLost(f"another reaper finishes job {hold.subject}")
        yield connection


def check(ledger: Ledger, hold: Hold) -> None:
    """LeaseLost once another process finishes the job: to finish twice is harmless, but work for nothing."""
    with writing(ledger, hold):
        pass


def _count_ids(ledger: Ledger, job: Job, hold: Hold) -> None:
    """Counts the ids of the output, where that is quick. A job closes without the count, too, and says so:
    `nightshift verify` names a part that cannot be read.
    """
    try:
        found = id_counts.count(ledger, job)
    except Exception as error:  # a damaged part is known by errors of its format's library
        log.warning("ids_not_counted", job_id=job.id, error=str(error), exc_info=True)
        found = id_counts.uncounted(ledger, job)
    with suppress(Retryable), writing(ledger, hold) as connection:
        job_end.note_ids(connection, job.id, None if found is None else asdict(found))


def _owners_are_gone(ledger: Ledger, job: Job) -> bool:
    """Takes the waiting batches of a job that is over from their last owners. True when nothing of
    the job may be committed any more: no file may be listed and no manifest begun before.

    A late commit reads the state of the job without a lock, so it may still be under way when the
    job is over already. It is fenced by the row of its batch: either the commit holds the row first,
    and the batch is done when its part is looked for, or the batch has no owner any more.
    """
    # A round of the reaper does not come back for what a closed job has left in its queue.
    _in_pieces(ledger, dispatch.unqueue)
    _in_pieces(ledger, partial(job_end.take_owners, job_id=job.id))
    with ledger.transaction() as connection:
        return not job_end.open_work(connection, job.id).may_commit


def _in_pieces(ledger: Ledger, change: Callable[..., int]) -> None:
    """Changes batches in transactions of at most PIECE, until fewer were left to change."""
    changed = PIECE
    while changed == PIECE:
        with ledger.transaction() as connection:
            changed = change(connection, limit=PIECE)


def _close(ledger: Ledger, job: Job, hold: Hold) -> JobState | None:
    """Writes the manifest and closes the job as the manifest says; None when a later round will.

    `job` is as it was before its files were looked at.
    """
    directory = OwnedDirectory.of_job(ledger, job)
    for _ in range(MOST_MANIFESTS):
        written_end, retries_then = manifest.write(ledger, job)
        with ledger.transaction() as connection:
            owned_files.lock(connection, job)
            end = job_end.open_work(connection, job.id).end
            now = jobs.get(connection, job.id)
            again = now is not None and now.closed_at is None and now.retries != job.retries
            fits = now is not None and (end, now.retries) == (written_end, retries_then)
            if end is None or again:
                # A retry came in between. It may be over, and its parts not moved: a later round
                # begins anew. Deleted under the job's lock, so that the manifest of a later end is
                # never the one that is deleted.
                uri = part_names.final(job.output_uri, part_names.MANIFEST)
                owned_files.delete_one(connection, directory, job, uri)
            elif fits and now is not None and now.closed_at is None:
                end = job_end.close(connection, hold)
        if again or now is None:
            return None
        if fits:
            return end
        if now.closed_at is None:
            return None
        # This process was frozen, and its manifest replaced that of a later end: write it again.
    return None
