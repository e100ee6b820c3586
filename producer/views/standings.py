"""Where jobs stand, for everybody who shows them: by one function, which a wing has."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection
from nightshift.common.ledger.queries import job_pace, standings
from nightshift.common.ledger.queries.standings import Filter
from nightshift.common.states import ShownState
from nightshift.producer import wings
from nightshift.producer.advice.here import Here
from nightshift.producer.views.rates import Values


def with_standings(
    connection: Connection, rows: Sequence[Values], here: Here, tenant: str | None = None
) -> list[dict[Any, Any]]:
    """Rows of job_progress with their `standing`, None where no wing tells it: `word`, `kind`, `sentence`,
    `needs_person` and `since`; and with `waiting`, the sentence of a job that waits. Readers of a `tenant` see no names
    of machines, of others' jobs and of people.
    """
    found = [{**row, "standing": None, "waiting": None} for row in rows]
    for of_wing in wings.offered("standings"):
        found = of_wing(connection, found, here, tenant)
    return found


def unled(connection: Connection, here: Here) -> bool:
    """Whether nobody tells where jobs stand since nobody works, or no reaper lives."""
    return here.nobody or not standings.tellers(connection).has_reaper


def chosen(
    connection: Connection, wanted: Filter, here: Here, limit: int = 1000
) -> list[dict[Any, Any]]:
    """Rows of the newest jobs of a filter, as of `job_pace`, with their `standing`."""
    seen = replace(wanted, unled=unled(connection, here))
    ids = standings.newest(connection, seen, limit=limit)
    rows = with_standings(connection, job_pace.some(connection, ids), here, wanted.tenant)
    return [row for row in rows if fits(row, wanted)]


def fits(row: Values, wanted: Filter) -> bool:
    """Whether a job is of a filter, now that it is known where the job stands: what was told may be old."""
    found = row["standing"]
    if found is None:
        return True
    is_wanted = wanted.word is None or found.word == wanted.word
    return is_wanted and (found.needs_person or not wanted.needs_person)


def word(given: str | None) -> ShownState | None:
    """What people see of a state, as a user wrote it; BadInput for another word."""
    if given is not None and given not in list(ShownState):
        raise BadInput(f"{given!r} is not one of {', '.join(ShownState)}")
    return None if given is None else ShownState(given)
