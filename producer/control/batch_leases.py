"""Release: a leased batch is taken from its owner and given to whoever claims next."""

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.jobs import jobs
from nightshift.producer.control.answer import Answer, detail


def release(ledger: Ledger, batch_id: int) -> Answer:
    """Gives a leased batch back, uncharged; its owner drops the rows at its next heartbeat.

    The fence stays: the owner may still commit until somebody else claims the batch, and never after.
    BadInput where there is no such batch; one that nobody holds is no change.
    """
    with ledger.transaction() as connection:
        held = leasing.release_batch(
            connection, batch_id, f"{audit_log.user()} took it back by `nightshift release`"
        )
        if held is None:
            raise BadInput(f"there is no batch {batch_id} in the ledger")
        job = jobs.get(connection, held.job_id)
        subject = f"batch {batch_id} of {f'job {held.job_id}' if job is None else job.label}"
        if held.state != "leased":
            then = f"nothing changed, it is {held.state} and nobody holds it"
            return Answer("release", subject, held.job_id, then=then)
        changes = {"state": ("leased", "pending")}
        given = {**detail(changes), "worker": held.owner, "attempt": held.attempt}
        audit_log.record(connection, "release", held.job_id, f"batch {batch_id}", given)
    figures = {"batch": batch_id, "worker": held.owner, "attempt": held.attempt}
    return Answer("release", subject, held.job_id, changes, f"{held.owner} held it", figures)
