"""Batches of the OpenAI API, as clients make, see and cancel them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection


class ApiBatchStatus(StrEnum):
    """The states of a batch, in the words of the API."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether the batch never changes again by itself."""
        return self in (self.COMPLETED, self.FAILED, self.EXPIRED, self.CANCELLED)


@dataclass(frozen=True, slots=True)
class ApiBatch:
    """A batch as the ledger has it. `job_id` is None until it is valid; rows are counted at its end,
    while it runs its job counts. `options` is what the client sent under "nightshift".
    """

    id: str
    seq: int
    tenant: str
    state: ApiBatchStatus
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: Mapping[str, str] | None
    output_expires_seconds: int | None
    options: Mapping[str, Any]
    job_id: int | None
    model: str | None
    errors: list[Mapping[str, Any]] | None
    output_file_id: str | None
    error_file_id: str | None
    rows_total: int
    rows_completed: int
    rows_failed: int
    usage: Mapping[str, Any] | None
    created_by: str | None
    created_from: str
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None

    @property
    def rows_unanswered(self) -> int:
        """Rows of a batch that ended before they had an answer or an error: each has a line in the file of errors,
        unless the results were lost.
        """
        ended = (ApiBatchStatus.EXPIRED, ApiBatchStatus.CANCELLED)
        if self.state in ended or (self.state is ApiBatchStatus.FAILED and self.job_id is not None):
            return self.rows_total - self.rows_completed - self.rows_failed
        return 0


@dataclass(frozen=True, slots=True)
class NewApiBatch:
    """A batch to insert; `window_seconds` is what its completion_window means."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    window_seconds: float
    metadata: Mapping[str, str] | None
    output_expires_seconds: int | None
    options: Mapping[str, Any]
    created_by: str
    request_hash: bytes
    idempotency_key: str | None = None
    created_from: str = ""


COLUMNS = """
    id, seq, tenant, state, endpoint, input_file_id, completion_window, metadata,
    output_expires_seconds, options, job_id, model, errors, output_file_id, error_file_id, rows_total,
    rows_completed, rows_failed, usage, created_by, created_from, created_at, expires_at, in_progress_at,
    finalizing_at, completed_at, failed_at, expired_at, cancelling_at, cancelled_at
