"""Holds: who works on a thing now, so that nobody else does. Batches of rows have leases instead.

A hold is taken under the lock of its subject's row, has a token that no hold had before, and ends by
itself after a while. Under that lock, what the holder writes names the token (`held`): a holder that was
too slow writes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection


class Kind(StrEnum):
    """What is held: files of a job that is over, the rows of a closed job on their way to or from its
    archive, a look at the input of a job, a batch of the OpenAI API.
    """

    FINISH = "finish"
    ARCHIVE = "archive"
    LOOK = "look"
    API_BATCH = "api_batch"


SECONDS: Mapping[Kind, float] = {
    Kind.FINISH: 60.0,
    # Longer than it takes to read a file of the archive from an object store.
    Kind.ARCHIVE: 600.0,
    Kind.LOOK: 60.0,
    Kind.API_BATCH: 60.0,
}
"""How long a holder has the subject to itself before it must say so again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold of this process: of a job by its number, of an API batch by its id."""

    kind: Kind
    subject: str
    token: int


TAKE = text("""
    INSERT INTO holds AS h (kind, subject, token, holder, until)
    VALUES (:kind, :subject, nextval('hold_tokens'), :holder,
            CASE WHEN :for_good THEN 'infinity' ELSE now() + make_interval(secs => :seconds) END)
    ON CONFLICT (kind, subject) DO UPDATE
    SET token = excluded.token, holder = excluded.holder, until = excluded.until
    WHERE h.until < now() OR :over
    RETURNING token
""")

RENEW = text("""
    UPDATE holds SET until = now() + make_interval(secs => :seconds)
    WHERE kind = :kind AND subject = :subject AND token = :token
""")

RELEASE = text("DELETE FROM holds WHERE kind = :kind AND subject = :subject AND token = :token")

END = text("DELETE FROM holds WHERE kind = :kind AND subject = :subject")


def free(kind: Kind, subject: str) -> str:
    """SQL: no process has this subject now."""
    return f"""NOT EXISTS (SELECT FROM holds h WHERE h.kind = '{kind}'
                           AND h.subject = CAST({subject} AS text) AND h.until >= now())"""


def held(kind: Kind, subject: str) -> str:
    """SQL: the process with `:token` still has this subject."""
    return f"""EXISTS (SELECT FROM holds h WHERE h.kind = '{kind}'
                       AND h.subject = CAST({subject} AS text) AND h.token = :token)"""


def tried_at(kind: Kind, subject: str) -> str:
    """SQL: the end of the last hold of this subject; null where nobody has tried it."""
    return f"""(SELECT h.until FROM holds h
                WHERE h.kind = '{kind}' AND h.subject = CAST({subject} AS text))"""


def take(
    connection: Connection,
    kind: Kind,
    subject: int | str,
    holder: str,
    *,
    over: bool = False,
    for_good: bool = False,
) -> Hold | None:
    """Takes a subject whose row the caller has locked; None where somebody has it, unless it is taken
    `over`. A hold `for_good` ends with its subject alone.
    """
    given = {"kind": str(kind), "subject": str(subject), "holder": holder}
    how = {"seconds": SECONDS[kind], "over": over, "for_good": for_good}
    token = connection.scalar(TAKE, given | how)
    return None if token is None else Hold(kind, str(subject), token)


def renew(connection: Connection, hold: Hold) -> bool:
    """Keeps a hold for as long again; False where it is lost."""
    given = {**_values(hold), "seconds": SECONDS[hold.kind]}
    return connection.execute(RENEW, given).rowcount == 1


def keep_free_of_others(connection: Connection, kind: Kind, subject: int | str) -> None:
    """Keeps other processes from taking the subject for a while. This is for work that has a fence of its own, and
    that several processes may do together. A process that has a hold keeps it.
    """
    statement = text("""
        INSERT INTO holds AS h (kind, subject, token, holder, until)
        VALUES (:kind, :subject, nextval('hold_tokens'), 'command',
                now() + make_interval(secs => :seconds))
        ON CONFLICT (kind, subject) DO UPDATE SET until = excluded.until
    """)
    given = {"kind": str(kind), "subject": str(subject), "seconds": SECONDS[kind]}
    connection.execute(statement, given)


def is_held(connection: Connection, hold: Hold) -> bool:
    """Whether a hold is not lost. True holds to the end of the transaction under the lock of the subject's row
    alone.
    """
    statement = text(
        "SELECT true FROM holds WHERE kind = :kind AND subject = :subject AND token = :token"
    )
    return connection.scalar(statement, _values(hold)) is not None


def has(connection: Connection, kind: Kind, subject: int | str, holder: str) -> bool:
    """Whether this holder was the last who took the subject, and has not released it."""
    statement = text("""
        SELECT true FROM holds WHERE kind = :kind AND subject = :subject AND holder = :holder
    """)
    given = {"kind": str(kind), "subject": str(subject), "holder": holder}
    return connection.scalar(statement, given) is not None


def postpone(connection: Connection, hold: Hold, seconds: float) -> bool:
    """No process takes the subject for `seconds` seconds. With 0 the subject is free at once, but subjects that
    were never tried come first. False where the hold is lost, or was ended.
    """
    return connection.execute(RENEW, {**_values(hold), "seconds": seconds}).rowcount == 1


def release(connection: Connection, hold: Hold) -> None:
    """Releases a hold, if it is not lost."""
    connection.execute(RELEASE, _values(hold))


def end(connection: Connection, kind: Kind, subject: int | str) -> None:
    """Ends the hold of a subject, also that of another process: no work is left for it."""
    connection.execute(END, {"kind": str(kind), "subject": str(subject)})


def _values(hold: Hold) -> dict[str, object]:
    return {"kind": str(hold.kind), "subject": hold.subject, "token": hold.token}
