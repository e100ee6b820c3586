"""The texts of errors that the ledger keeps of a job: the tables have what the tenant of the job may read, and
`whole_messages` has the whole text of those that leave something out, for operators.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from nightshift.common import public_text
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs.job_roots import Admitted, owned
from nightshift.common.text import kept_message

OWNER = text("""
    SELECT j.tenant, j.roots, j.uploads, j.outputs, t.roots AS tenant_roots
    FROM jobs j LEFT JOIN tenants t ON t.name = j.tenant WHERE j.id = :id
""")

KEEP = text("""
    INSERT INTO whole_messages (job_id, public, message) VALUES (:id, :public, :message)
    ON CONFLICT (job_id, public) DO UPDATE SET message = excluded.message
    WHERE whole_messages.message <> excluded.message
""")


def stored(connection: Connection, job_id: int, error: str | BaseException) -> str:
    """Return the text that the tables of the ledger keep of an error of a job, and keep the whole text beside it if
    the tenant of the job may not read all of it. A `str` has nothing that a tenant may not read. A job of the command
    line has no tenant, and all of its texts are whole.
    """
    if isinstance(error, str):
        return error
    row = connection.execute(OWNER, {"id": job_id}).one_or_none()
    own: Collection[str] | None = ()
    if row is not None:
        admitted = Admitted(row.roots, row.uploads, row.outputs)
        own = owned(row.tenant, admitted, row.tenant_roots)
    public = kept_message(public_text.shown_error(error, None if own is None else tuple(own)))
    whole = kept_message(str(error) or type(error).__name__)
    if public != whole:
        connection.execute(KEEP, {"id": job_id, "public": public, "message": whole})
    return public


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole messages of a job, by the public ones."""

    _found: tuple[tuple[str, str], ...] = ()

    def text(self, public: str | None) -> str | None:
        """A text of the job with each public message in it replaced by the whole one."""
        if public is not None:
            for message, whole in self._found:
                public = public.replace(message, whole)
        return public

    def row(self, row: Mapping[Any, Any], *names: str) -> Mapping[Any, Any]:
        """A row of the job with whole messages in these columns."""
        if not self._found:
            return row
        return {**row, **{name: self.text(row[name]) for name in names if row.get(name)}}


NOTHING = Whole()
"""For readers of a tenant."""


def of_unnamed_places(connection: Connection, job_ids: Iterable[int]) -> set[int]:
    """Those of these jobs whose tenant did not name their files and model, as it is with batches of the OpenAI API."""
    statement = text("""
        SELECT id FROM jobs
        WHERE id = ANY (CAST(:ids AS bigint[])) AND tenant <> '' AND roots IS NULL
    """)
    return set(connection.scalars(statement, {"ids": list(job_ids)}))


def whole(connection: Connection, job_id: int) -> Whole:
    """The whole messages of a job, for readers who may see everything."""
    return wholes(connection, [job_id]).get(job_id, NOTHING)


def wholes(connection: Connection, job_ids: Iterable[int]) -> dict[int, Whole]:
    """The same of these jobs, by the number of the job; none of a job whose public messages are whole."""
    statement = text("""
        SELECT job_id, public, message FROM whole_messages
        WHERE job_id = ANY (CAST(:ids AS bigint[])) ORDER BY length(public) DESC, public
    """)
    found: dict[int, list[tuple[str, str]]] = {}
    for job_id, public, message in connection.execute(statement, {"ids": list(job_ids)}):
        found.setdefault(job_id, []).append((public, message))
    return {job_id: Whole(tuple(messages)) for job_id, messages in found.items()}
