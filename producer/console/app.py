"""Every page, as routes beside the HTTP API."""

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from nightshift.producer.console import batches, entrance, fleet, job, jobs, rows
from nightshift.producer.console.jobs import Trails
from nightshift.producer.console.live import Live

ROUTES: list[BaseRoute] = [
    *entrance.ROUTES,
    *jobs.ROUTES,
    *job.ROUTES,
    *rows.ROUTES,
    *batches.ROUTES,
    *fleet.ROUTES,
]


def add(app: Starlette) -> None:
    """Gives an application of the HTTP API its pages."""
    app.router.routes.extend(ROUTES)
    app.state.live, app.state.trails, app.state.kinds = Live(), Trails(), job.Kinds()
