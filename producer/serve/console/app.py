"""Every page, as routes beside the HTTP API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.advice.here import Here
from nightshift.producer.serve import app as gateway
from nightshift.producer.serve import server
from nightshift.producer.serve.calls import Context
from nightshift.producer.serve.console import (
    batches,
    failures,
    fleet,
    job,
    job_pictures,
    jobs,
    new_job,
    page_calls,
    results,
    rows,
    sign_in,
)
from nightshift.producer.serve.console.job_answers import AnswersSeen
from nightshift.producer.serve.console.jobs import Trails
from nightshift.producer.serve.console.live import Views
from nightshift.producer.serve.console.model_names import ModelNames
from nightshift.producer.serve.console.session import Session

ROUTES: list[BaseRoute] = [
    *sign_in.ROUTES,
    *jobs.ROUTES,
    *new_job.ROUTES,
    *job.ROUTES,
    *job_pictures.ROUTES,
    *rows.ROUTES,
    *results.ROUTES,
    *batches.ROUTES,
    *fleet.ROUTES,
]


def add(app: Starlette, session: Session | None = None) -> None:
    """Gives an application its pages: for those whom the HTTP API knows, or for the one `session`."""
    app.router.routes.extend(ROUTES)
    app.add_exception_handler(HTTPException, page_calls.stray)
    app.state.views, app.state.trails, app.state.kinds = Views(), Trails(), failures.Kinds()
    app.state.session, app.state.answers = session, AnswersSeen()
    context: Context = app.state.context
    app.state.model_names = ModelNames(
        lambda: None if context.settings.serve_models is None else context.models()
    )


@contextmanager
def at_this_machine(
    ledger: Ledger, settings: Settings, here: Callable[[], Here], port: int = 0
) -> Iterator[str]:
    """Serves the pages alone on a loopback port, in a thread, until the block ends; gives the link that
    opens them once. `here` says who works on the ledger. Raises BadInput when the port is taken.
    """
    session = Session()
    app = gateway.build(ledger, settings, routes=(), here=here)
    add(app, session)
    with server.beside(app, port) as taken:
        yield f"http://127.0.0.1:{taken}/enter?ticket={session.ticket}"
