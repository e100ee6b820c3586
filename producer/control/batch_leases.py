"""Release: a leased batch is taken from its owner and given to whoever claims next."""

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.control.answer import Answer, detail


def release(ledger: Ledger, job: Job, seq: int) -> Answer:
    """Gives the batch `seq` of a job back, uncharged, or the leased pieces of it where it was split; the owners
    drop the rows at their next heartbeat. `seq` is the number that `history` and the names of parts have.

    The fence stays: an owner may still commit until another child claims the batch, and never after.
    BadInput where the job has no such batch; one that no child holds is no change.
    """
    subject = f"batch {seq} of {job.label}"
    changes = {"state": ("leased", "pending")}
    why = f"{audit_log.user()} took it back by `nightshift release`"
    with ledger.transaction() as connection:
        pieces = [
            (id, leasing.release_batch(connection, id, why))
            for id in leasing.pieces(connection, job.id, seq)
        ]
        held = [(id, piece) for id, piece in pieces if piece and piece.state == "leased"]
        for id, piece in held:
            given = {**detail(changes), "worker": piece.owner, "attempt": piece.attempt}
            audit_log.record(connection, "release", job.id, f"batch {id}", given)
    if not pieces and job.state.over:  # its batches may be in its archive
        then = f"nothing changed, the job is {job.state} and no worker holds a batch of it"
        return Answer("release", subject, job.id, then=then)
    if not pieces:
        raise BadInput(f"{job.label} has no batch {seq}")
    if not held:
        states = " and ".join(sorted({piece.state for _, piece in pieces if piece}))
        then = f"nothing changed, it is {states} and nobody holds it"
        return Answer("release", subject, job.id, then=then)
    figures = {
        "batch": seq,
        "pieces": [
            {"id": id, "worker": piece.owner, "attempt": piece.attempt} for id, piece in held
        ],
    }
    owners = " and ".join(sorted({piece.owner for _, piece in held}))
    return Answer("release", subject, job.id, changes, f"{owners} held it", figures)
