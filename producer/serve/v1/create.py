"""The body of `POST /v1/batches`, checked field by field, and creates that a client sends again."""

import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError, field_validator
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.connection import Connection
from nightshift.common.spec import finish_by
from nightshift.common.spec.tasks.requests import ENDPOINTS
from nightshift.common.validation import first_mistake
from nightshift.producer.serve import access
from nightshift.producer.serve.calls import Call
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import api_batches, files, ids
from nightshift.producer.serve.ledger.api_batches import ApiBatch, NewApiBatch

WINDOW = re.compile(r"([1-9][0-9]{0,4})([mhd])", re.ASCII)
UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86400}
LONGEST_WINDOW_SECONDS = 30 * 86400

REPEAT_SECONDS = 600.0
"""How long a create that a client sends again gives the batch of its first try."""

MOST_VALIDATING = 1000
"""Batches of a tenant whose files are not read yet."""

KEY_SECONDS = 86_400.0
"""How long an Idempotency-Key gives the batch of its first create."""

KNOWN_AFTER_SECONDS = 120.0
"""How long a create waits to learn whether its COMMIT counted, while Postgres is away."""


class Options(BaseModel):
    """What `extra_body={"nightshift": …}` may say beyond the hosted API."""

    model_config = ConfigDict(extra="forbid", strict=True)

    priority: int = Field(0, ge=-1000, le=1000)
    finish_by: str | None = None
    budget: float | None = Field(None, gt=0)
    on_bad_line: Literal["fail", "skip"] = "fail"

    @field_validator("finish_by")
    @classmethod
    def _some_moment(cls, value: str | None) -> str | None:
        if value is not None:
            finish_by.check(value)
        return value


class ExpiresAfter(BaseModel):
    """How long a file lives, from its own creation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


Key = Annotated[StrictStr, Field(max_length=64)]
Value = Annotated[StrictStr, Field(max_length=512)]


class CreateBatch(BaseModel):
    """The body; members that nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: str = Field(min_length=1, max_length=200)
    endpoint: str
    completion_window: str
    metadata: dict[Key, Value] | None = Field(None, max_length=16)
    output_expires_after: ExpiresAfter | None = None
    nightshift: Options | None = None

    @field_validator("endpoint")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ENDPOINTS:
            raise ValueError(f"{value[:100]!r} is not one of {', '.join(ENDPOINTS)}")
        return value

    @field_validator("completion_window")
    @classmethod
    def _window(cls, value: str) -> str:
        if not 0 < window_seconds(value) <= LONGEST_WINDOW_SECONDS:
            raise ValueError(
                f"{value[:50]!r} must be a number of minutes, hours or days up to 30d, such as 24h"
            )
        return value


def window_seconds(window: str) -> float:
    """The seconds of a completion_window; 0 for a text of another form."""
    found = WINDOW.fullmatch(window)
    return float(int(found[1]) * UNIT_SECONDS[found[2]]) if found else 0.0


def parsed(call: Call) -> NewApiBatch:
    """The batch that a request asks for; ApiError 400 names the first parameter that is wrong."""
    try:
        given = CreateBatch.model_validate(call.json())
    except ValidationError as error:
        place, why = first_mistake(error)
        raise ApiError(
            400, f"{place[:200]}: {why}", param=place[:200], code="invalid_value"
        ) from error
    after = given.output_expires_after
    key = call.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 255:
        raise ApiError(400, "the Idempotency-Key has 1 to 255 characters", param="idempotency-key")
    return NewApiBatch(
        id=ids.new("batch_"),
        tenant=call.caller.tenant,
        endpoint=given.endpoint,
        input_file_id=given.input_file_id,
        completion_window=given.completion_window,
        window_seconds=window_seconds(given.completion_window),
        metadata=given.metadata,
        output_expires_seconds=None if after is None else after.seconds,
        options={} if given.nightshift is None else given.nightshift.model_dump(exclude_unset=True),
        created_by=call.caller.name,
        created_from=call.host,
        request_hash=hashlib.sha256(call.body).digest(),
        idempotency_key=key,
    )


