"""Requests for pages as calls of plain functions: who looks is known, errors are pages, too."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote

from anyio import to_thread
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Actor
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.serve import access
from nightshift.producer.serve.calls import (
    Call,
    Context,
    body,
    kept,
    refuse_strange,
    told,
)
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.live import Views
from nightshift.producer.serve.console.session import Looker, looker, refuse_foreign
from nightshift.producer.serve.errors import (
    ApiError,
    answer,
    message,
    not_found,
)
from nightshift.producer.serve.headers import has_current
from nightshift.producer.serve.ledger import tenant_jobs
from nightshift.producer.serve.slow import ENTRANCE, SlowWork
from nightshift.producer.serve.strays import BARE, wants_page

MOST_FIELDS = 1000

CLOSED = (401, 403, 404)
"""A live part that is refused so is not there for its page any more: the browser loads the page, which says why."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One look at a page, or one form that was sent."""

    request: Request
    looker: Looker
    form: dict[str, list[str]]

    @property
    def context(self) -> Context:
        """The ledger and the settings of the server."""
        found: Context = self.request.app.state.context
        return found

    @property
    def ledger(self) -> Ledger:
        """The ledger of the server, in which changes are those of the looker."""
        return self.context.ledger.acting(Actor(self.looker.who, self.looker.host))

    def query(self, name: str) -> str | None:
        """A word of the address; None for none, and for an empty one."""
        given: str | None = kept(self.request.query_params.get(name))
        return given or None

    def field(self, name: str) -> str:
        """A field of the form without spaces around it; empty for none."""
        return (self.form.get(name) or [""])[0].strip()

    def number(self, name: str, default: int) -> int:
        """A whole number of the address; `default` for anything else."""
        given = self.request.query_params.get(name, "")
        return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else default

    def job(self) -> Job:
        """The job of the address; ApiError 404 for one that the looker does not see."""
        return job_of(self.ledger, self.looker.scope, self.request.path_params["id"])

    @property
    def own(self) -> Sequence[str] | None:
        """The folders whose paths the looker reads in messages; None for every path. Asks the ledger."""
        return access.own_folders(self.ledger, self.context.settings, self.looker.caller)

    def told(self, error: Exception) -> tuple[int, str]:
        """The status and the sentence of an error, as the looker may read it."""
        answered = answer(error, own=self.own)
        return answered.status_code, message(answered)

    def call(self, tenant: str) -> Call:
        """The same as a call of the HTTP API for a thing of this tenant; `path` is that of the address."""
        return Call(
            context=self.context,
            caller=replace(self.looker.caller, tenant=tenant),
            who=self.looker.who,
            method=self.request.method,
            path=self.request.path_params,
            query=QueryParams(),
            headers=self.request.headers,
            host=self.looker.host,
        )

    def page(
        self, template: str, status: int = 200, message: str | None = None, **given: Any
    ) -> Response:
        """A page with what every page shows; `message` says why a change was refused."""
        return render.page(
            template,
            status,
            looker=self.looker,
            path=self.request.url.path,
            message=message,
            **given,
        )


def job_of(ledger: Ledger, scope: str | None, given: str) -> Job:
    """A job by its number, as the user wrote it; ApiError 404 where the user sees no such job."""
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
    with ledger.transaction() as connection:
        found = tenant_jobs.get(connection, scope, number)
    if found is None:
        raise not_found("job", given)
    return found


Handler = Callable[[Visit], Response]

LivePage = Callable[[Visit], Callable[[], str]]
"""Gives the function that makes the live part of a page; ApiError if there is none for the looker."""


Slow = Callable[[Context], SlowWork]
"""Gives the threads for work that takes long."""


def page(path: str, handler: Handler, *, slow: Slow | None = None) -> Route:
    """The route of a page that is read. The page is made in the turn of its tenant if it is `slow`."""

    async def endpoint(request: Request) -> Response:
        return await _answered(request, lambda found: handler(Visit(request, found, {})), slow=slow)

    return Route(path, endpoint, methods=["GET"], name=handler.__name__)


