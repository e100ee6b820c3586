"""Files in the output directory of a job that ends: named parts get all their columns and their
place, and what nothing needs is removed.
"""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import structlog

from nightshift.common import storage
from nightshift.common.errors import DeleteRefused, Permanent
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_names, part_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import commits
from nightshift.common.ledger.jobs import generations, job_end, table_commits
from nightshift.common.ledger.jobs.generations import Generation
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.text import counted, first_few, plural
from nightshift.producer.results import part_files
from nightshift.producer.submit import owned_files

log = structlog.get_logger(__name__)


def write(
    job: Job, name: str, table: pa.Table, made_by: dict[str, str]
) -> tuple[str, storage.Written]:
    """Writes a part to the staging folder; returns its name and facts. No other reaper gives the
    name to the same rows: a part is never written over.
    """
    stem, _, suffix = name.rpartition(".")
    name = f"{stem}-{secrets.token_hex(3)}.{suffix}"
    uri = part_names.staged(job.output_uri, name)
    return name, part_rows.write_part(uri, table, job.spec.output.format, made_by)


def complete_columns(ledger: Ledger, job: Job, generation: Generation | None = None) -> None:
    """Rewrites the parts that were written before the columns of the answers were known; those of a
    `generation` alone where one is given.

    A reader of the directory takes the columns of the first part for those of all parts.
    """
    if job.output_schema is None or not job.spec.task.has_open_columns:
        return
    parts = part_files.store(job)
    for bare, batch in part_files.names(ledger, job, generation):
        if not part_names.is_bare(bare):
            continue
        uri = part_files.place(job, bare)
        whole = bare.replace(part_names.BARE, "")
        name, facts = write(job, whole, parts.read(bare, uri), parts.provenance(uri))
        with ledger.transaction() as connection:
            commits.rename_part(connection, batch, bare, name, facts.bytes, facts.checksum)
            generations.make_stale(connection, job.id, batch)


def move(ledger: Ledger, job: Job, generation: Generation | None = None) -> None:
    """Moves the named parts that a dead worker left in the staging folder; those of a `generation`
    alone where one is given.
    """
    staged = set(storage.list_names(part_names.staged(job.output_uri, "")))
    if not staged:
        return
    refused = []
    for name, _ in part_files.names(ledger, job, generation):
        if name in staged:
            try:
                storage.move(
                    part_names.staged(job.output_uri, name), part_names.final(job.output_uri, name)
                )
            except DeleteRefused as error:  # of the source: the part has its place
                refused.append(str(error))
    warn_left(job, refused)


@dataclass(frozen=True, slots=True)
class Listed:
    """The files in the directory of a job, which are listed before the ledger is asked for the live parts.

    A file that is listed while no attempt may commit any more, and is not live then, will never be
    live: names are never used again, and finish and retry take the batches from their owners.
    """

    job: Job
    staged: Sequence[str]
    final: Sequence[str]

    def missing(self, live: Collection[str]) -> set[str]:
        """The live parts that were not in their place, and are in neither place now."""
        output = self.job.output_uri
        return {
            name
            for name in set(live).difference(self.final)
            if part_names.located(output, name) is None
        }

    def unneeded(self, live: Collection[str], *, strangers: bool) -> list[str]:
        """The parts that are not live, as URIs; with `strangers` everything in the staging folder."""
        output = self.job.output_uri
        staged = (name for name in self.staged if strangers or part_names.is_staged(name))
        found = [part_names.staged(output, name) for name in staged if name not in live]
        final = (name for name in self.final if part_names.is_part(name))
        return found + [part_names.final(output, name) for name in final if name not in live]


def listed(job: Job) -> Listed:
    """The files in the staging folder of a job, then those in its output directory."""
    staged = storage.list_names(part_names.staged(job.output_uri, ""))
    return Listed(job, staged, storage.list_names(job.output_uri))


def sweep_parts(ledger: Ledger, job: Job) -> bool:
    """Removes every part that is not live, see `Listed`, and what killed processes left.

    Returns False when a retry has opened the job again: the new part may lie in the staging folder
    and wait for its COMMIT. Raises Permanent when a live part is missing: such a job is not complete.
    What the store does not let go stays, with a warning.
    """
    found = listed(job)
    reached(Moment.SWEEPING)
    with ledger.transaction() as connection:
        if job_end.open_work(connection, job.id).may_commit:
            return False
    live = {name for name, _ in part_files.names(ledger, job)}
    with ledger.transaction() as connection:
        in_table = table_commits.in_table(connection, job.id)
    # The rows of a part that a table has are in the table, whoever has compacted them there.
    if missing := found.missing(live - in_table):
        raise Permanent(
            f"{counted(len(missing), 'part')} that the ledger names {plural(len(missing), 'is', 'are')} not in {private(job.output_uri)}, one is "
            f"{min(missing)}: {part_files.way_back(job)}"
        )
    with ledger.transaction() as connection:
        kept = table_commits.kept(connection, job.id)
    unneeded = found.unneeded(live | kept, strangers=True)
    warn_left(job, owned_files.delete(ledger, job, [*unneeded, *left_by_killed(job)]))
    storage.remove_directory(part_names.staged(job.output_uri, ""))
    return True


def left_by_killed(job: Job) -> list[str]:
    """Begun files that killed processes left in the output directory: of parts, the manifest and the marker,
    and of files in folders of ours. None that another process writes now.
    """
    found = storage.left_unfinished(job.output_uri, part_names.is_own)
    for folder in storage.OWN_FOLDERS:
        found += storage.left_unfinished(part_names.final(job.output_uri, folder))
    return found


def warn_left(job: Job, refused: Sequence[str]) -> None:
    """Says that files stay in the output directory which are none of the job's."""
    if refused:
        log.warning("files_left", job_id=job.id, files=len(refused), why=first_few(refused, 3))
