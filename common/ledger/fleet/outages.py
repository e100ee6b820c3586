"""Outages that workers and reapers wait for, as they tell of them and as everybody who looks reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.text import counted, plural

LAPSE_SECONDS = 60
"""An outage that was not told again within this time is over, or the process that waited is gone."""


class Kind(StrEnum):
    """What is waited for: the storage of a job's files, a rate limit, a remote server."""

    STORAGE = "storage"
    RATE = "rate"
    SERVER = "server"


WAITED_FOR = {
    Kind.STORAGE: "the storage of its files",
    Kind.RATE: "a rate limit",
    Kind.SERVER: "the remote server",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that lasts for `seconds` until now; without a job it is that of a whole engine."""

    kind: Kind
    job_id: int | None
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Teller:
    """Who waits: a worker child with its pool and engine, or a reaper, which has neither."""

    who: str
    host: str
    pool: str | None = None
    engine_key: str | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """What one job waits for: how many worker children wait (0: a reaper, with the end of the job), on
    which hosts, for how long, and why, by whoever told last.
    """

    job_id: int
    name: str
    kind: Kind
    workers: int
    hosts: tuple[str, ...]
    since: datetime
    seconds: float
    why: str

    def sentence(self, *, is_guest: bool = False) -> str:
        """The outage as a sentence. A guest sees no hosts and causes, which name things of the operator."""
        who = "a reaper has"
        if self.workers:
            who = f"{counted(self.workers, 'worker')} {plural(self.workers, 'has', 'have')}"
        said = f"{who} waited {self.seconds:.0f} s for {WAITED_FOR[self.kind]}"
        return said if is_guest else f"{said}, {self._where_and_why}"

    def brief(self, *, is_guest: bool = False) -> str:
        """The same without figures that change while it lasts."""
        who = "workers wait" if self.workers else "a reaper waits"
        said = f"{who} for {WAITED_FOR[self.kind]}"
        return said if is_guest else f"{said}, {self._where_and_why}"

    @property
    def _where_and_why(self) -> str:
        return f"on {', '.join(self.hosts)}: {self.why}"

    def as_json(self, *, is_guest: bool = False) -> dict[str, object]:
        """The same for machines."""
        return {
            "kind": str(self.kind),
            "since": self.since.isoformat(),
            "seconds": round(self.seconds, 1),
            "workers": self.workers,
            "sentence": self.sentence(is_guest=is_guest),
        }


FORGET = text("""
    DELETE FROM outages WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM outages WHERE who = :who OR until < now() - interval '1 hour'
        FOR UPDATE SKIP LOCKED))
""")
"""What the teller told before, and outages that ended an hour ago, except rows that another teller deletes
just now."""

TELL = text("""
    INSERT INTO outages (who, host, kind, job_id, pool, engine_key, why, since, until)
    VALUES (:who, :host, :kind, :job_id, :pool, :engine_key, :why,
            now() - make_interval(secs => :seconds), now() + make_interval(secs => :lapse))
""")


def tell(connection: Connection, teller: Teller, waits: Sequence[Wait]) -> None:
    """Everything that the teller waits for now; without waits all are over."""
    connection.execute(FORGET, {"who": teller.who})
    for wait in waits:
        connection.execute(
            TELL,
            {
                "who": teller.who,
                "host": teller.host,
                "pool": teller.pool,
                "engine_key": teller.engine_key,
                "kind": wait.kind,
                "job_id": wait.job_id,
                "why": wait.why,
                "seconds": wait.seconds,
                "lapse": LAPSE_SECONDS,
            },
        )


LISTED = text("""
    SELECT j.id, j.name, o.kind, count(o.engine_key) AS workers,
           array_agg(DISTINCT o.host) AS hosts, min(o.since) AS since,
           extract(epoch FROM now() - min(o.since))::float8 AS seconds,
           (array_agg(o.why ORDER BY o.until DESC))[1] AS why
    FROM open_outages o JOIN jobs j ON j.id = o.job
    WHERE j.id = coalesce(CAST(:job AS bigint), j.id)
    GROUP BY j.id, j.name, o.kind ORDER BY j.id, o.kind
""")


def listed(connection: Connection, job_id: int | None = None) -> list[Outage]:
    """What is waited for now, of one job or of all; the one function of everybody who says it."""
    return [
        Outage(
            row.id,
            row.name,
            Kind(row.kind),
            row.workers,
            tuple(row.hosts),
            row.since,
            row.seconds,
            row.why,
        )
        for row in connection.execute(LISTED, {"job": job_id})
    ]
