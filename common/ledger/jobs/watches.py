"""Watched jobs: when the input of each is looked at, and what a look found that is not as planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import text

from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.jobs import messages

FileState = Literal["waiting", "refused", "changed", "gone"]
"""A new file that is planned once a second look finds it unchanged or, if it has a reason, once the tenant's limit
allows; a new file that was refused; a planned file that changed; a planned file that is gone."""

Facts = tuple[int, str]
"""Size in bytes and fingerprint of a file."""


@dataclass(frozen=True, slots=True)
class UnplannedFile:
    """A file that is not as planned, since the look that first saw it with these facts."""

    uri: str
    size: int
    fingerprint: str
    state: FileState
    seen_at: datetime
    why: str | None = None

    @property
    def facts(self) -> Facts:
        """The facts that tell one version of the file from another."""
        return self.size, self.fingerprint


@dataclass(frozen=True, slots=True)
class DueLook:
    """A look that this process makes now, and has to itself; `now` is Postgres's time."""

    hold: Hold
    job_id: int
    every_seconds: int
    now: datetime
    listing: str | None


DUE = text(f"""
    SELECT w.job_id FROM job_watches w JOIN jobs j ON j.id = w.job_id
    WHERE w.next_look_at <= now() AND {holds.free(Kind.LOOK, "w.job_id")}
      AND j.state IN ('running', 'paused', 'completed')
      AND NOT EXISTS (
          SELECT FROM job_watches other JOIN jobs o ON o.id = other.job_id AND o.tenant = j.tenant
          WHERE j.tenant <> '' AND NOT {holds.free(Kind.LOOK, "other.job_id")})
    ORDER BY w.next_look_at LIMIT 1 FOR UPDATE OF w SKIP LOCKED
""")
"""The watched job whose look has been due for longest; none that somebody looks at, nor of a tenant of which a look is
under way: slow looks of a tenant hold up no other.
"""

BEGIN_LOOK = text("""
    UPDATE job_watches SET next_look_at = now() + make_interval(secs => every_seconds)
    WHERE job_id = :id RETURNING job_id, every_seconds, now() AS now, listing
""")

SET_UNPLANNED = text("""
    INSERT INTO unplanned_files (job_id, uri, size, fingerprint, state, seen_at, why)
    SELECT :id, * FROM unnest(
        CAST(:uri AS text[]), CAST(:size AS bigint[]), CAST(:fingerprint AS text[]),
        CAST(:state AS text[]), CAST(:seen_at AS timestamptz[]), CAST(:why AS text[]))
    ON CONFLICT (job_id, uri) DO UPDATE
    SET size = excluded.size, fingerprint = excluded.fingerprint, state = excluded.state,
        seen_at = excluded.seen_at, why = excluded.why
    WHERE (unplanned_files.size, unplanned_files.fingerprint, unplanned_files.state, unplanned_files.why)
          IS DISTINCT FROM (excluded.size, excluded.fingerprint, excluded.state, excluded.why)
""")
"""Files that are not as planned; one with the same facts keeps the time at which it was seen."""


def start(connection: Connection, job_id: int, every_seconds: int) -> bool:
    """Watches the input of a job from now on, or at another pace; False where it is watched so."""
    statement = text("""
        INSERT INTO job_watches (job_id, every_seconds, next_look_at)
        VALUES (:id, :every, now() + make_interval(secs => :every))
        ON CONFLICT (job_id) DO UPDATE
        SET every_seconds = :every, next_look_at = excluded.next_look_at
        WHERE job_watches.every_seconds <> :every
    """)
    return connection.execute(statement, {"id": job_id, "every": every_seconds}).rowcount > 0


def stop(connection: Connection, job_id: int) -> bool:
    """Ends the watch of a job; False where there was none. The job closes when its rows are done."""
    # In the order of a look that ends: the watch, its files, its hold.
    statement = text("DELETE FROM job_watches WHERE job_id = :id")
    watched = connection.execute(statement, {"id": job_id}).rowcount > 0
    connection.execute(text("DELETE FROM unplanned_files WHERE job_id = :id"), {"id": job_id})
    holds.end(connection, Kind.LOOK, job_id)
    return watched


def status(connection: Connection, job_id: int) -> Row | None:
    """The row of the view watch_status; None for a job that is not watched."""
    statement = text("SELECT * FROM watch_status WHERE job = :id")
    return connection.execute(statement, {"id": job_id}).mappings().one_or_none()


def take_due(connection: Connection, reaper: str) -> DueLook | None:
    """Takes the look that is most overdue; None where none is due."""
    due = connection.scalar(DUE)
    hold = None if due is None else holds.take(connection, Kind.LOOK, due, reaper)
    if hold is None:
        return None
    return DueLook(hold, **connection.execute(BEGIN_LOOK, {"id": due}).mappings().one())