def made(
    ledger: Ledger, new: NewApiBatch, *, retried: bool, refused: ApiError | None = None
) -> ApiBatch:
    """The batch, new or that of an earlier try of the same request. A new one may be `refused`.

    Who gets an error knows that there is no batch: a COMMIT whose answer was lost is read back, under
    the lock that its transaction held, for KNOWN_AFTER_SECONDS; after that nobody can tell.
    """
    try:
        with ledger.transaction() as connection:
            return _made(connection, new, retried=retried, refused=refused)
    except LedgerUnavailable:
        found = _read_back(ledger, new)
        if found is None:
            raise
        return found


def _made(
    connection: Connection, new: NewApiBatch, *, retried: bool, refused: ApiError | None
) -> ApiBatch:
    api_batches.lock_request(connection, new.tenant, new.request_hash)
    known = _known(connection, new, retried=retried)
    if known is not None:
        return known
    file = files.get(connection, new.tenant, new.input_file_id)
    if file is None or file.purpose != "batch":
        raise ApiError(
            400,
            f"there is no file {new.input_file_id!r} of purpose batch",
            param="input_file_id",
            code="invalid_input_file_id",
        )
    if refused is not None:
        raise refused
    access.refuse_spent(connection, new.tenant)
    if api_batches.validating(connection, new.tenant) >= MOST_VALIDATING:
        said = (
            f"{MOST_VALIDATING:,} batches wait already until their files are read: try again later"
        )
        raise ApiError(429, said, type="rate_limit_exceeded", code="too_many_batches")
    found = api_batches.insert(connection, new)
    if found is None:
        raise _other_body(new)
    detail = {
        "tenant": new.tenant,
        "input_file_id": new.input_file_id,
        "endpoint": new.endpoint,
        "completion_window": new.completion_window,
    }
    audit_log.record(connection, "batch create", subject=f"batch {new.id}", detail=detail)
    return found


def _known(connection: Connection, new: NewApiBatch, *, retried: bool) -> ApiBatch | None:
    """The batch of an earlier try of the same request."""
    if new.idempotency_key is not None:
        found = api_batches.by_idempotency_key(
            connection, new.tenant, new.idempotency_key, KEY_SECONDS
        )
        if found is not None and found[1] != new.request_hash:
            raise _other_body(new)
        return None if found is None else found[0]
    if not retried:
        return None
    return api_batches.repeated(connection, new.tenant, new.request_hash, REPEAT_SECONDS)


def _other_body(new: NewApiBatch) -> ApiError:
    return ApiError(
        409,
        f"the Idempotency-Key {new.idempotency_key!r} was used for another request",
        param="idempotency-key",
        code="idempotency_key_reused",
        retried=False,
    )


def _read_back(ledger: Ledger, new: NewApiBatch) -> ApiBatch | None:
    """The batch if its COMMIT counted; LedgerUnavailable while nobody can tell."""

    def look() -> ApiBatch | None:
        with ledger.transaction() as connection:
            api_batches.lock_request(connection, new.tenant, new.request_hash)
            return api_batches.get(connection, new.tenant, new.id)

    attempts: Callable[[Callable[[], ApiBatch | None]], ApiBatch | None] = Retrying(
        stop=stop_after_delay(KNOWN_AFTER_SECONDS),
        wait=wait_exponential(0.1, 5),
        retry=retry_if_exception_type(LedgerUnavailable),
        reraise=True,
    )
    return attempts(look)


def is_retry(headers: Any) -> bool:
    """Whether a client says that it sends a request again (`X-Stainless-Retry-Count`)."""
    count = headers.get("x-stainless-retry-count", "0")
    return bool(count.isascii() and count.isdigit() and int(count[:9]) > 0)
