"""Every page, as routes beside the HTTP API."""

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from nightshift.producer.console import entrance, fleet, job, jobs
from nightshift.producer.console.jobs import Trails
from nightshift.producer.console.live import Live

ROUTES: list[BaseRoute] = [*entrance.ROUTES, *jobs.ROUTES, *job.ROUTES, *fleet.ROUTES]


def add(app: Starlette) -> None:
    """Gives an application of the HTTP API its pages."""
    app.router.routes.extend(ROUTES)
    app.state.live, app.state.trails = Live(), Trails()
