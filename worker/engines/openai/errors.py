"""What a server's refusal means: for the row, for the job, for everybody who waits."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import durationpy
import openai

from nightshift.common.states import RowErrorKind

AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may pass by themselves."""

KEY = frozenset({401, 402, 403})
"""Statuses that speak of the key or the account, not of the row."""

NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that waiting does not mend."""

TOO_LONG = frozenset({"context_length_exceeded", "string_above_max_length"})
"""Codes of a prompt that the model does not take."""

TOO_LONG_WORDS = ("maximum context length", "max_model_len", "maximum model length")
"""Servers other than OpenAI's give no code for it: vLLM says it in words alone."""


class TroubleError(Exception):
    """A request that got no answer; the message says what the server said, without the key.

    `kind` is the row's error where nothing else is to blame. `is_final` for a request that would
    be refused again; `is_limit` for one that came too early, `is_timeout` for one that took all the
    time of its row, `needs_person` for a key or an account. `pause_seconds` is the server's own
    wish, None where it has none. `status`, `request_id` and `body` (JSON text) are of the answer
    that refuses, where there is one.
    """

    def __init__(
        self,
        said: str,
        *,
        kind: RowErrorKind = RowErrorKind.REFUSED,
        is_final: bool = False,
        is_limit: bool = False,
        is_timeout: bool = False,
        needs_person: bool = False,
        pause_seconds: float | None = None,
        status: int | None = None,
        request_id: str | None = None,
        body: str | None = None,
    ) -> None:
        super().__init__(said)
        self.kind = kind
        self.is_final = is_final
        self.is_limit = is_limit
        self.is_timeout = is_timeout
        self.needs_person = needs_person
        self.pause_seconds = pause_seconds
        self.status = status
        self.request_id = request_id
        self.body = body


@dataclass(frozen=True, slots=True)
class Censor:
    """Takes the key out of what a server says."""

    key: str

    def __call__(self, text: str) -> str:
        """The text with the key blotted out."""
        return text.replace(self.key, "***") if self.key else text


def of_error(error: openai.APIError, censor: Censor) -> TroubleError:
    """What the client's exception means."""
    if not isinstance(error, openai.APIStatusError):
        # Its cause says what happened on the wire; its own message does not.
        cause = error.__cause__
        why = type(error).__name__ if cause is None else f"{type(cause).__name__}: {cause}"
        return TroubleError(censor(f"no answer from the server ({why})"))
    status = error.status_code
    message, code = _said(error.body)
    said = censor(f"{status}: {message}")
    pause = hinted_pause(error.response.headers)
    answer: dict[str, Any] = {
        "status": status,
        "request_id": error.request_id,
        "body": _json_text(censor(error.response.text)),
    }
    if status in KEY or code in NO_MONEY:
        return TroubleError(said, needs_person=True, **answer)
    if status in AGAIN or status >= 500:
        return TroubleError(said, is_limit=status == 429, pause_seconds=pause, **answer)
    long = code in TOO_LONG or (
        status in (400, 413) and any(words in message for words in TOO_LONG_WORDS)
    )
    kind = RowErrorKind.TOO_LONG if long else RowErrorKind.REFUSED
    return TroubleError(said, kind=kind, is_final=True, **answer)


def hinted_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, `Retry-After` in seconds or as an
    HTTP date, else the reset of a limit of which nothing remains. None without any of them.
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


def _said(body: object) -> tuple[str, str | None]:
    """Message and code of an error's body, whichever way the server writes it."""
    match body:
        case {"message": str(message), **rest}:
            return message, _text(rest.get("code"))
        case {"detail": str(message)} | {"error": str(message)}:
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


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value == value and abs(value) < 1e9 else None  # neither NaN nor without end


def _seconds_until(date: str) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, then.timestamp() - time.time())


def _duration(text: str | None) -> float | None:
    """`6m0s`, `20ms` as OpenAI writes them, or bare seconds."""
    if text is None or (seconds := _number(text)) is not None:
        return None if text is None else seconds
    try:
        return max(0.0, float(durationpy.from_str(text).total_seconds()))
    except (ValueError, OverflowError):  # DurationError is a ValueError
        return None