def action(path: str, handler: Handler, *, slow: Slow | None = None) -> Route:
    """The route of a form that changes something. The form must come from a page of this server, and its user must
    have the right. Changes write audit rows. The work is done in the turn of its tenant if it is `slow`.
    """

    async def endpoint(request: Request) -> Response:
        try:
            found = await to_thread.run_sync(looker, request, limiter=ENTRANCE)
            _refuse_change(request, found)  # the body of a refused user is not read
            form = form_fields(await body(request))
        except Exception as error:
            return await _told(request, error)

        def work(found: Looker) -> Response:
            return handler(Visit(request, found, form))

        return await _answered(request, work, slow=slow)

    return Route(path, endpoint, methods=["POST"], name=handler.__name__)


def form_fields(given: bytes) -> dict[str, list[str]]:
    """The fields of a form without files; ApiError 400 for what is none."""
    try:
        return parse_qs(
            given.decode("utf-8"),
            keep_blank_values=True,
            max_num_fields=MOST_FIELDS,
            errors="strict",
        )
    except ValueError as error:
        raise ApiError(400, "the form is broken, or has too many fields") from error


def incoming(path: str, handler: Callable[[Request, Visit], Awaitable[Response]]) -> Route:
    """A form with a file, whose body the handler reads as a stream: held to the same as an `action`."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await to_thread.run_sync(looker, request, limiter=ENTRANCE)
            _refuse_change(request, found)
            return await handler(request, Visit(request, found, {}))
        except Exception as error:
            return await _told(request, error)

    return Route(path, endpoint, methods=["POST"], name=handler.__name__)


def streamed(path: str, handler: Callable[[Request, Visit], Awaitable[Response]]) -> Route:
    """The route of a file that is sent while it is made; errors before its first byte are pages."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await to_thread.run_sync(looker, request, limiter=ENTRANCE)
            refuse_strange(request)
            return await handler(request, Visit(request, found, {}))
        except Exception as error:
            return await _told(request, error)

    return Route(path, endpoint, methods=["GET"], name=handler.__name__)


def _refuse_change(request: Request, found: Looker) -> None:
    refuse_foreign(request)
    if not found.acts:
        raise ApiError(403, "this key looks, and changes nothing", code="forbidden")


def live(path: str, shown: LivePage) -> Route:
    """The route of the part of a page that changes while somebody looks: an open page asks for it once a second."""

    async def endpoint(request: Request) -> Response:
        views: Views = request.app.state.views
        try:
            found = await to_thread.run_sync(looker, request, limiter=ENTRANCE)
            refuse_strange(request)
            key = (request.url.path, request.url.query, found.scope, found.acts)
            part = await views.shown(key, partial(shown, Visit(request, found, {})))
        except (ApiError, NightshiftError) as error:
            refused = await told(request, error)
            if refused.status_code in CLOSED:
                refused.headers["hx-refresh"] = "true"
            return refused
        headers = {**render.HEADERS, "etag": part.etag}
        if has_current(request.headers, part.etag):
            return Response(status_code=304, headers=headers)
        return HTMLResponse(part.html, headers=headers)

    return Route(path, endpoint, methods=["GET"], name=shown.__name__)


async def _answered(
    request: Request, work: Callable[[Looker], Response], *, slow: Slow | None = None
) -> Response:
    try:
        found = await to_thread.run_sync(looker, request, limiter=ENTRANCE)
        refuse_strange(request)
        if slow is not None:
            context: Context = request.app.state.context
            return await slow(context).run(found.caller.tenant, work, found)
        return await run_in_threadpool(work, found)
    except Exception as error:
        return await _told(request, error)


async def stray(request: Request, error: Exception) -> Response:
    """What is said to a request that no route fits."""
    return await _told(request, error)


async def _told(request: Request, error: Exception) -> Response:
    """The error, as a page for a browser and as JSON for a program."""
    # An error that nobody expected is logged there, and its text stays there.
    answered = await told(request, error)
    if not wants_page(request.url.path, request.headers.get("accept", "")):
        return answered
    status = answered.status_code
    if status == 401:
        target = quote(request.url.path, safe="/") if request.method == "GET" else "/"
        return RedirectResponse(f"/login?next={target}", 303)
    return render.page(
        "message.html",
        status,
        looker=None,
        path="",
        message=None,
        title="Not this way",
        text=BARE[status] if isinstance(error, HTTPException) else message(answered),
    )


def seen_at(place: str) -> Response:
    """Leads to the page that shows what has changed."""
    return RedirectResponse(place, 303)
