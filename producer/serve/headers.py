"""Headers that every answer has, whoever makes it."""

import uuid
from collections.abc import Mapping

import structlog
from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALWAYS = {
    "x-content-type-options": "nosniff",
    "cache-control": "private, no-cache",
}
"""A browser takes no answer for another kind than it says, and no cache between gives one to others."""


REQUEST_ID = "x-request-id"
"""Header of every answer: what the log lines of the request have as `request_id`."""

CLIENT_REQUEST_ID = "x-client-request-id"
"""Header in which clients of the OpenAI API name their requests. The log has it, and no answer."""

MOST_ID_CHARACTERS = 512


def request_id() -> str:
    """Return the id of the request that this task serves; a new one if the request could not be read."""
    bound = structlog.contextvars.get_contextvars().get("request_id")
    return str(bound) if bound is not None else f"req_{uuid.uuid4().hex}"


def always() -> dict[str, str]:
    """The headers that every answer has, for whoever answers outside of the middleware."""
    return {**ALWAYS, REQUEST_ID: request_id()}


def has_current(headers: Mapping[str, str], etag: str) -> bool:
    """Return True if the client says, by `If-None-Match`, that it has what `etag` names."""
    known = headers.get("if-none-match", "").split(",")
    # A proxy that compresses an answer makes its tag a weak one.
    return not {etag, "*"}.isdisjoint(each.strip().removeprefix("W/") for each in known)


def _begin(scope: Scope) -> None:
    """Gives a request its id, which the lines of its log have from now on: each request is a task of its own. As in the
    hosted API the id is always new, whatever the client sends.
    """
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request_id())
    given = RequestHeaders(scope=scope).get(CLIENT_REQUEST_ID, "")
    if given and len(given) <= MOST_ID_CHARACTERS and given.isascii() and given.isprintable():
        structlog.contextvars.bind_contextvars(client_request_id=given)


class Headers:
    """Gives each request an id, and each answer of an application those headers that it does not have itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            _begin(scope)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in always().items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sent)
