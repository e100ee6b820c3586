"""Versions of engines and of the code of functions: what children have loaded, and how many rows of the live parts
of a job each version made.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.text import storable


@dataclass(frozen=True, slots=True)
class Version:
    """An engine with its version, the revision of its model and the digests of a function's files, by path; `rows`
    of the live parts of a job are of it, the first of which was committed at `first_used_at`.
    """

    engine: str
    engine_version: str
    revision: str | None
    code: Mapping[str, str]
    rows: int
    first_used_at: datetime

    @property
    def as_json(self) -> dict[str, Any]:
        """The object in `versions` of the manifest and of `status JOB --json`."""
        return {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "revision": self.revision,
            "code": dict(self.code) or None,
            "rows": self.rows,
            "first_used_at": self.first_used_at.isoformat(),
        }


def number(
    connection: Connection,
    engine: str,
    engine_version: str,
    revision: str | None,
    code: Mapping[str, str] | None,
) -> int:
    """The number of a version in the ledger; a new one is written."""
    files = json.dumps(storable(dict(code)), sort_keys=True) if code else None
    loaded = [engine, engine_version, revision, files]
    given = {
        "digest": hashlib.sha256(json.dumps(loaded).encode()).hexdigest(),
        "engine": engine,
        "engine_version": engine_version,
        "revision": revision,
        "code": files,
    }
    connection.execute(
        text("""
            INSERT INTO engine_versions (digest, engine, engine_version, revision, code)
            VALUES (:digest, :engine, :engine_version, :revision, CAST(:code AS jsonb))
            ON CONFLICT (digest) DO NOTHING
        """),
        given,
    )
    found = connection.execute(text("SELECT id FROM engine_versions WHERE digest = :digest"), given)
    return int(found.scalar_one())


def of_job(connection: Connection, job_id: int) -> list[Version]:
    """The versions that made rows of the live parts of a job, in the order in which they were first used. A row that
    ran again is of its last version. Rows without a known version, and errors that a reaper wrote, are in none.
    """
    statement = text("""
        SELECT v.engine, v.engine_version, v.revision, coalesce(v.code, '{}') AS code, c.rows, c.first_used_at
        FROM (SELECT version_id, sum(rows)::bigint AS rows, min(at) AS first_used_at
              FROM version_counters WHERE job_id = :id GROUP BY version_id) AS c
        JOIN engine_versions v ON v.id = c.version_id
        WHERE c.rows > 0 ORDER BY c.first_used_at, v.id
    """)
    return [Version(**row) for row in connection.execute(statement, {"id": job_id}).mappings()]


def fold_counters(connection: Connection, limit: int = 20_000) -> int:
    """Folds deltas of version_counters into one row a job and version; returns how many rows were folded."""
    statement = text("""
        WITH taken AS (
            DELETE FROM version_counters WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM version_counters WHERE job_id IN (
                    SELECT job_id FROM version_counters GROUP BY job_id
                    HAVING count(*) > 50 + count(DISTINCT version_id))
                LIMIT :limit FOR UPDATE SKIP LOCKED))
            RETURNING *
        ), folded AS (
            INSERT INTO version_counters (job_id, version_id, rows, at)
            SELECT job_id, version_id, sum(rows), min(at) FROM taken GROUP BY job_id, version_id
        )
        SELECT count(*) FROM taken
    """)
    return int(connection.execute(statement, {"limit": limit}).scalar_one())
