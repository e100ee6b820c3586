"""The OpenAPI document: every address stands in it, and no request makes an answer that it does not have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.ledger import keys, tenants

OPERATIONS = sorted(
    (route.path, route.operation.method)  # type: ignore[attr-defined]
    for route in serve_app.ROUTES
    if isinstance(route, Route)
)


@pytest.fixture
def app(ledger: Ledger, tmp_path: Path) -> Starlette:
    """A server in this process, with a store and a model."""
    models = tmp_path / "models.yaml"
    models.write_text("models: {m: {engine: {backend: vllm, model: a/b}}}\n")
    options = {"serve_store": str(tmp_path / "store"), "serve_models": models}
    return serve_app.build(ledger, load_settings(webhook_key="0123456789abcdef", **options))


@pytest.fixture
def key(ledger: Ledger) -> Iterator[str]:
    """The key of an operator."""
    with ledger.transaction() as connection:
        tenants.ensure(connection, "acme")
        _, found = keys.create(connection, "acme", "any", "operator", None)
    return found


def test_every_address_stands_in_the_document(app: Starlette) -> None:
    found = TestClient(app).get("/openapi.json").json()
    described = sorted(
        (path, method.upper()) for path, each in found["paths"].items() for method in each
    )
    assert described == sorted((path.replace(":path", ""), method) for path, method in OPERATIONS)
    assert all(each["summary"] for path in found["paths"].values() for each in path.values())


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_whatever_is_asked_the_answer_is_one_of_the_document(
    app: Starlette, key: str, path: str, method: str
) -> None:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import response_schema_conformance

    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operation = schema[path.replace(":path", "")][method]
    headers = {"authorization": f"Bearer {key}"}

    @given(case=operation.as_strategy())
    @settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        answer = case.call(headers=headers)
        checks = [not_a_server_error, response_schema_conformance]
        case.validate_response(answer, checks=checks, headers=headers)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    ask()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/files/%00", 404),
        ("/v1/files/..%2f..%2fetc%2fpasswd", 404),
        ("/v1/files/" + "a" * 5000, 404),
        ("/v1/batches/%2e%2e", 404),
        ("/v1/batches/\ud7ff", 404),
        ("/api/jobs/99999999999999999999999", 404),
        ("/api/jobs/-1", 404),
        ("/api/jobs/1e3", 404),
        ("/api/jobs/%D9%A1", 404),
        ("/v1/batches?limit=0", 400),
        ("/v1/batches?limit=101", 400),
        ("/v1/batches?limit=%D9%A1", 400),
        ("/v1/batches?after=%00", 400),
        ("/v1/files?order=up", 400),
        ("/v1/files?after=nobody", 400),
        ("/v1/files?purpose=%00", 400),
        ("/api/jobs?status=%00", 400),
        ("/nowhere", 404),
        ("/v1/files//", 404),
        ("/V1/files", 404),
    ],
)
def test_strange_addresses_are_refused_in_one_shape(
    app: Starlette, key: str, path: str, status: int
) -> None:
    client = TestClient(app, headers={"authorization": f"Bearer {key}"})
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b'{"input_file_id": "\\u0000", "endpoint": "/v1/embeddings", "completion_window": "1h"}',
        b'{"input_file_id": "\\ud800", "endpoint": "/v1/embeddings", "completion_window": "1h"}',
        b'{"metadata": ' + b"[" * 20_000 + b"}",
        b'{"completion_window": 1e999}',
        b"9" * 5000,
    ],
)
def test_strange_bodies_are_refused_in_one_shape(app: Starlette, key: str, body: bytes) -> None:
    client = TestClient(app, headers={"authorization": f"Bearer {key}"})
    answer = client.post("/v1/batches", content=body)
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_methods_and_keys_that_do_not_fit_are_refused_in_one_shape(
    app: Starlette, key: str
) -> None:
    client = TestClient(app)
    for method, path, headers, status in [
        ("PUT", "/v1/files", {"authorization": f"Bearer {key}"}, 405),
        ("GET", "/v1/files", {}, 401),
        ("GET", "/v1/files", {"authorization": "Bearer wrong"}, 401),
        ("GET", "/v1/files", {"authorization": f"Basic {key}"}, 401),
        ("GET", f"/v1/files?key={key}", {}, 401),
        ("POST", "/v1/files", {"authorization": f"Bearer {key}"}, 400),
    ]:
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == status, (method, path, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
