"""Parts that a table has, or that readers of its older versions may want, stay where they are."""

import structlog

from nightshift.common import storage
from nightshift.common.errors import BadInput, NightshiftError, StorageUnavailable
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs, table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.append_command import within_job
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.tables.commit import table_of
from nightshift.producer.tables.data_files import PartsOfTable

log = structlog.get_logger(__name__)


def files_in_use(ledger: Ledger, job: Job, settings: Settings) -> set[str]:
    """Files in the output directory of a job that its table names now, and files that stood in the table and whose
    days are not over, as URIs. Of a table that cannot be asked all files that the ledger put there.
    """
    if job.spec.output.table is None:
        return set()
    with ledger.transaction() as connection:
        replaced = table_commits.replaced(connection, job.id)
        over = dict(table_commits.expired(connection)).get(job.id, [])
        in_table = table_commits.files_in_table(connection, job.id)
    parts = PartsOfTable.of(job)
    kept = set(parts.places([each for each in replaced if each.name not in over]))
    try:
        return kept | _named(job, settings)
    except (BadInput, StorageUnavailable) as error:
        log.warning("table_not_asked", job_id=job.id, error=str(error))
        return kept | set(parts.places(in_table))


def _named(job: Job, settings: Settings) -> set[str]:
    """Files below the output directory that the table has now, as URIs."""
    assert job.spec.output.table is not None
    table = table_of(job.spec.output.table, settings)
    own = f"{job.output_uri}/"
    with within_job(job, settings):
        names = table.held(table.look())
    return {name for name in names if name.startswith(own)}


def remove_expired(ledger: Ledger, settings: Settings) -> None:
    """Removes parts that were replaced `keep_days` ago and that the table does not name. A job whose table cannot be
    looked at stops no other.
    """
    with ledger.transaction() as connection:
        found = table_commits.expired(connection)
    for job_id, names in found:
        try:
            _remove(ledger, settings, job_id, names)
        except NightshiftError as error:
            log.warning("replaced_parts_stay", job_id=job_id, error=str(error))


def _remove(ledger: Ledger, settings: Settings, job_id: int, names: list[str]) -> None:
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    if job is None or job.spec.output.table is None:
        return
    storage.hold(job.output_uri, settings.allowed_roots)
    if not OwnedDirectory.of_job(ledger, job).is_owned():
        return
    named = _named(job, settings)
    still = {uri.rpartition("/")[2] for uri in named}
    going = [name for name in names if name not in still]
    uris = [part_names.final(job.output_uri, name) for name in going]
    for uri in owned_files.held(ledger, job, uris):
        storage.delete(uri)
    with ledger.transaction() as connection:
        table_commits.forget(connection, job_id, going)
    log.info("replaced_parts_removed", job_id=job_id, parts=len(going))
