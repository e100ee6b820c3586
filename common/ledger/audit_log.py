"""The audit log: who changed what, when, and from which machine.

Only changes that somebody asked for are in it. What the system does by itself stands in jobs, batches
and attempts.
"""

import json
import os
import pwd
import socket
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Actor, Connection, acting
from nightshift.common.text import storable

Change = dict[Any, Any]
"""A row of the audit log."""

RECORD = text("""
    INSERT INTO audit_log (who, host, action, job_id, subject, detail)
    VALUES (:who, :host, :action, :job_id, :subject, CAST(:detail AS jsonb))
""")
"""One change."""

OF_JOB = text("""
    SELECT happened_at, who, host, action, subject, detail FROM audit_log
    WHERE job_id = :job_id ORDER BY id
""")
"""The changes of one job."""

OF_SUBJECT = text("""
    SELECT happened_at, who, host, action, subject, detail FROM audit_log
    WHERE subject = :subject AND id > (SELECT coalesce(max(id), 0) - :most FROM audit_log)
    ORDER BY id
""")
"""The changes of a machine or of a batch of the API, among the newest of all."""

PAUSES = text("""
    SELECT DISTINCT ON (job_id) job_id, happened_at, who, host, action, subject, detail FROM audit_log
    WHERE job_id = ANY (CAST(:ids AS bigint[])) AND action = 'pause' ORDER BY job_id, id DESC
""")
"""The last pause of each job."""

LISTED = text("""
    SELECT id, happened_at, who, host, action, job_id, subject, detail FROM audit_log
    WHERE id < :before AND (CAST(:tenant AS text) IS NULL
                            OR job_id IN (SELECT id FROM jobs WHERE tenant = :tenant))
    ORDER BY id DESC LIMIT :limit
""")
"""Changes of everything, or of the jobs of a tenant, the newest first."""

MOST_LOOKED_AT = 10_000
"""Newest changes among which those of a subject are looked for, which no index finds."""

SOMEBODY = "an operator"
"""Who changed a job, for readers of its tenant, where that was nobody of the tenant."""


def record(
    connection: Connection,
    action: str,
    job_id: int | None = None,
    subject: str | None = None,
    detail: Mapping[str, object] | None = None,
    actor: Actor | None = None,
) -> None:
    """Write a row in the transaction of the change, so that both are there or neither is.

    The change is that of the `actor`, else of the connection's, see `Ledger.acting`, else of the user of this process.
    `detail` must fit into JSON; a field that changed is a list of its old and its new value.
    """
    found = actor or acting(connection) or Actor(user(), socket.gethostname())
    given = {
        "who": found.who,
        "host": found.host,
        "action": action,
        "job_id": job_id,
        "subject": subject,
        "detail": json.dumps(storable(detail or {})),
    }
    connection.execute(RECORD, given)


def of_key(name: str, tenant: str) -> str:
    """Who a key is, as the log names it."""
    return f"{name} ({tenant})"


def of_job(connection: Connection, job_id: int, tenant: str | None = None) -> list[Change]:
    """The changes of a job, the oldest first, also of a job that was deleted; as readers of a `tenant`
    see them where one is given.
    """
    found = connection.execute(OF_JOB, {"job_id": job_id}).mappings()
    return [seen_by(row, tenant) for row in found]


def pauses(connection: Connection, job_ids: Collection[int]) -> dict[int, RowMapping]:
    """The last pause of each of these jobs that somebody ever paused."""
    found = connection.execute(PAUSES, {"ids": list(job_ids)}).mappings()
    return {row["job_id"]: row for row in found}


def of_subject(connection: Connection, subject: str, tenant: str | None = None) -> list[Change]:
    """The changes of a machine or of a batch of the API, the oldest first, among the MOST_LOOKED_AT newest of
    all; as for `of_job`.
    """
    given = {"subject": subject, "most": MOST_LOOKED_AT}
    return [seen_by(row, tenant) for row in connection.execute(OF_SUBJECT, given).mappings()]


def listed(
    connection: Connection, *, limit: int, before: int, tenant: str | None = None
) -> list[Change]:
    """At most `limit` changes before the row `before`, the newest first; those of the jobs of a `tenant`,
    as its readers see them, where one is given.
    """
    given = {"limit": limit, "before": before, "tenant": tenant}
    return [seen_by(row, tenant) for row in connection.execute(LISTED, given).mappings()]


def seen_by(row: Mapping[Any, Any], tenant: str | None) -> Change:
    """A change without the names of people and machines that are none of the tenant's."""
    if tenant is None or row["who"].endswith(f"({tenant})"):
        return dict(row)
    return {**row, "who": SOMEBODY, "host": ""}


def user() -> str:
    """Return the user of this process; the number of one without a name, as in many containers."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