def is_looking(connection: Connection, hold: Hold) -> bool:
    """Locks the row of a watch; whether this look is still the one that may write. False where the watch
    has ended.
    """
    statement = text("SELECT true FROM job_watches WHERE job_id = :id FOR UPDATE")
    there = connection.scalar(statement, {"id": int(hold.subject)})
    return there is not None and holds.is_held(connection, hold)


def end_look(
    connection: Connection,
    hold: Hold,
    *,
    files: int | None,
    listing: str | None,
    error: str | BaseException | None,
) -> None:
    """Writes what became of a look: how many `files` were listed, and the hash of their `listing`; or
    the `error` for which it came to nothing. Nothing where another reaper looks by now.
    """
    statement = text(f"""
        UPDATE job_watches SET error = :error, listing = :listing,
               looked_at = CASE WHEN CAST(:error AS text) IS NULL THEN now() ELSE looked_at END,
               files_listed = coalesce(CAST(:files AS bigint), files_listed)
        WHERE job_id = :id AND {holds.held(Kind.LOOK, "job_id")}
    """)
    kept = None if error is None else messages.stored(connection, int(hold.subject), error)
    found = {"files": files, "listing": listing, "error": kept}
    connection.execute(statement, {"id": int(hold.subject), "token": hold.token, **found})
    holds.release(connection, hold)


def planned_facts(connection: Connection, job_id: int, uris: Sequence[str]) -> dict[str, Facts]:
    """Those of these files that the job has, with their facts as planned."""
    statement = text("""
        SELECT uri, size, fingerprint FROM input_files
        WHERE job_id = :id AND uri = ANY (CAST(:uris AS text[]))
    """)
    found = connection.execute(statement, {"id": job_id, "uris": list(uris)})
    return {uri: (size, fingerprint) for uri, size, fingerprint in found}


def all_planned_facts(connection: Connection, job_id: int) -> dict[str, Facts]:
    """Every file of a job with its facts as planned."""
    statement = text("SELECT uri, size, fingerprint FROM input_files WHERE job_id = :id")
    found = connection.execute(statement, {"id": job_id})
    return {uri: (size, fingerprint) for uri, size, fingerprint in found}


def named_files(connection: Connection, job_id: int) -> set[str]:
    """Files that a command named, which the spec's input need not list."""
    statement = text("""
        SELECT f.uri FROM generations g JOIN input_files f
            ON f.job_id = g.job_id AND f.file_index >= g.first_file AND f.file_index < g.stop_file
        WHERE g.job_id = :id AND g.source = 'files'
    """)
    return set(connection.scalars(statement, {"id": job_id}))


def unplanned(
    connection: Connection, job_id: int, state: FileState | None = None, limit: int | None = None
) -> list[UnplannedFile]:
    """Files of a job that are not as planned, by name, of one state or of all."""
    statement = text("""
        SELECT uri, size, fingerprint, state, seen_at, why FROM unplanned_files
        WHERE job_id = :id AND state = coalesce(CAST(:state AS text), state)
        ORDER BY uri LIMIT :limit
    """)
    found = connection.execute(statement, {"id": job_id, "state": state, "limit": limit})
    return [UnplannedFile(*row) for row in found]


def without_room(
    connection: Connection, job_id: int, limit: int
) -> tuple[int, list[UnplannedFile]]:
    """Return how many new files of a job exceed the limit of its tenant, and the first `limit` of them by name."""
    statement = text("""
        SELECT uri, size, fingerprint, state, seen_at, why, count(*) OVER () FROM unplanned_files
        WHERE job_id = :id AND state = 'waiting' AND why IS NOT NULL ORDER BY uri LIMIT :limit
    """)
    found = connection.execute(statement, {"id": job_id, "limit": limit}).all()
    return (found[0][-1] if found else 0), [UnplannedFile(*row[:-1]) for row in found]


def set_unplanned(connection: Connection, job_id: int, found: Mapping[str, UnplannedFile]) -> None:
    """Replaces the files that earlier looks found by those that this look found."""
    gone = text("""
        DELETE FROM unplanned_files
        WHERE job_id = :id AND NOT uri = ANY (CAST(:uris AS text[]))
    """)
    connection.execute(gone, {"id": job_id, "uris": list(found)})
    if found:
        columns = zip(*(_values(file) for file in found.values()), strict=True)
        names = ("uri", "size", "fingerprint", "state", "seen_at", "why")
        arrays = {name: list(values) for name, values in zip(names, columns, strict=True)}
        connection.execute(SET_UNPLANNED, {"id": job_id, **arrays})


def forget(connection: Connection, job_id: int, uris: Sequence[str]) -> None:
    """Files that are planned now."""
    statement = text("""
        DELETE FROM unplanned_files WHERE job_id = :id AND uri = ANY (CAST(:uris AS text[]))
    """)
    connection.execute(statement, {"id": job_id, "uris": list(uris)})


def _values(file: UnplannedFile) -> tuple[object, ...]:
    return file.uri, file.size, file.fingerprint, file.state, file.seen_at, file.why
