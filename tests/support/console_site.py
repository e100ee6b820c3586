"""The pages of `serve` in this process, and a browser for each of some people."""

from httpx2 import Response
from starlette.applications import Starlette
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings, load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.console import app as console
from nightshift.producer.serve.ledger import keys, tenants

ORIGIN = "http://console"

PAGES = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
"""What a browser accepts that opens an address."""


class Site:
    """The tenants acme, other and ops, and who looks: a viewer, a user, a user of the other, an operator."""

    def __init__(self, ledger: Ledger, settings: Settings | None = None) -> None:
        self.app: Starlette = serve_app.build(ledger, settings or load_settings())
        console.add(self.app)
        self.keys = {}
        with ledger.transaction() as connection:
            for name in ("acme", "other", "ops"):
                tenants.ensure(connection, name)
            for who, tenant, role in (
                ("viewer", "acme", "viewer"),
                ("user", "acme", "user"),
                ("other", "other", "user"),
                ("ops", "ops", "operator"),
            ):
                self.keys[who] = keys.create(connection, tenant, who, role, None)[1]  # type: ignore[arg-type]

    def browser(self, who: str | None = None) -> TestClient:
        """A browser in which somebody has given a key."""
        found = TestClient(
            self.app, base_url=ORIGIN, headers={"accept": PAGES}, follow_redirects=False
        )
        if who is not None:
            given = {"key": self.keys[who], "next": "/"}
            assert send(found, "/login", given).status_code == 303
        return found


def send(browser: TestClient, path: str, form: dict[str, object], origin: str = "") -> Response:
    """A form, as a browser sends it from a page of the server."""
    return browser.post(path, data=form, headers={"origin": origin or ORIGIN})
