"""Who comes in: keys and their roles, the header of a trusted proxy, and this machine without a key."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.serve import access, app
from nightshift.producer.serve.ledger import keys, tenants
from nightshift.producer.serve.ledger.keys import Role
from tests.support.fleet import logs
from tests.support.serve import Door

HOST = "127.0.0.1:8080"
Headers = list[tuple[str, str]]


class Entrance:
    """A server in this process; `ask` says the status and whose jobs were listed."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def key(self, role: Role = "user", tenant: str = "acme") -> str:
        with self.ledger.transaction() as connection:
            tenants.ensure(connection, tenant)
            return keys.create(connection, tenant, "", role, None)[1]

    def ask(
        self,
        headers: Headers,
        *,
        peer: str = "127.0.0.1",
        path: str = "/api/jobs",
        method: str = "GET",
        **settings: Any,
    ) -> httpx.Response:
        built = app.build(self.ledger, Settings(**settings))
        hosts = [] if any(name == "host" for name, _ in headers) else [("host", HOST)]
        client = TestClient(built, base_url=f"http://{HOST}", client=(peer, 50_000))
        found: httpx.Response = client.request(method, path, headers=hosts + headers)
        return found


@pytest.fixture
def entrance(ledger: Ledger) -> Iterator[Entrance]:
    return Entrance(ledger)


def bearer(key: str, scheme: str = "Bearer") -> Headers:
    return [("authorization", f"{scheme} {key}")]


def test_a_key_opens_whatever_the_case_of_its_scheme(entrance: Entrance) -> None:
    key = entrance.key()
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert entrance.ask(bearer(key, scheme)).status_code == 200
    for headers in (
        [],
        bearer(""),
        bearer(key[:-1]),
        bearer(key + "x"),
        bearer(key, "Basic"),
        [("authorization", key)],
        bearer(key) + bearer(key),
        [("x-api-key", key)],
    ):
        refused = entrance.ask(headers)
        assert refused.status_code == 401, headers
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"


def test_a_key_in_the_address_is_refused_though_another_opens(entrance: Entrance) -> None:
    key = entrance.key()
    assert entrance.ask([], path=f"/api/jobs?api_key={key}").status_code == 401
    assert entrance.ask(bearer(key), path=f"/api/jobs?key={key}").status_code == 401


def test_a_viewer_changes_nothing_at_any_address(entrance: Entrance) -> None:
    """Every route but GET wants at least a user, whatever is there."""
    viewer = bearer(entrance.key("viewer"))
    routes = [route for route in app.ROUTES if isinstance(route, Route)]
    asked = 0
    for route in routes:
        for method in set(route.methods or ()) - {"HEAD"}:
            path = route.path.replace("{id}", "1").replace("{model:path}", "m")
            refused = entrance.ask(viewer, path=path, method=method).status_code == 403
            assert refused == (method != "GET"), (method, path)
            asked += refused
    assert asked > 5


def test_without_a_key_this_machine_alone_comes_in(entrance: Entrance) -> None:
    assert entrance.ask([]).status_code == 200
    assert entrance.ask(bearer("none")).status_code == 200
    assert entrance.ask([("host", "localhost:8080")]).status_code == 200
    assert entrance.ask([("host", "[::1]:8080")]).status_code == 200
    for headers in (
        [("host", "evil.example:8080")],
        [("host", "127.0.0.1.evil.example")],
        [("host", "evil.example"), ("host", HOST)],
        [("host", "[")],
        [("host", "")],
    ):
        assert entrance.ask(headers).status_code == 401, headers
    assert entrance.ask([], serve_host="10.0.0.1").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://evil.example")],
        [("origin", "null")],
        [("origin", "http://127.0.0.1:3000")],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site")],
    ],
)
def test_the_page_of_another_site_does_not_come_in(entrance: Entrance, headers: Headers) -> None:
    assert entrance.ask(headers).status_code == 403
    own = [("origin", f"http://{HOST}"), ("sec-fetch-site", "same-origin")]
    assert entrance.ask(own).status_code == 200
    key = bearer(entrance.key())
    assert entrance.ask(headers + key).status_code == 200


def test_the_door_stays_closed_once_a_key_was_made(entrance: Entrance, ledger: Ledger) -> None:
    """Also when it is revoked: the last key that ends would let everybody in."""
    beyond = Settings(serve_host="10.0.0.1")
    assert access.nobody_enters(ledger, beyond)
    assert entrance.ask([], serve_host="10.0.0.1").status_code == 401
    key = entrance.key()
    assert entrance.ask([]).status_code == 401
    with ledger.transaction() as connection:
        assert keys.revoke(connection, 1)
    assert entrance.ask(bearer(key)).status_code == 401
    assert entrance.ask([]).status_code == 401
    assert not access.nobody_enters(ledger, beyond)


def test_a_trusted_proxy_names_the_tenant_and_nobody_else_does(entrance: Entrance) -> None:
    named = [("x-tenant", "acme")]
    proxy: dict[str, Any] = {
        "serve_tenant_header": "X-Tenant",
        "serve_proxies": "10.1.0.0/16, ::1/128",
    }
    assert entrance.ask(named, peer="10.1.2.3", **proxy).status_code == 200
    assert entrance.ask(named, peer="::ffff:10.1.2.3", **proxy).status_code == 200
    assert entrance.ask(named, peer="::1", **proxy).status_code == 200
    for peer in ("10.2.0.1", "127.0.0.1", "", "testclient"):
        assert entrance.ask(named, peer=peer, **proxy).status_code == 401, peer
    assert entrance.ask([], peer="10.1.2.3", **proxy).status_code == 401
    entrance.key()
    assert entrance.ask(named, peer="10.1.2.3").status_code == 401
    twice = entrance.ask([*named, ("x-tenant", "other")], peer="10.1.2.3", **proxy)
    assert twice.status_code == 401
    odd = entrance.ask([("x-tenant", "acme, other")], peer="10.1.2.3", **proxy)
    assert odd.status_code == 400
    page = [*named, ("sec-fetch-site", "cross-site")]
    assert entrance.ask(page, peer="10.1.2.3", **proxy).status_code == 403


def test_what_a_proxy_lets_in_is_a_user_of_its_tenant(entrance: Entrance, ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        tenants.ensure(connection, "acme")
    headers = [("x-tenant", "acme")]
    refused = entrance.ask(headers, path="/api/jobs/1", serve_tenant_header="X-Tenant")
    assert refused.status_code == 404
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_asked_to_end_ends_with_success(
    tmp_path: Path, database_url: str, redis_url: str, asked: signal.Signals
) -> None:
    door = Door(tmp_path / "door", database_url, redis_url, {})
    try:
        process = door.serve()
        process.send_signal(asked)
        assert process.wait(200) == 0
        assert "Traceback" not in logs(door.folder)
    finally:
        door.end()
