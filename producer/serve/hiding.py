"""Answers without paths of the server that their caller did not name; who asks this machine without a key sees
them.
"""

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote_plus

from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightshift.common.settings import Settings
from nightshift.producer.serve.calls import CALLER, MOST_BODY_BYTES, Context
from nightshift.producer.serve.hidden_paths import Hidden
from nightshift.producer.serve.ledger import tenants
from nightshift.producer.serve.ledger.keys import Caller
from nightshift.producer.serve.slow import ENTRANCE

SAID = ("application/json", "text/html", "text/event-stream")
"""Kinds of answers that hold sentences of the server; files and lines of results hold what tenants wrote."""

NAMED = ("application/json", "application/x-www-form-urlencoded")
"""Kinds of bodies in which a caller names paths."""


class Hiding:
    """Hides paths in the answers of an application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._for_users = Hidden(settings)
        self._for_operators = Hidden(settings, of_operator=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        heard = bytearray()
        kind = _kind(scope)
        # What has no kind may be JSON: handlers do not ask for one.
        hears = not kind or kind in NAMED
        start: Message | None = None

        async def received() -> Message:
            message = await receive()
            if hears and len(heard) < MOST_BODY_BYTES:
                heard.extend(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                if _kind(message) in SAID:
                    start = message  # its length is known once the body is
                    return
            elif start is not None or scope.get("state", {}).get("hides", False):
                body = await self._shown(scope, bytes(heard), message.get("body", b""))
                if start is not None:
                    headers = MutableHeaders(scope=start)
                    if "content-length" in headers and scope["method"] != "HEAD":
                        headers["content-length"] = str(len(body))
                    begun, start = start, None
                    scope.setdefault("state", {})["hides"] = True
                    await send(begun)
                message = {**message, "body": body}
            await send(message)

        await self._app(scope, received, sent)

    async def _shown(self, scope: Scope, heard: bytes, body: bytes) -> bytes:
        caller: Caller | None = scope.get("state", {}).get(CALLER)
        if caller is not None and caller.name == "local":
            return body
        context: Context = scope["app"].state.context
        is_operator = caller is not None and caller.role == "operator"
        hides = self._for_operators if is_operator else self._for_users
        text = body.decode("utf-8", "surrogateescape")
        if not hides.places(text):
            return body
        roots: Sequence[str] = ()
        if caller is not None and not is_operator:
            roots = await to_thread.run_sync(partial(_roots, context, caller), limiter=ENTRANCE)
        asked = f"{scope['path']} {unquote_plus(scope['query_string'].decode('latin-1'))}"
        words = heard.decode("utf-8", "replace")
        named = f"{asked} {words} {unquote_plus(words)}"
        tenant = None if caller is None else caller.tenant
        return hides.text(text, tenant, named, roots).encode("utf-8", "surrogateescape")


def _kind(scope: MutableMapping[str, Any]) -> str:
    """The media type of a request or of an answer without its parameters: that of lines begins as that of JSON."""
    return Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()


def _roots(context: Context, caller: Caller) -> Sequence[str]:
    with context.ledger.transaction() as connection:
        found = tenants.get(connection, caller.tenant)
    return () if found is None else found.roots
