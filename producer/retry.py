"""Retry: failed rows of a job run again, and the sentence about them for a person."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.batches import retries
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings, load_settings
from nightshift.common.states import JobState, RowErrorKind
from nightshift.common.text import counted, counted_batches, plural
from nightshift.producer import under_way, wings
from nightshift.producer.advice.advice import Need, goes_on, nobody_works
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.submit import restore_copies
from nightshift.producer.submit.withdraw import withdraw

ROWS_A_PIECE = 10_000
"""Failed rows that one transaction puts back, about: it holds the job's row, and a pause waits. A
million rows in batches of 256 took 3 s on two cores, and a piece 0.1 s at most; on busy cores a piece
of twice the size took up to 1.8 s."""


class Follower(Protocol):
    """Something that depends on a job and runs again with it, such as a batch of the OpenAI API. Wings find it in
    the transaction that begins, in their function `run_again(connection, job_id)`, before the job is locked.
    """

    @property
    def ends_anew(self) -> bool:
        """Whether it ends once more although no row of the job runs again."""

    def keep(self, connection: Connection) -> None:
        """Keeps the follower from ending: rows are still being put back."""

    def release(self, connection: Connection) -> None:
        """Lets the follower end: all rows are put back."""


def retry(
    ledger: Ledger,
    job: Job,
    *,
    failed: bool,
    dead: bool,
    kind: RowErrorKind | None,
    group: str | None = None,
    settings: Settings | None = None,
    overtake: bool = False,
    allowed: Callable[[Connection], object] = lambda _: None,
    agreed: Callable[[Mapping[str, object]], object] = lambda _: None,
) -> Retried:
    """Puts the rows back to pending, in pieces; a job that was over loses its manifest until it is
    over again. When the command is cut off, a second one does the rest. What stands on the job runs
    again too.

    Copies of the input that are gone come back first. Without `settings` those of
    the environment hold. With `overtake` a person has said that what others did to the table of the job is passed over.
    Raises BadInput for a cancelled or archived job, and whatever `allowed` raises. `allowed` is
    called in the transaction that begins, and before a copy is made. `agreed` is called with the state of the job
    under its lock where rows would run again; where it raises, none does.
    """
    with ledger.transaction() as connection:
        jobs.refuse_archived(connection, job.id)
    under_way.wait(ledger, job.id)
    for check in wings.offered("before_retry"):
        check(ledger, job, settings or load_settings(), overtake=overtake)
    restore_copies.restore(ledger, job, allowed=allowed, settings=settings)
    after, whole = -1, None
    followers: list[Follower] = []
    while True:
        under_way.wait(ledger, job.id)
        try:
            with ledger.transaction() as connection:
                if whole is None:
                    allowed(connection)
                    followers = _followers(connection, job)
                else:
                    for follower in followers:
                        follower.keep(connection)
                chosen = {"failed": failed, "dead": dead, "kind": kind, "group": group}
                piece, stale = _piece(connection, job, chosen, after)
                if not _moves(whole) and _moves(piece):
                    agreed({"state": piece.was})
                if whole is None and followers and _is_nothing(piece, followers):
                    raise _Nothing(piece)
        except _Nothing as nothing:
            return nothing.piece
        if piece.reopened or stale:
            withdraw(ledger, job, stale)
        whole = piece if whole is None else whole.then(piece)
        if piece.last is None:
            break
        after = piece.last
    for follower in followers:
        with ledger.transaction() as connection:
            follower.release(connection)
    return whole


class _Nothing(Exception):
    """No row runs again: what the transaction has changed is undone, so that what stands on the job stays as it is."""

    def __init__(self, piece: Retried) -> None:
        super().__init__()
        self.piece = piece


def _followers(connection: Connection, job: Job) -> list[Follower]:
    found = [run_again(connection, job.id) for run_again in wings.offered("run_again")]
    return [follower for follower in found if follower is not None]


def _moves(retried: Retried | None) -> bool:
    """Whether rows run again so far, or the job does."""
    return retried is not None and (retried.batches > 0 or retried.reopened)


def _is_nothing(piece: Retried, followers: Sequence[Follower]) -> bool:
    """Whether nothing runs again, and nothing that stands on the job ends anew."""
    moves = _moves(piece) or piece.last is not None
    return not moves and not any(follower.ends_anew for follower in followers)


def _piece(
    connection: Connection, job: Job, chosen: Mapping[str, Any], after: int
) -> tuple[Retried, Sequence[int]]:
    """Puts some rows back; and the generations whose files are stale by that."""
    piece = retries.retry(connection, job.id, **chosen, after=after, most_rows=ROWS_A_PIECE)
    if _moves(piece):
        redone = {"rows": piece.rows, "batches": piece.batches, "kind": chosen["kind"]}
        if piece.reopened:
            redone["state"] = [piece.was, piece.state]
        audit_log.record(connection, "retry", job.id, detail=redone)
    return piece, generations.reopen(connection, job.id) if piece.batches else []


def summary(job: Job, retried: Retried, here: Here = FLEET) -> str:
    """What runs again, and the next command."""
    if not retried.batches and not retried.reopened:
        return "no such rows, nothing runs again"
    text = f"{counted(retried.rows, 'row')} in {counted_batches(retried.batches)} {plural(retried.rows, 'runs', 'run')} again"
    if not retried.batches:
        text = "continues" if retried.waiting else "its files are finished anew"
    elif retried.reopened and retried.waiting:
        text += f", beside {counted_batches(retried.waiting)} that had not run"
    if retried.state is JobState.PAUSED:
        return f"{text}; {goes_on(Need.RESUME, here, job)}"
    return f"{text}; {nobody_works(here, job) or f'`nightshift wait {job.id}` waits for it'}"
