"""Lists of jobs: by state, tenant and name, and with those first that need a person."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.states import JobState, ShownState

REAPER_SILENT_SECONDS = 30.0
"""A reaper writes every 5 s that it is alive: silent for longer, it has ended, hangs or is cut off."""

FAILED_DAYS = 7
"""A job that failed needs a person for this long after its end."""

LAST = 2**63 - 1


class Key(NamedTuple):
    """A position in a list that has the jobs that need a person first, then the newest."""

    needs_person: bool
    job_id: int


START = Key(True, LAST)
"""The position before every job."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are listed: those of a tenant, in a state, at work or waiting, with a part of a name, and only
    those that need a person.
    """

    tenant: str | None = None
    state: JobState | None = None
    word: ShownState | None = None
    name: str | None = None
    needs_person: bool = False


UNCLOSED = """
    SELECT id FROM jobs WHERE closed_at IS NULL AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
"""

FAILED = f"""
    SELECT id FROM jobs
    WHERE state = 'failed' AND finished_at > now() - interval '{FAILED_DAYS} days'
      AND closed_at IS NOT NULL AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
"""


def unclosed(connection: Connection, tenant: str | None) -> list[int]:
    """Return the jobs that are not closed, of a tenant or of all."""
    return list(connection.scalars(text(UNCLOSED), {"tenant": tenant}))


def failed_lately(connection: Connection, tenant: str | None) -> list[int]:
    """Return the closed jobs that failed within FAILED_DAYS, of a tenant or of all."""
    return list(connection.scalars(text(FAILED), {"tenant": tenant}))


def newest(
    connection: Connection,
    wanted: Filter,
    *,
    limit: int,
    before: int = LAST,
    among: Collection[int] | None = None,
    without: Collection[int] = (),
) -> list[int]:
    """Return at most `limit` jobs with ids below `before`, the newest first: those of the filter's tenant, state
    and name, `among` these ids and `without` those.
    """
    clauses = ["j.id < :before"]
    if wanted.tenant is not None:
        clauses.append("j.tenant = :tenant")
    if wanted.state is not None:
        clauses.append("j.state = :state")
    if wanted.word is not None:
        clauses.append("j.state = :word_state")
    if wanted.name is not None:
        clauses.append("strpos(lower(j.name), lower(:name)) > 0")
    if among is not None:
        clauses.append("j.id = ANY (CAST(:among AS bigint[]))")
    if without:
        clauses.append("j.id <> ALL (CAST(:without AS bigint[]))")
    statement = (
        f"SELECT j.id FROM jobs j WHERE {' AND '.join(clauses)} ORDER BY j.id DESC LIMIT :limit"
    )
    values = {
        "before": before,
        "tenant": wanted.tenant,
        "state": wanted.state,
        "word_state": None if wanted.word is None else wanted.word.of_jobs,
        "name": wanted.name,
        "among": None if among is None else list(among),
        "without": list(without),
        "limit": limit,
    }
    return list(connection.scalars(text(statement), values))


def needing_first(
    connection: Connection,
    wanted: Filter,
    needing: Collection[int],
    *,
    limit: int,
    after: Key = START,
    among: Collection[int] | None = None,
) -> Sequence[Key]:
    """Return at most `limit` jobs of the filter after a position: the jobs `needing` a person first, each group with
    the newest job first; `among` these ids only.
    """
    found: list[Key] = []
    if after.needs_person:
        first = needing if among is None else set(needing) & set(among)
        ids = newest(connection, wanted, limit=limit, before=after.job_id, among=first)
        found = [Key(True, id) for id in ids]
    if len(found) < limit and not wanted.needs_person:
        before = LAST if after.needs_person else after.job_id
        left = limit - len(found)
        ids = newest(connection, wanted, limit=left, before=before, among=among, without=needing)
        found += [Key(False, id) for id in ids]
    return found
