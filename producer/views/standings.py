"""Standings of jobs for every view: computed by the wing that explains jobs, when they are read."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection
from nightshift.common.ledger.jobs import messages
from nightshift.common.ledger.queries import job_pace, standings
from nightshift.common.ledger.queries.standings import LAST, START, Filter, Key
from nightshift.common.public_text import shown_path
from nightshift.common.states import JobState, ShownState
from nightshift.producer import wings
from nightshift.producer.advice.here import Here
from nightshift.producer.views.rates import Values

PLACES = ("model", "output_uri")
"""Columns of `job_pace` that have a folder."""


def of(
    connection: Connection, job_ids: Collection[int], here: Here, tenant: str | None = None
) -> dict[int, Any]:
    """Return the standing of each job: `word`, `kind`, `sentence`, `needs_person` and `since`; empty if no wing explains
    jobs. Readers of a `tenant` see no names of machines, of jobs of other tenants and of people.
    """
    found: dict[int, Any] = {}
    for of_wing in wings.offered("standings"):
        found |= of_wing(connection, job_ids, here, tenant)
    return found


def with_standings(
    connection: Connection, rows: Sequence[Values], here: Here, tenant: str | None = None
) -> list[dict[Any, Any]]:
    """Return rows of job_progress with their `standing`, None if no wing explains jobs, and with `waiting`, the sentence
    of a job that waits; readers of a `tenant` see public messages.
    """
    known = of(connection, [row["job"] for row in rows], here, tenant)
    return joined(connection, rows, known, tenant)


def joined(
    connection: Connection, rows: Sequence[Values], known: Mapping[int, Any], tenant: str | None
) -> list[dict[Any, Any]]:
    """Return rows of job_progress with their `standing` and `waiting`."""
    found = [
        {**row, "standing": standing, "waiting": _waiting(standing)}
        for row in rows
        for standing in [known.get(row["job"])]
    ]
    if tenant is not None:
        return found
    wholes = messages.wholes(connection, [row["job"] for row in found])
    return [_in_full(row, wholes.get(row["job"], messages.NOTHING)) for row in found]


def without_places(
    connection: Connection, rows: Sequence[Values], tenant: str | None
) -> Sequence[Values]:
    """Return the rows; for readers of a `tenant` with the last names of folders that it did not name."""
    if tenant is None:
        return rows
    unnamed = messages.of_unnamed_places(connection, [row["job"] for row in rows])
    return [
        {**row, **{name: shown_path(row[name] or "", ()) or None for name in PLACES}}
        if row["job"] in unnamed
        else row
        for row in rows
    ]


def _in_full(row: Values, whole: messages.Whole) -> dict[Any, Any]:
    standing = row["standing"]
    if standing is not None:
        standing = replace(standing, sentence=whole.text(standing.sentence))
    return {**whole.row(row, "reason", "remark", "waiting"), "standing": standing}


def _waiting(standing: Any) -> str | None:
    return standing.sentence if standing and standing.word is ShownState.WAITS else None


@dataclass(frozen=True, slots=True)
class Board:
    """The standings of all unclosed jobs of a tenant, or of all tenants, and which jobs need a person."""

    standings: Mapping[int, Any]
    needing: Set[int]

    def with_word(self, word: ShownState | None) -> Set[int] | None:
        """Return the jobs with this word, None if the state of the job tells them."""
        if word is None or word.of_jobs is not JobState.RUNNING:
            return None
        return {id for id, each in self.standings.items() if each.word is word}

    def page(
        self, connection: Connection, wanted: Filter, *, limit: int, after: Key = START
    ) -> Sequence[Key]:
        """Return a page of jobs, those that need a person first."""
        among = self.with_word(wanted.word)
        return standings.needing_first(
            connection, wanted, self.needing, limit=limit, after=after, among=among
        )

    def newest(
        self, connection: Connection, wanted: Filter, *, limit: int, before: int = LAST
    ) -> list[int]:
        """Return the newest jobs of a filter."""
        among = self.with_word(wanted.word)
        if wanted.needs_person:
            among = self.needing if among is None else self.needing & among
        return standings.newest(connection, wanted, limit=limit, before=before, among=among)

    def joined(
        self, connection: Connection, rows: Sequence[Values], here: Here, tenant: str | None
    ) -> list[dict[Any, Any]]:
        """Return rows of job_progress with their `standing` and `waiting`."""
        closed = [row["job"] for row in rows if row["job"] not in self.standings]
        known = of(connection, closed, here, tenant) if closed else {}
        return joined(connection, rows, {**known, **self.standings}, tenant)


def board(
    connection: Connection, owner: str | None, here: Here, tenant: str | None = None
) -> Board:
    """Compute the standings of the unclosed jobs of `owner`, or of all tenants, for a reader of `tenant`."""
    known = of(connection, standings.unclosed(connection, owner), here, tenant)
    needing = {id for id, each in known.items() if each.needs_person}
    return Board(known, needing | set(standings.failed_lately(connection, owner)))


def chosen(
    connection: Connection, wanted: Filter, here: Here, limit: int = 1000
) -> list[dict[Any, Any]]:
    """Return rows of the newest jobs of a filter, as of `job_pace`, with their `standing`."""
    found = board(connection, wanted.tenant, here, wanted.tenant)
    ids = found.newest(connection, wanted, limit=limit)
    return found.joined(connection, job_pace.some(connection, ids), here, wanted.tenant)


def word(given: str | None) -> ShownState | None:
    """Parse a state as users see it; BadInput for another word."""
    if given is not None and given not in list(ShownState):
        raise BadInput(f"{given!r} is not one of {', '.join(ShownState)}")
    return None if given is None else ShownState(given)
