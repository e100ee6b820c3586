"""Staged parts: those that the ledger names get all their columns and are moved to their place."""

import secrets

from nightshift.common import storage
from nightshift.common.formats import part_names, part_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import commits
from nightshift.common.ledger.jobs import Job
from nightshift.producer.results import part_files


def complete_columns(ledger: Ledger, job: Job) -> None:
    """Rewrites the parts that were written before the columns of the answers were known.

    A reader of the directory takes the columns of the first part for those of all parts.
    """
    if job.output_schema is None or not job.spec.task.has_open_columns:
        return
    for name, batch in part_files.names(ledger, job):
        if part_names.is_bare(name):
            _complete(ledger, job, name, batch)


def _complete(ledger: Ledger, job: Job, bare: str, batch: int) -> None:
    name = unique(bare.replace(part_names.BARE, ""))
    uri, parts = part_files.place(job, bare), part_files.store(job)
    facts = part_rows.write_part(
        part_names.staged(job.output_uri, name),
        parts.read(bare, uri),
        job.spec.output.format,
        parts.provenance(uri),
    )
    with ledger.transaction() as connection:
        commits.rename_part(connection, batch, bare, name, facts.bytes, facts.checksum)


def move(ledger: Ledger, job: Job) -> None:
    """Moves the named parts that a dead worker left in the staging folder."""
    staged = set(storage.list_names(part_names.staged(job.output_uri, "")))
    if not staged:
        return
    for name, _ in part_files.names(ledger, job):
        if name in staged:
            storage.move(
                part_names.staged(job.output_uri, name), part_names.final(job.output_uri, name)
            )


def unique(name: str) -> str:
    """A name that no other reaper gives to the same rows: a part is never written over."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{secrets.token_hex(3)}.{suffix}"
