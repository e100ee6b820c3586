"""The audit log: who changed what, when, and from which machine.

Only changes that somebody asked for are in it. What the system does by itself stands in jobs, batches
and attempts.
"""

import json
import os
import pwd
import socket
from collections.abc import Mapping

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Connection

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


def record(
    connection: Connection,
    action: str,
    job_id: int | None = None,
    subject: str | None = None,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Writes a row in the transaction of the change, so that both are there or neither is.

    `detail` must fit into JSON; a field that changed is a list of its old and its new value.
    """
    given = {
        "who": user(),
        "host": socket.gethostname(),
        "action": action,
        "job_id": job_id,
        "subject": subject,
        "detail": json.dumps(detail or {}),
    }
    connection.execute(RECORD, given)


def of_job(connection: Connection, job_id: int) -> list[RowMapping]:
    """The changes of a job, the oldest first, also of a job that was deleted."""
    return list(connection.execute(OF_JOB, {"job_id": job_id}).mappings())


def user() -> str:
    """The user of this process; its number where it has no name, as in many containers."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
