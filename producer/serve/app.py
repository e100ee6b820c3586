"""The ASGI application: every route, and errors in one shape."""

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Route

from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.serve import model_table, openapi
from nightshift.producer.serve.api import jobs, webhooks
from nightshift.producer.serve.calls import Context, told
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.headers import Headers
from nightshift.producer.serve.health import Health
from nightshift.producer.serve.model_table import ModelTable
from nightshift.producer.serve.strays import Slashes
from nightshift.producer.serve.v1 import (
    batches,
    content,
    files,
    models,
    results,
)

log = structlog.get_logger(__name__)

ROUTES: list[BaseRoute] = [
    *files.ROUTES,
    *content.ROUTES,
    *batches.ROUTES,
    *results.ROUTES,
    *models.ROUTES,
    *jobs.ROUTES,
    *webhooks.ROUTES,
]
"""Every address, the first that fits counts."""


def build(
    ledger: Ledger,
    settings: Settings,
    routes: Sequence[BaseRoute] | None = None,
    health: Health | None = None,
    here: Callable[[], Here] = lambda: FLEET,
) -> Starlette:
    """The application of one server process: every address of the HTTP API, or these `routes`. `here` says
    who works on the ledger.
    """
    handlers: Any = {
        ApiError: told,
        HTTPException: told,
        NightshiftError: told,
        Exception: told,
    }
    bare = [Route("/healthz", _healthy), Route("/openapi.json", _document)]
    app = Starlette(
        routes=[*bare, *(ROUTES if routes is None else routes)],
        exception_handlers=handlers,
        middleware=[
            Middleware(Headers),
            Middleware(Slashes),
        ],
    )
    app.router.redirect_slashes = False
    app.state.context = Context(ledger, settings, lambda: _models(settings), here=here)
    app.state.health = health or Health()
    return app


def _models(settings: Settings) -> ModelTable:
    """The operator's table as it is now; ApiError 503 while it cannot be used. The log of the server says
    why; clients need not know where the table lies.
    """
    try:
        return model_table.load(settings.serve_models)
    except BadInput as error:
        log.warning("models_unusable", error=str(error))
        raise ApiError(
            503, "the table of models cannot be used now", type="server_error", code="unavailable"
        ) from error


async def _document(_request: Request) -> JSONResponse:
    """What every address takes and answers."""
    return JSONResponse(openapi.document(ROUTES))


async def _healthy(request: Request) -> PlainTextResponse:
    """Says that this process answers, and below that what is wrong beside it; asks nobody else. The status
    is 200 all the same: no outage of Postgres ends by a restart of its clients.
    """
    health: Health = request.app.state.health
    return PlainTextResponse("".join(f"{line}\n" for line in ("ok", *health.sentences())))
