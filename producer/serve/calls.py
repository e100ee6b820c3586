"""Requests as calls of plain functions: who asks is known, the body is read and bounded.

A handler is a plain function that runs in a thread: it may ask the ledger and the store. One that
reads or writes a stream is a coroutine (`streaming`) and sends what blocks to a thread itself.
"""

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isclass, signature
from typing import Any

from anyio import CapacityLimiter, to_thread
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nightshift.common.errors import NightshiftError, Retryable
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.connection import Actor
from nightshift.common.settings import Settings
from nightshift.common.text import has_half_characters, is_deeper, map_leaves
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.serve import access
from nightshift.producer.serve.errors import ApiError, answer, not_found
from nightshift.producer.serve.ledger.keys import Caller, Role
from nightshift.producer.serve.model_table import ModelTable
from nightshift.producer.serve.slow import ENTRANCE, SlowWork

MOST_BODY_BYTES = 2 * 2**20
"""Largest body of a request that is JSON."""

MOST_DEPTH = 100
"""Most levels of a body that is JSON, as many as a spec may have: what reads the body after its parser may
be recursive.
"""


CALLER = "caller"
"""Where the state of a request has its caller, once that is known."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every handler may use; `models` reads the operator's table as it is now, `slow` has the threads of
    what plans, sorts or deletes, `uploads` of those that write what clients send, which lasts as long as these like, `reads` of those that read archives and parts of jobs, `downloads` counts the results that
    clients take, which last as long as these like; `here` says who works on the ledger.
    """

    ledger: Ledger
    settings: Settings
    models: Callable[[], ModelTable]
    slow: SlowWork = field(
        default_factory=lambda: SlowWork("plans and retries", at_once=4, a_tenant=2, waiting=50)
    )
    uploads: SlowWork = field(
        default_factory=lambda: SlowWork("uploads", at_once=math.inf, a_tenant=100, waiting=300)
    )
    reads: SlowWork = field(
        default_factory=lambda: SlowWork(
            "looks at rows and archives", at_once=8, a_tenant=2, waiting=50
        )
    )
    downloads: SlowWork = field(
        default_factory=lambda: SlowWork(
            "downloads of results", at_once=math.inf, a_tenant=4, waiting=0
        )
    )
    here: Callable[[], Here] = lambda: FLEET


def plans(context: Context) -> SlowWork:
    """The threads of plans."""
    return context.slow


def reads(context: Context) -> SlowWork:
    """The threads that read archives and parts of jobs."""
    return context.reads


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a known caller, whom the audit log names `who`; `path` holds the variable parts of its address."""

    context: Context
    caller: Caller
    who: str
    method: str
    path: Mapping[str, str]
    query: QueryParams
    headers: Headers
    host: str
    body: bytes = b""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the server, in which changes are those of the caller."""
        return self.context.ledger.acting(Actor(self.who, self.host))

    def json(self) -> dict[str, Any]:
        """The body as a JSON object, {} for none; ApiError 400 for anything else."""
        try:
            found = json.loads(self.body or b"{}")
        except RecursionError as error:
            raise _too_deep() from error
        except ValueError as error:
            raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from error
        if not isinstance(found, dict):
            raise ApiError(400, "the body is no JSON object", code="invalid_json")
        if is_deeper(found, MOST_DEPTH):
            raise _too_deep()
        map_leaves(found, kept)
        return found

    async def run(self, question: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """What a function of the ledger answers, asked in a thread and a transaction of its own; what it
        changes stands in the audit log under the name of the key.
        """

        def ask() -> Any:
            with self.ledger.transaction() as connection:
                return question(connection, *given, **named)

        return await run_in_threadpool(ask)


Answer = Response | BaseModel | dict[str, Any]

Handler = Callable[[Call], Answer]
StreamingHandler = Callable[[Request, Call], Awaitable[Answer]]


JSON_OBJECT: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
"""The body of a request that is a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What the OpenAPI document says of a route: its body (`takes`), its answer, its query. `answers` is the model
    that the handler returns, if it returns one.
    """

    method: str
    summary: str
    answers: type[BaseModel] | None = None
    takes: Mapping[str, Any] | None = None
    query: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)
    binary: bool = False


