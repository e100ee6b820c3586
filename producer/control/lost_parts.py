"""Redo: rows whose part is gone from the store run again; and copies of the input that are gone come again."""

from nightshift.common.errors import BadInput
from nightshift.common.formats import owner_marker
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.batches import lost_parts
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.settings import Settings, load_settings
from nightshift.common.text import counted, plural
from nightshift.producer import retry, under_way, wings
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.control.answer import Answer
from nightshift.producer.results import part_files
from nightshift.producer.submit import restore_copies
from nightshift.producer.submit.withdraw import withdraw

BATCHES_A_PIECE = 2_000
"""Batches that one transaction opens again, which holds the row of the job."""


def redo(
    ledger: Ledger, job: Job, *, sure: bool, here: Here = FLEET, settings: Settings | None = None
) -> Answer:
    """Runs the rows of parts again that the ledger names and the store does not have. When the command
    is cut off, a second one does the rest.

    Raises BadInput for a cancelled or an archived job, and, unless `sure`, where the marker of the directory is gone
    with the parts: then the store may be the wrong one.
    """
    with ledger.transaction() as connection:
        jobs.refuse_archived(connection, job.id)
    lost = part_files.missing(ledger, job)
    if lost and not sure and owner_marker.read(job.output_uri) is None:
        raise BadInput(
            f"{counted(len(lost), 'part')} of job {job.id} {plural(len(lost), 'is', 'are')} gone from {private(job.output_uri)}, and so is the marker "
            "of its owner: is this the right store, and mounted? With --yes they run again"
        )
    if lost:
        under_way.wait(ledger, job.id)
        for check in wings.offered("before_retry"):
            check(ledger, job, settings or load_settings(), lost=[name for name, _ in lost])
        restore_copies.restore(ledger, job, also_answered=True)
    whole = None
    for first in range(0, len(lost), BATCHES_A_PIECE):
        some = lost[first : first + BATCHES_A_PIECE]
        with ledger.transaction() as connection:
            piece = lost_parts.redo(connection, job.id, some)
            if piece.batches:
                redone = {"rows": piece.rows, "batches": piece.batches}
                audit_log.record(connection, "redo", job.id, detail=redone)
            stale = generations.reopen(connection, job.id) if piece.batches else []
        if piece.reopened or stale:
            withdraw(ledger, job, stale)
        whole = piece if whole is None else whole.then(piece)
    if whole is None:
        figures = {"rows": 0, "batches": 0, "reopened": False}
        return Answer("redo", job.label, job.id, then="no part is gone", facts=figures)
    figures = {"rows": whole.rows, "batches": whole.batches, "reopened": whole.reopened}
    then = retry.summary(job, whole, here)
    return Answer("redo", job.label, job.id, then=then, facts=figures)
