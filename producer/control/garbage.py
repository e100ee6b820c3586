"""Gc: files of attempts that never counted, beside the output of jobs that are over, and deletions that
were cut off.
"""

from dataclasses import dataclass

from nightshift.common import storage
from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.jobs import archives, deletions, job_end, jobs, table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.system_errors import told
from nightshift.common.text import counted, first_few
from nightshift.producer.control import deletion
from nightshift.producer.control.answer import Answer
from nightshift.producer.reaper import output_directory
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.output_owner import OwnedDirectory


@dataclass(frozen=True, slots=True)
class Garbage:
    """What can go: orphans by job, and jobs whose deletion was cut off. `unseen` are jobs whose output
    could not be looked at, each with the reason.
    """

    orphans: dict[int, list[str]]
    deletions: list[int]
    unseen: dict[int, str]


def collect(ledger: Ledger, settings: Settings, *, sure: bool) -> Answer:
    """Says what can go, and deletes it if `sure`."""
    found = find(ledger, settings)
    count = sum(len(uris) for uris in found.orphans.values())
    refused = _delete(ledger, settings, found) if sure else []
    facts = {
        "files": sorted(uri for uris in found.orphans.values() for uri in uris),
        "deletions": found.deletions,
        "unseen": found.unseen,
        "refused": refused,
        "deleted": sure,
    }
    said = [f"{counted(count, 'file')} of attempts that never counted"]
    if found.deletions:
        said.append(f"{len(found.deletions)} deletions that were cut off")
    then = f"{' and '.join(said)} {'are gone' if sure else 'can go'}"
    if (count or found.deletions) and not sure:
        then += "; `nightshift gc --yes` deletes them"
    if found.unseen or refused:
        why = [*refused, *(f"job {job_id}: {why}" for job_id, why in found.unseen.items())]
        then += f"; not looked at or not deleted: {first_few(why, 2)}"
    return Answer("gc", f"{counted(len(found.orphans), 'job')}", then=then, facts=facts)


def _delete(ledger: Ledger, settings: Settings, found: Garbage) -> list[str]:
    """Deletes what was found; returns why the rest stays. What one job refuses keeps no other back."""
    refused = []
    for job_id, uris in found.orphans.items():
        try:
            stay = owned_files.delete(ledger, _job(ledger, job_id), uris)
            with ledger.transaction() as connection:
                files = len(uris) - len(stay)
                audit_log.record(connection, "gc", job_id, detail={"files": files})
        except NightshiftError as error:
            stay = [str(error)]
        refused += stay
    for job_id in found.deletions:
        try:
            deletion.delete(ledger, _job(ledger, job_id), settings, output=False)
        except NightshiftError as error:
            refused.append(str(error))
    return refused


def find(ledger: Ledger, settings: Settings) -> Garbage:
    """Looks at the output of every closed job whose batches are in the ledger; changes nothing."""
    with ledger.transaction() as connection:
        closed, cut_off = deletions.closed_and_kept(connection), deletions.begun(connection)
    orphans, unseen = {}, {}
    for job_id in closed:
        try:
            uris = _orphans(ledger, _job(ledger, job_id), settings)
        except (NightshiftError, OSError) as error:
            unseen[job_id] = told(error)
            continue
        if uris:
            orphans[job_id] = uris
    return Garbage(orphans, cut_off, unseen)


def _job(ledger: Ledger, job_id: int) -> Job:
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    if job is None:
        raise jobs.gone(job_id)
    return job


def _orphans(ledger: Ledger, job: Job, settings: Settings) -> list[str]:
    """Parts in the directory of a closed job that the ledger does not name, and begun files that killed
    processes left.

    As in the sweep of a finish, but that files of other names stay (`output_directory.Listed`).
    """
    storage.hold(job.output_uri, settings.allowed_roots)
    if not OwnedDirectory.of_job(ledger, job).is_owned():
        return []
    found = output_directory.listed(job)
    left = output_directory.left_by_killed(job)
    live = set(deletion.part_names_of(ledger, job))
    if not found.unneeded(live, strangers=False):
        return left
    # Again, once no reaper may archive the batches: then the ledger names every live part.
    with ledger.transaction() as connection:
        if not archives.need(connection, job.id).is_kept:
            return left
        if job_end.open_work(connection, job.id).may_commit:
            return left
        kept = table_commits.kept(connection, job.id)
    live = set(deletion.part_names_of(ledger, job)) | kept
    return left + found.unneeded(live, strangers=False)
