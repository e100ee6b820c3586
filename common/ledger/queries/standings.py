"""Where jobs stand, as a reaper has told it: read, listed by key, and written."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.holds import Kind
from nightshift.common.states import JobState, ShownState

REAPER_SILENT_SECONDS = 30.0
"""A reaper notes every 5 s that it lives: silent for longer, it is gone, frozen or cut off."""

FAILED_DAYS = 7
"""So long after its end a job that failed waits for a person."""

LAST = 2**63 - 1


class Key(NamedTuple):
    """A place in a list in which jobs that need a person come first, then the newest."""

    needs_person: bool
    job_id: int


START = Key(True, LAST)
"""The place before every job."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are listed: those of a tenant, of a state, at work or waiting, with a part of a name, and those
    that need a person alone. `unled` says that nobody tells where jobs stand: then every open job that is not
    paused counts as one that needs a person, and every running job as one at work and one that waits.
    """

    tenant: str | None = None
    state: JobState | None = None
    word: ShownState | None = None
    name: str | None = None
    needs_person: bool = False
    unled: bool = False

    def given(self) -> dict[str, object]:
        """Values for the statements."""
        return {**asdict(self), "word_state": None if self.word is None else self.word.of_jobs}


@dataclass(frozen=True, slots=True)
class Tellers:
    """Whether somebody tells where jobs stand, and the age of the last sign of any reaper in seconds."""

    tell: bool
    reaper_seconds: float | None

    @property
    def has_reaper(self) -> bool:
        """Whether a reaper was seen lately."""
        return self.reaper_seconds is not None and self.reaper_seconds < REAPER_SILENT_SECONDS


TELLERS = text(f"""
    SELECT EXISTS (SELECT FROM holds WHERE kind = '{Kind.STANDINGS}' AND until > now()) AS tell,
           (SELECT extract(epoch FROM now() - max(seen_at))::float8 FROM reapers) AS reaper_seconds
""")

STORED = text("""
    SELECT s.*, extract(epoch FROM now() - s.since)::float8 AS seconds,
           s.state = j.state AND (j.closed_at IS NULL OR s.told_at >= j.closed_at) AS fits,
           j.closed_at IS NOT NULL AS over
    FROM job_standings s JOIN jobs j ON j.id = s.job_id
    WHERE s.job_id = ANY (CAST(:ids AS bigint[]))
""")
"""What is told of some jobs, how old its kind is, and whether the job is still in the state of then."""

TOLD = "EXISTS (SELECT FROM job_standings s WHERE s.job_id = j.id AND s.state = j.state AND {})"

NEED = f"""
    ({TOLD.format("s.needs_person")} OR (:unled AND j.closed_at IS NULL AND j.state <> 'paused'))
"""

IN_NEED = """
    j.id IN (SELECT job_id FROM job_standings WHERE needs_person
             UNION SELECT id FROM jobs WHERE :unled AND closed_at IS NULL)
