"""The one Celery task: a message says that there is work, the runner does the rest."""

from celery import Celery

from nightshift.common.broker import WAKE
from nightshift.worker.runner import Runner


def register(app: Celery, runner: Runner) -> None:
    """Registers the task under the name that the producer sends it by."""

    @app.task(name=WAKE)
    def wake() -> None:
        runner.work("message", wait=True)
