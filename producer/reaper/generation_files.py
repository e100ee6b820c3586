"""Generation files: `_generations/000002.json` says which parts hold the rows of one append, as soon as
all of them are done. Readers can follow a job that grows while the job is open.
"""

from functools import partial

import structlog

from nightshift.common.errors import LeaseLost
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.generations import Generation
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.producer.reaper import error_parts, manifest, output_directory
from nightshift.producer.reaper.duty import Duty, Reaper
from nightshift.producer.results import part_files
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.output_owner import OwnedDirectory

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 1.0
"""Pause between two looks for generations that are done."""

A_ROUND = 100
"""Most generations of open jobs that one round finishes."""


def duty(reaper: Reaper) -> Duty:
    """Beside the rounds, since files are written."""
    return Duty("write_finished", PAUSE_SECONDS, partial(write_finished, reaper.ledger), threads=1)


def write_finished(ledger: Ledger, job_id: int | None = None) -> None:
    """Writes the file of each generation whose batches are all over: of one job, or of every job that
    is not over. Harmless when it is done twice, by the same reaper or by two at once.

    A job whose files cannot be written stops no other; its error is raised when those of the others are
    written.
    """
    with ledger.transaction() as connection:
        over = generations.over(connection, job_id, A_ROUND if job_id is None else None)
    failed: dict[int, Exception] = {}
    for owner, number in over:
        if owner not in failed:
            try:
                while not _write(ledger, owner, number):
                    pass
            except LeaseLost as lost:
                log.info("generation_left", job_id=owner, generation=number, why=str(lost))
            except Exception as error:  # no job may keep the others from their files
                failed[owner] = error
    if failed:
        raise next(iter(failed.values()))


def _write(ledger: Ledger, job_id: int, number: int) -> bool:
    """Writes the file of a generation that is over; False where the file is stale by now and the rows
    are over again: then the file must be written anew.
    """
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
        generation = generations.get(connection, job_id, number)
        reopened = generations.times_reopened(connection, job_id, number)
    if job is None or generation is None:
        return True
    _complete(ledger, job, generation)
    with ledger.transaction() as connection:
        files = generations.files(connection, job_id, generation)
    uri = part_names.generation(job.output_uri, number)
    facts = manifest.generation_facts(generation)
    del facts["finished_at"]
    head = {"job": job_id, **facts, "input_files": [manifest.file_facts(file) for file in files]}
    pages = part_files.pages_of(ledger, job, live_parts.entries_between, generation)
    directory = OwnedDirectory.of_job(ledger, job)
    manifest.stream(ledger, job, uri, head, pages)
    with ledger.transaction() as connection:
        owned_files.lock(connection, job)
        if not generations.is_over(connection, job_id, number):
            # Its rows run again: a later round writes the file anew.
            owned_files.delete_one(connection, directory, job, uri)
            return True
        if generations.times_reopened(connection, job_id, number) != reopened:
            return False
        generations.finish(connection, job_id, number)
    log.info("generation_finished", job_id=job_id, generation=number)
    return True


def _complete(ledger: Ledger, job: Job, generation: Generation) -> None:
    """Brings the parts of a generation to their place; those of a job that is closed are there."""
    if job.closed_at is None:
        OwnedDirectory.of_job(ledger, job).refuse_foreign(job.id)
        error_parts.write_all(ledger, job)
        output_directory.complete_columns(ledger, job, generation)
        output_directory.move(ledger, job, generation)