def route(
    method: str,
    path: str,
    handler: Handler,
    role: Role = "user",
    threads: CapacityLimiter | None = None,
    *,
    slow: Callable[[Context], SlowWork] | None = None,
    **said: Any,
) -> Route:
    """A route whose handler runs in a thread, one of `threads` or, in its tenant's turn, one of
    those for `slow` work, for callers of at least this role; `said` are fields of its Operation.
    """

    async def endpoint(request: Request) -> Response:
        # The caller is checked first: the body of a refused caller is not read.
        call = replace(await _call(request, role), body=await body(request))
        if slow is None:
            answer = await to_thread.run_sync(handler, call, limiter=threads)
        else:
            answer = await slow(call.context).run(call.caller.tenant, handler, call)
        return _response(answer)

    return _described(Route(path, endpoint, methods=[method], name=handler.__name__), handler, said)


def streaming(
    method: str, path: str, handler: StreamingHandler, role: Role = "user", **said: Any
) -> Route:
    """A route whose handler is a coroutine and reads the body, or writes the answer, as a stream."""

    async def endpoint(request: Request) -> Response:
        return _response(await handler(request, await _call(request, role)))

    return _described(Route(path, endpoint, methods=[method], name=handler.__name__), handler, said)


def _described(route: Route, handler: Callable[..., Any], said: Mapping[str, Any]) -> Route:
    summary = " ".join((handler.__doc__ or "").split())
    (method,) = set(route.methods or ()) - {"HEAD"}
    returned = signature(handler).return_annotation
    answers = returned if isclass(returned) and issubclass(returned, BaseModel) else None
    operation = Operation(method=method, summary=summary, answers=answers, **said)
    route.operation = operation  # type: ignore[attr-defined]
    return route


def _response(answer: Answer) -> Response:
    if isinstance(answer, BaseModel):
        return Response(answer.model_dump_json(), media_type="application/json")
    return answer if isinstance(answer, Response) else JSONResponse(answer)


def _too_deep() -> ApiError:
    return ApiError(400, f"the body is nested more than {MOST_DEPTH} deep", code="invalid_json")


def kept(value: Any) -> Any:
    """The same value; ApiError 400 for text and numbers that the ledger cannot keep."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ApiError(400, "a number is NaN, or too large", code="invalid_number")
    if isinstance(value, str) and ("\x00" in value or has_half_characters(value)):
        raise ApiError(400, "a text holds a NUL or half of a character", code="invalid_text")
    return value


def refuse_strange(request: Request) -> None:
    """ApiError for text in the address that the ledger cannot keep: nothing has such a name."""
    for value in request.path_params.values():
        if "\x00" in value or has_half_characters(value):
            raise not_found("thing", "with such a name")
    for name, value in request.query_params.multi_items():
        kept(name)
        kept(value)


async def _call(request: Request, role: Role) -> Call:
    context: Context = request.app.state.context
    ask = partial(access.caller, request, context.ledger, context.settings)
    caller = await to_thread.run_sync(ask, limiter=ENTRANCE)
    setattr(request.state, CALLER, caller)
    access.require(caller, role)
    refuse_strange(request)
    return Call(
        context=context,
        caller=caller,
        who=audit_log.of_key(caller.name, caller.tenant),
        method=request.method,
        path=request.path_params,
        query=request.query_params,
        headers=request.headers,
        host=request.client.host if request.client else "",
    )


async def told(request: Request, error: Exception) -> JSONResponse:
    """An error as the caller of a request may read it."""
    own: Sequence[str] | None = ()
    if isinstance(error, NightshiftError):
        own = await to_thread.run_sync(_own, request, limiter=ENTRANCE)
    return answer(error, request.url.path, own)


def _own(request: Request) -> Sequence[str] | None:
    caller: Caller | None = getattr(request.state, CALLER, None)
    context: Context = request.app.state.context
    if caller is None:
        return ()
    try:
        return access.own_folders(context.ledger, context.settings, caller)
    except Retryable:
        return ()


async def body(request: Request) -> bytes:
    """The body, whole; ApiError 413 beyond MOST_BODY_BYTES."""
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > MOST_BODY_BYTES:
                raise ApiError(413, f"the body has more than {MOST_BODY_BYTES:,} bytes")
            pieces.append(piece)
    except ClientDisconnect as error:
        raise ApiError(400, "the client left in the middle of its request") from error
    return b"".join(pieces)
