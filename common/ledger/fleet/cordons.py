"""Cordons: machines, workers and slots that take no new work, and those that are drained.

A supervisor reads the cordons of its slots with each look (`fleet.report`), and no plan gives such a
slot an engine. A cordon of a host holds for every worker there, also for those that start later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Connection


@dataclass(frozen=True, slots=True)
class Target:
    """What a cordon is about: a `host` by its name, or a `worker`.

    The name of a worker is that of its supervisor, or SUPERVISOR/SLOT for one of its slots.
    """

    kind: str
    name: str

    @property
    def label(self) -> str:
        """The target as messages name it."""
        return f"{self.kind} {self.name}"


FIND = text("""
    SELECT DISTINCT kind, name, kind = 'host' AS is_host FROM (
        SELECT 'host' AS kind, host AS name FROM slots WHERE host = :name
        UNION ALL SELECT 'host', host FROM workers WHERE host = :name AND state <> 'ended'
        UNION ALL SELECT kind, name FROM cordons WHERE name = :name
        UNION ALL SELECT 'worker', supervisor FROM slots WHERE supervisor = :name
        UNION ALL SELECT 'worker', concat_ws('/', supervisor, slot) FROM slots
                  WHERE concat_ws('/', supervisor, slot) = :name
        UNION ALL SELECT 'worker', concat_ws('/', supervisor, slot) FROM workers
                  WHERE id = :name AND state <> 'ended'
    ) AS known ORDER BY is_host DESC LIMIT 1
""")
"""What a name means: a host first, then a supervisor, a slot, or the child that a slot has now."""

CORDON = text("""
    INSERT INTO cordons AS c (kind, name, drains) VALUES (:kind, :name, :drains)
    ON CONFLICT (kind, name) DO UPDATE SET drains = c.drains OR excluded.drains
    WHERE excluded.drains AND NOT c.drains
""")
"""Adds a cordon, or makes one drain."""

STATE = text("""
    SELECT CASE WHEN drains THEN 'drained' ELSE 'cordoned' END FROM cordons
    WHERE kind = :kind AND name = :name
""")
"""Which cordon a target has of its own."""

SLOTS = text("""
    SELECT count(*) AS slots, count(DISTINCT s.supervisor) AS workers,
           count(c.supervisor) AS cordoned
    FROM slots s LEFT JOIN cordoned_slots c USING (supervisor, slot)
    WHERE CASE :kind WHEN 'host' THEN s.host = :name
               ELSE :name IN (s.supervisor, concat_ws('/', s.supervisor, s.slot)) END
      AND s.seen_at > now() - interval '1 minute'
""")
"""How many living slots a target has, of how many workers, and how many of them are cordoned."""


def find(connection: Connection, name: str) -> Target | None:
    """The host, worker or slot of this name; the id of a child means the slot that it has."""
    found = connection.execute(FIND, {"name": name}).one_or_none()
    return None if found is None else Target(found.kind, found.name)


def lock(connection: Connection) -> None:
    """Lets nobody else change a cordon until the end of the transaction; who reads them does not wait."""
    connection.execute(text("LOCK TABLE cordons IN SHARE ROW EXCLUSIVE MODE"))


def cordon(connection: Connection, target: Target, *, drains: bool) -> None:
    """From the next look of its supervisor on, the target takes no new work. With `drains` its
    children leave as by SIGTERM, and none is started.
    """
    given = {"kind": target.kind, "name": target.name, "drains": drains}
    connection.execute(CORDON, given)


def uncordon(connection: Connection, target: Target) -> None:
    """Takes the cordon of the target away; those of what it belongs to, or consists of, stay."""
    statement = text("DELETE FROM cordons WHERE kind = :kind AND name = :name")
    connection.execute(statement, {"kind": target.kind, "name": target.name})


def state(connection: Connection, target: Target) -> str | None:
    """`cordoned` or `drained`; None for a target without a cordon of its own."""
    found: str | None = connection.scalar(STATE, {"kind": target.kind, "name": target.name})
    return found


def slots(connection: Connection, target: Target) -> RowMapping:
    """How many living `slots` a target has, of how many `workers`, and how many are `cordoned`."""
    given = {"kind": target.kind, "name": target.name}
    return connection.execute(SLOTS, given).mappings().one()


HOLDING = text("""
    SELECT DISTINCT k.kind, k.name FROM slots s JOIN cordons k
      ON (k.kind, k.name) IN (('host', s.host), ('worker', s.supervisor),
                              ('worker', concat_ws('/', s.supervisor, s.slot)))
    WHERE CASE :kind WHEN 'host' THEN s.host = :name
               ELSE :name IN (s.supervisor, concat_ws('/', s.supervisor, s.slot)) END
      AND s.seen_at > now() - interval '1 minute' AND (k.kind, k.name) <> (:kind, :name)
    ORDER BY k.kind, k.name
""")
"""Other cordons that keep work from the living slots of a target."""


def holding(connection: Connection, target: Target) -> list[Target]:
    """The other cordons that hold slots of the target: of what it belongs to, or consists of."""
    found = connection.execute(HOLDING, {"kind": target.kind, "name": target.name})
    return [Target(row.kind, row.name) for row in found]


def listed(connection: Connection) -> Sequence[RowMapping]:
    """Every cordon: kind, name, whether it drains, and since when."""
    statement = text("SELECT kind, name, drains, since FROM cordons ORDER BY kind, name")
    return connection.execute(statement).mappings().all()


def states(connection: Connection) -> dict[str, str]:
    """`cordoned` or `drained` by the name of each target that has a cordon of its own."""
    return {
        each["name"]: "drained" if each["drains"] else "cordoned" for each in listed(connection)
    }


def count_in_pool(connection: Connection, pool: str, alive_seconds: float) -> int:
    """Slots of living machines of a pool that are cordoned."""
    statement = text("""
        SELECT count(*) FROM slots s JOIN cordoned_slots c USING (supervisor, slot)
        WHERE s.pool = :pool AND s.seen_at > now() - make_interval(secs => :alive)
          AND s.state <> 'lost'
    """)
    return int(connection.execute(statement, {"pool": pool, "alive": alive_seconds}).scalar_one())
