"""Errors as answers: always {"error": {message, type, param, code}}, whatever went wrong."""

import json
from collections.abc import Mapping, Sequence

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from nightshift.common.errors import (
    LedgerRefused,
    NightshiftError,
    Retryable,
    StatementRefused,
    StorageUnavailable,
)
from nightshift.producer.serve import strays
from nightshift.producer.serve.headers import always

log = structlog.get_logger(__name__)

RETRY_AFTER_SECONDS = 1


class ApiError(Exception):
    """A refusal: HTTP status, one sentence, the parameter that is wrong, a code for programs.

    `retried` False tells the client not to send the same again, True to do so; None leaves that to
    its own rules, by which 408, 409, 429 and 5xx are sent again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str = "invalid_request_error",  # noqa: A002
        retried: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.type = status, param, code, type
        self.retried, self.headers = retried, headers or {}


def not_found(kind: str, name: str) -> ApiError:
    """404 for what is not there, or belongs to another tenant: an answer says nothing of others."""
    return ApiError(404, f"there is no {kind} {name[:100]!r}", param="id", code="not_found")


def body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, object]:
    """The one shape of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def answer(error: Exception, path: str = "", own: Sequence[str] | None = ()) -> JSONResponse:
    """The answer to a request for this `path` that ended with an error, for a caller who reads paths below its `own`
    folders; None reads every path. An unexpected error is logged, and so is what a caller does not read.
    """
    if isinstance(error, ApiError):
        headers = dict(error.headers)
        if error.retried is not None:
            headers["x-should-retry"] = str(error.retried).lower()
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        return _json(error.status, str(error), error.type, error.param, error.code, headers)
    if isinstance(error, HTTPException):
        said = strays.sentence(error.status_code, path) or error.detail
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return _json(error.status_code, said, kind, headers=error.headers)
    if isinstance(error, Retryable | LedgerRefused):
        # Its text names machines of the operator, which clients need not know.
        log.warning("request_unavailable", error=str(error))
        headers = {"retry-after": str(RETRY_AFTER_SECONDS)}
        away = "the store" if isinstance(error, StorageUnavailable) else "the ledger"
        said = f"{away} cannot be used now: send the request again"
        return _json(503, said, "server_error", code="unavailable", headers=headers)
    if isinstance(error, NightshiftError) and not isinstance(error, StatementRefused):
        said = error.public_message(own)
        if said != str(error):
            log.info("request_refused", error=str(error), answer=said)
        return _json(400, said, "invalid_request_error")
    log.error("request_crashed", exc_info=error)
    return _json(500, "the server failed; its log says why", "server_error")


def message(answered: JSONResponse) -> str:
    """The sentence of an answer that is an error."""
    found: str = json.loads(bytes(answered.body))["error"]["message"]
    return found


def _json(
    status: int,
    message: str,
    kind: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    # Starlette sends the answer to what crashed outside of every middleware.
    return JSONResponse(body(message, kind, param, code), status, {**always(), **(headers or {})})
