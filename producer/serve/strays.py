"""Requests that no route fits: what is said to them, and addresses that end in a slash."""

from starlette.types import ASGIApp, Receive, Scope, Send

from nightshift.common.spec.tasks.requests import ENDPOINTS

API = ("/v1", "/api")
"""Programs ask below these addresses, whatever they say that they accept."""

BARE = {404: "there is no such address", 405: "this address does not take that method"}
"""What a person is told, by status."""

PLACES = "the OpenAI API is below /v1, and jobs are below /api"

BATCHES = "a file of requests goes to POST /v1/files, and its id to POST /v1/batches"


def wants_page(path: str, accept: str) -> bool:
    """Whether a browser asks, which is shown a page. Pure."""
    is_api = path.startswith(tuple(f"{each}/" for each in API)) or path in API
    return "text/html" in accept and not is_api


def sentence(status: int, path: str) -> str | None:
    """What a program is told that asks for an address that there is not, or with a method that the address does
    not take; None for a status that says neither. Pure.
    """
    if status not in BARE:
        return None
    for endpoint in ENDPOINTS:
        if path.endswith(endpoint.removeprefix("/v1")):
            return f"this server answers {endpoint} in batches alone: {BATCHES}"
    if path.startswith("/v1/") and status == 404:
        return f"{BARE[status]}: this server takes batches, {BATCHES}"
    is_api = path.startswith(("/v1/", "/api/"))
    return BARE[status] if is_api else f"{BARE[status]}: {PLACES}"


class Slashes:
    """Takes an address that ends in a slash for the one without. No redirect: a client that follows one sends
    no body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and len(scope["path"]) > 1:
            scope = {**scope, "path": scope["path"].removesuffix("/")}
        await self._app(scope, receive, send)