"""

INSERT = text(
    """
    INSERT INTO api_batches (id, tenant, endpoint, input_file_id, completion_window, metadata,
                             output_expires_seconds, options, created_by, created_from,
                             request_hash, idempotency_key, expires_at)
    VALUES (:id, :tenant, :endpoint, :input_file_id, :completion_window, CAST(:metadata AS jsonb),
            :output_expires_seconds, CAST(:options AS jsonb), :created_by, :created_from,
            :request_hash, :idempotency_key, now() + make_interval(secs => :window_seconds))
    ON CONFLICT (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING """
    + COLUMNS
)
"""One batch in state validating; no row comes back where the tenant used the key before."""

GET = text(
    "SELECT "
    + COLUMNS
    + """
    FROM api_batches WHERE id = :id AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
"""
)
"""A batch of a tenant, or of any."""

LOCKED = text(
    "SELECT " + COLUMNS + " FROM api_batches WHERE id = :id AND tenant = :tenant FOR UPDATE"
)
"""The same, which nobody else changes until the end of the transaction."""

LISTED = text(
    "SELECT "
    + COLUMNS
    + """
    FROM api_batches
    WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND seq < :before
    ORDER BY seq DESC LIMIT :limit
"""
)
"""A page of the batches of a tenant, or of all, the newest first."""

REPEATED = text(
    "SELECT "
    + COLUMNS
    + """
    FROM api_batches
    WHERE tenant = :tenant AND request_hash = :hash AND state NOT IN ('cancelling', 'cancelled')
      AND created_at > now() - make_interval(secs => :seconds)
    ORDER BY seq DESC LIMIT 1
"""
)
"""The last batch that the same request made, and that nobody has cancelled."""

HAS_NO_RESULTS = """
    b.state IN ('completed', 'expired', 'cancelled')
    AND coalesce(b.output_file_id, b.error_file_id) IS NOT NULL
    AND NOT EXISTS (SELECT FROM api_files f
                    WHERE f.id IN (b.output_file_id, b.error_file_id) AND f.state = 'ready'
                      AND (f.expires_at IS NULL OR f.expires_at > now()))
"""

RESULTS_GONE = text("SELECT true FROM api_batches b WHERE b.id = :id AND" + HAS_NO_RESULTS)
"""Whether nothing is left of the results of a batch."""

JOBS_WITHOUT_RESULTS = text(
    """
    SELECT j.id FROM api_batches b JOIN jobs j ON j.id = b.job_id
    WHERE j.closed_at IS NOT NULL AND"""
    + HAS_NO_RESULTS
    + "ORDER BY random() LIMIT :most"
)
"""Jobs whose parts nobody may read any more, by lot: one that cannot be deleted keeps none from its turn."""

BY_KEY = text(
    "SELECT request_hash, "
    + COLUMNS
    + """
    FROM api_batches WHERE tenant = :tenant AND idempotency_key = :key
"""
)
"""The batch of an idempotency key."""

FORGET_KEY = text("""
    UPDATE api_batches SET idempotency_key = NULL
    WHERE tenant = :tenant AND idempotency_key = :key
      AND created_at < now() - make_interval(secs => :seconds)
""")
"""A key is free again so long after the create that used it."""

REQUEST_LOCK = 0x62617463
"""First half of the advisory lock of a create ('batc'); the second half is a hash of the request."""

LAST_SEQ = 2**63 - 1


def insert(connection: Connection, new: NewApiBatch) -> ApiBatch | None:
    """Makes a batch; None where a batch of this tenant has its idempotency key."""
    given = {name: getattr(new, name) for name in new.__slots__}
    as_json = {name: json.dumps(given[name]) for name in ("metadata", "options")}
    row = connection.execute(INSERT, {**given, **as_json}).mappings().one_or_none()
    return None if row is None else as_batch(row)


def lock_request(connection: Connection, tenant: str, request_hash: bytes) -> None:
    """Waits for every other create of the same request, and holds up those that follow, until the end
    of the transaction.
    """
    statement = text("SELECT pg_advisory_xact_lock(:lock, hashtext(:request))")
    given = {"lock": REQUEST_LOCK, "request": f"{tenant} {request_hash.hex()}"}
    connection.execute(statement, given)


def repeated(
    connection: Connection, tenant: str, request_hash: bytes, seconds: float
) -> ApiBatch | None:
    """The last batch that this request of the tenant made within so many seconds."""
    given = {"tenant": tenant, "hash": request_hash, "seconds": seconds}
    row = connection.execute(REPEATED, given).mappings().one_or_none()
    return None if row is None else as_batch(row)


def by_idempotency_key(
    connection: Connection, tenant: str, key: str, seconds: float
) -> tuple[ApiBatch, bytes] | None:
    """The batch that the tenant made with this key within so many seconds, and the hash of its request.
    A key that is older is free.
    """
    given = {"tenant": tenant, "key": key}
    connection.execute(FORGET_KEY, {**given, "seconds": seconds})
    row = connection.execute(BY_KEY, given).mappings().one_or_none()
    if row is None:
        return None
    found = dict(row)
    return as_batch(found), bytes(found.pop("request_hash"))


def validating(connection: Connection, tenant: str) -> int:
    """How many batches of a tenant wait until their files are read."""
    statement = text("""
        SELECT count(*) FROM api_batches WHERE tenant = :tenant AND state = 'validating'
    """)
    return int(connection.execute(statement, {"tenant": tenant}).scalar_one())


def results_gone(connection: Connection, id: str) -> bool:
    """Whether a batch that is over had files of results, and all of them are deleted or expired."""
    return bool(connection.scalar(RESULTS_GONE, {"id": id}))


def jobs_without_results(connection: Connection, most: int) -> list[int]:
    """Closed jobs of batches whose results are all gone, at most `most`."""
    return list(connection.scalars(JOBS_WITHOUT_RESULTS, {"most": most}))


def get(connection: Connection, tenant: str | None, id: str) -> ApiBatch | None:
    """A batch that the tenant sees; any with `tenant` None."""
    row = connection.execute(GET, {"id": id, "tenant": tenant}).mappings().one_or_none()
    return None if row is None else as_batch(row)


def locked(connection: Connection, tenant: str, id: str) -> ApiBatch | None:
    """`get`, of a batch that nobody else changes until the end of the transaction."""
    row = connection.execute(LOCKED, {"id": id, "tenant": tenant}).mappings().one_or_none()
    return None if row is None else as_batch(row)


def listed(
    connection: Connection, tenant: str | None, *, limit: int, before: int = LAST_SEQ
) -> list[ApiBatch]:
    """At most `limit` batches of a tenant, of all with `tenant` None, the newest first, from before the place `before` on."""
    given = {"tenant": tenant, "limit": limit, "before": before}
    return [as_batch(row) for row in connection.execute(LISTED, given).mappings()]


def of_job(connection: Connection, job_id: int) -> str | None:
    """The batch that a job is, by its id; None for a job of nobody's batch."""
    statement = text("SELECT id FROM api_batches WHERE job_id = :job_id")
    found: str | None = connection.scalar(statement, {"job_id": job_id})
    return found


def as_batch(row: Mapping[Any, Any]) -> ApiBatch:
    """A row with COLUMNS; others are left out."""
    values = {name: row[name] for name in ApiBatch.__slots__}
    return ApiBatch(**{**values, "state": ApiBatchStatus(row["state"])})
