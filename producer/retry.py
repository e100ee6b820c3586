"""Retry: failed rows of a job run again, and the sentence about them for a person."""

from collections.abc import Callable, Sequence

from nightshift.common import storage
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.batches import retries
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.states import JobState, RowErrorKind
from nightshift.producer.advice.advice import Need, goes_on, nobody_works
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.archive.come_back import bring_back
from nightshift.producer.serve.ledger import api_batch_retry, api_batch_steps
from nightshift.producer.serve.ledger.api_batch_retry import Reopened
from nightshift.producer.serve.ledger.api_batches import BatchStatus
from nightshift.producer.submit.arrange import again

ROWS_A_PIECE = 10_000
"""Failed rows that one transaction puts back, about: it holds the job's row, and a pause waits. A
million rows in batches of 256 took 3 s on two cores, and a piece 0.1 s at most; on busy cores a piece
of twice the size took up to 1.8 s."""

HOLD_SECONDS = 60.0
"""How long a batch of the HTTP API stays out of reapers' hands after each piece."""


def retry(
    ledger: Ledger,
    job: Job,
    *,
    failed: bool,
    dead: bool,
    kind: RowErrorKind | None,
    allowed: Callable[[Connection], object] = lambda _: None,
) -> Retried:
    """Puts the rows back to pending, in pieces; a job that was over loses its manifest until it is
    over again. When the command is cut off, a second one does the rest. The batch of the HTTP API whose
    job this is runs again too, and gets new files at its end.

    Batches of an archived job come back first, and copies of the input that are gone. Raises BadInput for
    a cancelled job, and where its archive is gone, and what `allowed` raises, which is asked in the
    transaction that begins, and before a copy is made.
    """
    bring_back(ledger, job)
    again.restore(ledger, job, allowed=allowed)
    after, whole, batch = -1, None, None
    while True:
        try:
            with ledger.transaction() as connection:
                if whole is None:
                    allowed(connection)
                    batch = api_batch_retry.reopen(connection, job.id, HOLD_SECONDS)
                elif batch is not None:
                    api_batch_steps.keep(connection, batch.id, api_batch_retry.WHO, HOLD_SECONDS)
                piece, stale = _piece(
                    connection, job, failed=failed, dead=dead, kind=kind, after=after
                )
                if whole is None and batch is not None and _is_nothing(piece, batch):
                    raise _Nothing(piece)
        except _Nothing as nothing:
            return nothing.piece
        if piece.reopened or stale:
            withdraw(ledger, job, stale)
        whole = piece if whole is None else whole.then(piece)
        if piece.last is None:
            break
        after = piece.last
    if batch is not None:
        with ledger.transaction() as connection:
            api_batch_retry.let_go(connection, batch.id)
    return whole


class _Nothing(Exception):
    """No row runs again: what the transaction has changed is undone, so that a batch stays as it is."""

    def __init__(self, piece: Retried) -> None:
        super().__init__()
        self.piece = piece


def _is_nothing(piece: Retried, batch: Reopened) -> bool:
    """Whether nothing runs again, so that the batch keeps its files. One that failed because its results
    could not be written gets them now.
    """
    moves = piece.batches or piece.reopened or piece.last is not None
    return not moves and batch.before is not BatchStatus.FAILED


def _piece(
    connection: Connection,
    job: Job,
    *,
    failed: bool,
    dead: bool,
    kind: RowErrorKind | None,
    after: int,
) -> tuple[Retried, Sequence[int]]:
    """Puts some rows back; and the generations whose files are stale by that."""
    piece = retries.retry(
        connection,
        job.id,
        failed=failed,
        dead=dead,
        kind=kind,
        after=after,
        most_rows=ROWS_A_PIECE,
    )
    if piece.batches or piece.reopened:
        redone = {"rows": piece.rows, "batches": piece.batches, "kind": kind}
        audit_log.record(connection, "retry", job.id, detail=redone)
    return piece, generations.reopen(connection, job.id) if piece.batches else []


def withdraw(ledger: Ledger, job: Job, stale: Sequence[int] = ()) -> None:
    """Deletes the files about the end of a job that is open again, and of its generations `stale`.

    Files come after COMMIT. The lock keeps those of a job or a generation that is over again by now.
    """
    with ledger.transaction() as connection:
        jobs.lock(connection, job.id)
        now = jobs.get(connection, job.id)
        if now is not None and now.closed_at is None:
            storage.delete(part_names.final(job.output_uri, part_names.MANIFEST))
        for number in stale:
            found = generations.get(connection, job.id, number)
            if found is None or found.finished_at is None:
                storage.delete(part_names.generation(job.output_uri, number))


def summary(job: Job, retried: Retried, here: Here = FLEET) -> str:
    """What runs again, and the next command."""
    if not retried.batches and not retried.reopened:
        return "no such rows, nothing runs again"
    text = f"{retried.rows:,} rows in {retried.batches:,} batches run again"
    if not retried.batches:
        text = "goes on" if retried.waiting else "its files are finished anew"
    elif retried.reopened and retried.waiting:
        text += f", beside {retried.waiting:,} batches that had not run"
    if retried.state is JobState.PAUSED:
        return f"{text}; {goes_on(Need.RESUME, here, job)}"
    return f"{text}; {nobody_works(here, job) or f'`nightshift wait {job.id}` waits for it'}"
