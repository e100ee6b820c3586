"""Where jobs stand, for everybody who shows them: by one function, which a wing has."""

from collections.abc import Sequence
from typing import Any

from nightshift.common.ledger import Connection
from nightshift.producer import wings
from nightshift.producer.advice.here import Here
from nightshift.producer.views.rates import Values


def with_standings(
    connection: Connection, rows: Sequence[Values], here: Here, tenant: str | None = None
) -> list[dict[Any, Any]]:
    """Rows of job_progress with their `standing`, None where no wing tells it: `word`, `kind`, `sentence`,
    `needs_person` and `since`. Readers of a `tenant` see no names of machines, of others' jobs and of people.
    """
    found = [{**row, "standing": None} for row in rows]
    for of_wing in wings.offered("standings"):
        found = of_wing(connection, found, here, tenant)
    return found
