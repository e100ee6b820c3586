"""Generation files: `_generations/000002.json` says which parts hold the rows of one append, as soon as
all of them are done. Readers can follow a job that grows while the job is open.
"""

import structlog

from nightshift.common import storage
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.growth import generations
from nightshift.common.ledger.growth.generations import Generation
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.producer.reaper import error_parts, manifest, output_directory
from nightshift.producer.results import part_files
from nightshift.producer.submit import output_owner

log = structlog.get_logger(__name__)

A_ROUND = 100
"""Most generations of open jobs that one round finishes."""


def write_finished(ledger: Ledger, job_id: int | None = None) -> None:
    """Writes the file of each generation whose batches are all over: of one job, or of every job that
    is not over. Harmless when it is done twice, by the same reaper or by two at once.
    """
    with ledger.transaction() as connection:
        over = generations.over(connection, job_id, A_ROUND if job_id is None else None)
    for job_id, number in over:
        with ledger.transaction() as connection:
            job = jobs.get(connection, job_id)
            generation = generations.get(connection, job_id, number)
        if job is not None and generation is not None:
            _write(ledger, job, generation)


def _write(ledger: Ledger, job: Job, generation: Generation) -> None:
    if job.closed_at is None:
        output_owner.refuse_foreign(ledger, job)
        error_parts.write_all(ledger, job)
        output_directory.complete_columns(ledger, job, generation)
        output_directory.move(ledger, job, generation)
    uri = part_names.generation(job.output_uri, generation.number)
    with ledger.transaction() as connection:
        files = generations.files(connection, job.id, generation)
    facts = manifest.generation_facts(generation)
    del facts["finished_at"]
    head = {"job": job.id, **facts, "input_files": [manifest.file_facts(file) for file in files]}
    pages = part_files.pages_of(ledger, job, live_parts.entries_between, generation)
    manifest.stream(uri, head, pages)
    with ledger.transaction() as connection:
        jobs.lock(connection, job.id)
        now = jobs.get(connection, job.id)
        over = generations.is_over(connection, job.id, generation.number)
        if over and now is not None and now.retries == job.retries:
            generations.finish(connection, job.id, generation.number)
            log.info("generation_finished", job_id=job.id, generation=generation.number)
            return
        # Its rows run again, or ran again meanwhile: a later round writes the file anew.
        storage.delete(uri)
