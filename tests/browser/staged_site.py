"""The pages over a staged fleet, served on a loopback port, and a browser window in which somebody has come in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve import server
from nightshift.producer.serve.console import app as console
from nightshift.producer.serve.ledger import keys, tenants
from tests.browser.conftest import Person


@contextmanager
def served(ledger: Ledger) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of the pages, and the key of a user and of an operator."""
    app = serve_app.build(ledger, load_settings())
    console.add(app)
    found = {}
    with ledger.transaction() as connection:
        for tenant, role in (("acme", "user"), ("ops", "operator")):
            tenants.ensure(connection, tenant)
            found[role] = keys.create(connection, tenant, role, role, None)[1]  # type: ignore[arg-type]
    with server.beside(app, 0) as port:
        yield f"http://127.0.0.1:{port}", found


@contextmanager
def looking(browser: Browser, base: str, key: str, **options: Any) -> Iterator[Person]:
    """A window of somebody who has given a key."""
    somebody = Person(browser, base, **options)
    try:
        somebody.login(key)
        yield somebody
    finally:
        somebody.context.close()
    assert somebody.complaints == []
