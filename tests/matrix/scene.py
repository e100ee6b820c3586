"""A fleet, its HTTP API and the stand-in server, which all jobs of the matrix share."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.console import app as console
from tests.matrix.jobs import Stage
from tests.matrix.kinds import answering
from tests.matrix.life import LEFT_OUT_ROUTES, STEPS
from tests.support.console_site import Site
from tests.support.fleet import Fleet, logs, wait_until
from tests.support.remote import Remote

RULES = """
from pathlib import Path

def shout(rows):
    if not (Path(__file__).parent / "mended").exists():
        if any(row["text"].startswith("bad") for row in rows):
            raise ValueError("this text is refused")
    return [{"loud": row["text"].upper()} for row in rows]
"""


class Scene:
    """What the jobs run on. The fleet has a reaper and a worker of two slots."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, remote: Remote) -> None:
        self.folder, self.database_url = folder, database_url
        (folder / "matrix_rules.py").write_text(RULES)
        place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
        self.environment = {
            "NIGHTSHIFT_DATABASE_URL": database_url,
            "NIGHTSHIFT_BROKER_URL": redis_url,
            "NIGHTSHIFT_ALLOWED_MODULES": "matrix_rules",
            "NIGHTSHIFT_CALLABLE_PATHS": str(folder),
            "NIGHTSHIFT_CATALOGS": json.dumps({"lake": {"type": "sql", **place}}),
            "NIGHTSHIFT_ENGINE_IDLE_SECONDS": "600",
            "NIGHTSHIFT_SERVE_STORE": str(folder / "store"),
        }
        self.fleet = Fleet(folder, **self.environment)
        self.stage = Stage(folder, remote.url, self._catalog)
        self.ledger: Ledger | None = None
        self._mended = folder / "mended"
        answering(remote, self._mended.exists)

    def start(self) -> None:
        """Starts the processes, and serve in this one."""
        catalog = self._catalog()
        for space in ("inputs", "outputs"):
            catalog.create_namespace(space)
        self.fleet.reaper()
        self.fleet.worker("--slots", "2")
        self.ledger = Ledger(self.database_url, connections=8)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            site = Site(self.ledger)
        self.browser = site.browser("ops")
        self.app = site.app
        key = {"authorization": f"Bearer {site.keys['ops']}"}
        self.client = TestClient(site.app, headers=key)

    def end(self) -> None:
        """Ends them."""
        self.fleet.end()
        if self.ledger is not None:
            self.ledger.close()

    def mend(self, is_mended: bool) -> None:
        """Whether rows that are refused at first have an answer from now on."""
        self._mended.touch() if is_mended else self._mended.unlink(missing_ok=True)

    def write_spec(self, spec: dict[str, Any]) -> Path:
        """A file with the spec."""
        return self.fleet.spec(spec)

    def until_closed(self, number: int) -> None:
        """Waits until a reaper has closed a job."""

        def is_closed() -> bool:
            return bool(self.client.get(f"/api/jobs/{number}").json()["finished_at"])

        wait_until(is_closed, what=f"the end of job {number}")

    def new_routes(self, known: Iterable[str]) -> list[str]:
        """Paths of routes of one job that nobody has given a cell or a reason: they are asked as they are."""
        return [
            path for path in routes() if f"GET {path}" not in known and path not in LEFT_OUT_ROUTES
        ]

    def logs(self) -> str:
        """What the processes of the fleet wrote."""
        return logs(self.folder)

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **json.loads(self.environment["NIGHTSHIFT_CATALOGS"])["lake"])


def routes() -> list[str]:
    """Paths of routes and pages of one job that are read."""
    return [
        each.path
        for each in (*serve_app.ROUTES, *console.ROUTES)
        if isinstance(each, Route) and "GET" in (each.methods or ()) and "/jobs/{id}" in each.path
    ]


def changing_routes() -> set[str]:
    """Routes of the API that change a job."""
    return {
        f"{method} {each.path}"
        for each in serve_app.ROUTES
        if isinstance(each, Route) and each.path.startswith("/api/jobs")
        for method in (each.methods or ())
        if method not in ("GET", "HEAD")
    } - set(STEPS)