"""
"""The same from the other side: a short list of jobs that may need a person."""


def tellers(connection: Connection) -> Tellers:
    """Who tells where jobs stand."""
    row = connection.execute(TELLERS).one()
    return Tellers(row.tell, row.reaper_seconds)


def stored(connection: Connection, ids: Collection[int]) -> dict[int, Row]:
    """What is told of these jobs; nothing of most jobs that are over."""
    found = connection.execute(STORED, {"ids": list(ids)}).mappings()
    return {row["job_id"]: row for row in found}


def newest(connection: Connection, wanted: Filter, *, limit: int, before: int = LAST) -> list[int]:
    """Numbers of at most `limit` jobs before the job `before`, the newest first."""
    need = [IN_NEED, NEED] if wanted.needs_person else []
    statement = text(_page([*_clauses(wanted), *need, "j.id < :before"]))
    given = {**wanted.given(), "before": before, "limit": limit}
    return list(connection.scalars(statement, given))


def for_persons_first(
    connection: Connection, wanted: Filter, *, limit: int, after: Key = START
) -> list[Key]:
    """At most `limit` jobs behind the place `after`: those that need a person first, each group with the newest
    job first.
    """
    clauses = _clauses(wanted)
    given = {**wanted.given(), "limit": limit, "after": after.job_id, "last": LAST}
    found: list[Key] = []
    if after.needs_person:
        statement = text(_page([*clauses, IN_NEED, NEED, "j.id < :after"]))
        found = [Key(True, row.id) for row in connection.execute(statement, given)]
    if len(found) < limit and not wanted.needs_person:
        below = ":last" if after.needs_person else ":after"
        statement = text(_page([*clauses, f"NOT {NEED}", f"j.id < {below}"]))
        given["limit"] = limit - len(found)
        found += [Key(False, row.id) for row in connection.execute(statement, given)]
    return found


def needing(connection: Connection, tenant: str | None, *, unled: bool) -> int:
    """How many jobs need a person."""
    wanted = Filter(tenant, unled=unled)
    where = " AND ".join([*_clauses(wanted), IN_NEED, NEED])
    return int(
        connection.scalar(text(f"SELECT count(*) FROM jobs j WHERE {where}"), wanted.given())
    )


def _clauses(wanted: Filter) -> list[str]:
    """Conditions on a job `j`, only those that are asked for: each has its index."""
    found = []
    if wanted.tenant is not None:
        found.append("j.tenant = :tenant")
    if wanted.state is not None:
        found.append("j.state = :state")
    if wanted.name is not None:
        found.append("strpos(lower(j.name), lower(:name)) > 0")
    if wanted.word is not None:
        found.append("j.state = :word_state")
        if wanted.word.of_jobs is JobState.RUNNING:
            found += ["j.closed_at IS NULL", f"(:unled OR {TOLD.format('s.word = :word')})"]
    return found


def _page(clauses: Sequence[str]) -> str:
    return f"SELECT j.id FROM jobs j WHERE {' AND '.join(clauses)} ORDER BY j.id DESC LIMIT :limit"


DUE = text("""
    WITH known AS (
        SELECT id, state, closed_at FROM jobs WHERE closed_at IS NULL
        UNION ALL
        SELECT id, state, closed_at FROM jobs
        WHERE state = 'failed' AND finished_at > now() - make_interval(days => :days)
          AND closed_at IS NOT NULL
    )
    SELECT k.id, s.job_id IS NULL OR s.state <> k.state OR k.closed_at IS NOT NULL AS changed
    FROM known k LEFT JOIN job_standings s ON s.job_id = k.id
    WHERE k.closed_at IS NULL OR s.job_id IS NULL OR s.state <> 'failed' OR s.told_at < k.closed_at
    ORDER BY 2 DESC, k.id <= :after, k.id LIMIT :limit
""")
"""Jobs whose state changed since they were told, then the others in turn: open ones, and those that failed lately."""

FORGET = text("""
    DELETE FROM job_standings s WHERE NOT EXISTS (
        SELECT FROM jobs j WHERE j.id = s.job_id AND (j.closed_at IS NULL OR (
            j.state = 'failed' AND j.finished_at > now() - make_interval(days => :days))))
""")

TELL = text("""
    INSERT INTO job_standings AS s
        (job_id, state, word, kind, sentence, guest_sentence, needs_person)
    SELECT * FROM unnest(
        CAST(:ids AS bigint[]), CAST(:states AS text[]), CAST(:words AS text[]), CAST(:kinds AS text[]),
        CAST(:sentences AS text[]), CAST(:guest_sentences AS text[]), CAST(:needs AS boolean[]))
    ON CONFLICT (job_id) DO UPDATE
    SET state = excluded.state, word = excluded.word, kind = excluded.kind, sentence = excluded.sentence,
        guest_sentence = excluded.guest_sentence, needs_person = excluded.needs_person,
        since = CASE WHEN s.kind = excluded.kind THEN s.since ELSE now() END, told_at = now()
""")


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of one job."""

    job_id: int
    state: str
    word: str
    kind: str
    sentence: str
    guest_sentence: str
    needs_person: bool


def due(connection: Connection, *, after: int, limit: int) -> list[tuple[int, bool]]:
    """Jobs to tell anew, and whether each has changed its state since: those first, then others with numbers
    above `after`, then those below.
    """
    given = {"after": after, "limit": limit, "days": FAILED_DAYS}
    return [(row.id, row.changed) for row in connection.execute(DUE, given)]


def tell(connection: Connection, told: Sequence[Told]) -> None:
    """Writes these rows."""
    if told:
        given = {
            "ids": [each.job_id for each in told],
            "states": [each.state for each in told],
            "words": [each.word for each in told],
            "kinds": [each.kind for each in told],
            "sentences": [each.sentence for each in told],
            "guest_sentences": [each.guest_sentence for each in told],
            "needs": [each.needs_person for each in told],
        }
        connection.execute(TELL, given)


def forget(connection: Connection) -> None:
    """Deletes the rows of jobs that are closed, except those that failed lately, and of jobs that are gone."""
    connection.execute(FORGET, {"days": FAILED_DAYS})
