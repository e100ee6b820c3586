"""Errors of the remote server: is the row to blame, may a retry help, how long to wait."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import durationpy
import openai

from nightshift.common.states import RowErrorKind

Redact = Callable[[str], str]
"""Takes the key out of a text."""

TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses below 500 of errors that may end by themselves."""

KEY_REFUSED = frozenset({401, 402, 403})
"""Statuses that refuse the key or the account, not the row."""

QUOTA_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that no waiting ends: the account has no money left."""

TOO_LONG_CODES = frozenset({"context_length_exceeded", "string_above_max_length"})
"""Codes of a prompt that is longer than the model takes."""

TOO_LONG_PHRASES = ("maximum context length", "max_model_len", "maximum model length")
"""Servers other than OpenAI's send no code for a long prompt: vLLM says so in the message."""


@dataclass(eq=False)
class RequestError(Exception):
    """A request that got no answer; the message is the server's, without the key.

    `kind` is the row's error where the row is to blame. `is_final`: the same request would be
    refused again. `is_limit`: the server is over a rate limit. `is_timeout`: the request took all
    the time of its row. `is_answered`: the status was 2xx, so the request is paid, and the response has no answer.
    `needs_person`: the key or the account is refused. `pause_seconds` is what
    the server asks to wait, None where it does not ask. `status`, `request_id` and `body` (JSON
    text) are those of the server's response, where there was one.
    """

    message: str
    _: KW_ONLY
    kind: RowErrorKind = RowErrorKind.REFUSED
    is_final: bool = False
    is_limit: bool = False
    is_timeout: bool = False
    is_answered: bool = False
    needs_person: bool = False
    pause_seconds: float | None = None
    status: int | None = None
    request_id: str | None = None
    body: str | None = None

    def __str__(self) -> str:
        return self.message

    def redacted(self, redact: Redact) -> "RequestError":
        """The same error without the key."""
        body = None if self.body is None else redact(self.body)
        return replace(self, message=redact(self.message), body=body)


def redactor(key: str) -> Redact:
    """What replaces the key in a server's text by ***; an empty key changes nothing."""
    return lambda text: text.replace(key, "***") if key else text


def request_error(error: openai.APIError, redact: Redact) -> RequestError:
    """The client's exception as our error."""
    if not isinstance(error, openai.APIStatusError):
        # The cause says what happened to the connection; the message does not.
        cause = error.__cause__
        why = type(error).__name__ if cause is None else f"{type(cause).__name__}: {cause}"
        return RequestError(redact(f"no answer from the server ({why})"))
    status = error.status_code
    message, code = _message_and_code(error.body)
    text = redact(f"{status}: {message}")
    pause = hinted_pause(error.response.headers)
    answer: dict[str, Any] = {
        "status": status,
        "request_id": error.request_id,
        "body": _json_text(redact(error.response.text)),
    }
    if status in KEY_REFUSED or code in QUOTA_SPENT:
        return RequestError(text, needs_person=True, **answer)
    if status in TRANSIENT or status >= 500:
        return RequestError(text, is_limit=status == 429, pause_seconds=pause, **answer)
    is_too_long = code in TOO_LONG_CODES or (
        status in (400, 413) and any(phrase in message for phrase in TOO_LONG_PHRASES)
    )
    kind = RowErrorKind.TOO_LONG if is_too_long else RowErrorKind.REFUSED
    return RequestError(text, kind=kind, is_final=True, **answer)


def hinted_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait; None where it does not ask.

    The first of these headers counts: `retry-after-ms`, `Retry-After` in seconds or as an HTTP
    date, the reset of a limit of which nothing remains.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    after = headers.get("retry-after")
    if after is not None:
        seconds = _number(after)
        return _seconds_until(after) if seconds is None else max(0.0, seconds)
    return spent_limit(headers)


def spent_limit(headers: Mapping[str, str]) -> float | None:
    """Seconds until a limit of which nothing remains is reset; None while something remains."""
    waits = [
        _duration(headers.get(f"x-ratelimit-reset-{what}"))
        for what in ("requests", "tokens")
        if (_number(headers.get(f"x-ratelimit-remaining-{what}")) or 0.0) <= 0
        and f"x-ratelimit-remaining-{what}" in headers
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def error_text(error: object) -> str:
    """Return the message of an error in a response."""
    return _message_and_code(error)[0]


def _message_and_code(body: object) -> tuple[str, str | None]:
    """Message and code of an error's body, in each form that servers write."""
    match body:
        case {"message": str(message), "code": str(code)}:
            return message, code
        case {"message": str(message)} | {"detail": str(message)} | {"error": str(message)}:
            return message, None
        case str(message):
            return " ".join(message.split()) or "no message", None
        case None:
            return "no message", None
        case other:
            return json.dumps(other, default=str), None


def _json_text(text: str) -> str | None:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value == value and abs(value) < 1e9 else None  # neither NaN nor infinite


def _seconds_until(date: str) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return None
    return max(0.0, then.replace(tzinfo=then.tzinfo or UTC).timestamp() - time.time())


def _duration(text: str | None) -> float | None:
    """`6m0s`, `20ms` as OpenAI writes them, or bare seconds."""
    if text is None or (seconds := _number(text)) is not None:
        return None if text is None else seconds
    try:
        return max(0.0, float(durationpy.from_str(text).total_seconds()))
    except (ValueError, OverflowError):  # DurationError is a ValueError
        return None
