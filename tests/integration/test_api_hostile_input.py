"""Input that no sane client sends: always one sentence in one shape, never a server error, and no word about
the machines of the operator.
"""

import html
import json
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from httpx2 import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from nightshift.common.errors import (
    BadInput,
    LedgerRefused,
    LedgerUnavailable,
    StatementRefused,
    StorageUnavailable,
)
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import failures, leasing
from nightshift.common.ledger.jobs import jobs, watches
from nightshift.common.public_text import private
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve import errors
from nightshift.producer.serve.calls import JSON_OBJECT
from nightshift.producer.serve.console import app as console
from nightshift.producer.serve.ledger import keys, tenants
from tests.support.fleet import function_spec
from tests.support.world import World

FORM = "multipart/form-data; boundary=a"


class Site:
    """A server, and a user of the tenant acme."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        settings = load_settings(serve_store=str(folder / "store"), webhook_key="0123456789abcdef")
        with ledger.transaction() as connection:
            tenants.ensure(connection, "acme")
            key = keys.create(connection, "acme", "any", "user", None)[1]
        self.app = app = serve_app.build(ledger, settings)
        headers = {"authorization": f"Bearer {key}"}
        self.client = TestClient(app, headers=headers, raise_server_exceptions=False)


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


def is_refused(answer: Response) -> dict[str, Any]:
    assert 400 <= answer.status_code < 500, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Postgres" not in error["message"]
    return error


def part(name: str, value: bytes, filename: bytes | None = None) -> bytes:
    named = b"" if filename is None else b'; filename="' + filename + b'"'
    head = b'--a\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + named
    return head + b"\r\n\r\n" + value + b"\r\n"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(f"{FORM}{'a' * 300}", b"--a", id="a long boundary"),
        pytest.param("multipart/form-data; boundary=", b"--a", id="no boundary"),
        pytest.param(FORM, part("purpose", b"batch") + part("file", b"x", b"a\0b"), id="NUL"),
        pytest.param(FORM, part("purpose", b"batch") + part("file", b"x", b"n" * 2000), id="name"),
        pytest.param(FORM, b"--a\r\nno header\r\n\r\nb\r\n--a--", id="no header"),
        pytest.param(FORM, part("file", b"x", b"f"), id="cut off"),
        pytest.param("text/plain", b"x", id="no form"),
    ],
)
def test_a_form_that_is_none_is_refused(site: Site, kind: str, body: bytes) -> None:
    end = b"" if body.endswith(b"--") else b"--a--\r\n"
    whole = body if b"cut" in body or kind == "text/plain" else body + end
    if body == part("file", b"x", b"f"):
        whole = body[:-4]
    is_refused(site.client.post("/v1/files", content=whole, headers={"content-type": kind}))
    assert site.client.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("path", ["/v1/batches", "/api/jobs", "/api/webhooks"])
def test_numbers_that_are_none_are_refused_everywhere(site: Site, path: str, number: str) -> None:
    body = f'{{"nightshift": {{"budget": {number}}}, "input_file_id": "f"}}'
    assert is_refused(site.client.post(path, content=body))["code"] == "invalid_number"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "9"),
        ("priority", 9),
        ("priority", "x"),
        ("priority", []),
        ("priority", 10**30),
        ("max_parallel", 2**31),
        ("max_parallel", 0),
        ("budget", "nan"),
        ("weight", "inf"),
        ("weight", -1),
        ("pool", "other"),
        ("pool", "x" * 3000),
        ("finish_by", "99999999999999999999h"),
        ("revision", "main"),
        ("id", 7),
    ],
)
def test_a_change_is_held_to_the_tenant_and_the_spec_however_it_is_written(
    site: Site, world: World, field: str, value: Any
) -> None:
    job = world.job(3, tenant="acme")
    world.do("UPDATE tenants SET max_priority = 5, pools = '{default}'")
    is_refused(site.client.patch(f"/api/jobs/{job}", content=json.dumps({field: value})))
    assert world.ask("SELECT FROM audit_log WHERE action = 'set'") == []
    done = site.client.patch(f"/api/jobs/{job}", json={"priority": "5"})
    assert done.status_code == 200, done.text


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (LedgerUnavailable("Postgres at db-1:5432 cannot be reached"), 503, "the ledger cannot"),
        (LedgerRefused("Postgres at db-1:5432 refused user x"), 503, "the ledger cannot"),
        (StorageUnavailable("s3://db-1/x: no answer"), 503, "the store cannot"),
        (StatementRefused("Postgres at db-1:5432 refused a statement"), 500, "the server failed"),
        (RuntimeError("db-1"), 500, "the server failed"),
        (BadInput("the limit is wrong"), 400, "the limit is wrong"),
    ],
)
def test_an_answer_names_no_machine_of_the_operator(
    error: Exception, status: int, says: str
) -> None:
    answer = errors.answer(error)
    assert answer.status_code == status
    assert errors.message(answer).startswith(says)
    assert "db-1" not in bytes(answer.body).decode()


CHANGES = sorted(
    (route.path.replace("{id}", "1"), route.operation.method)  # type: ignore[attr-defined]
    for route in serve_app.ROUTES
    if isinstance(route, Route) and route.operation.takes is JSON_OBJECT  # type: ignore[attr-defined]
)


@pytest.mark.parametrize("depth", [100, 500, 100_000])
def test_json_that_is_nested_deep_is_refused_everywhere(site: Site, depth: int) -> None:
    assert {("/v1/batches", "POST"), ("/api/jobs", "POST"), ("/api/webhooks", "POST")} < set(
        CHANGES
    )
    for path, method in CHANGES:
        for opened, closed in (('{"a":', "}"), ("[", "]")):
            body = f'{{"metadata": {opened * depth}1{closed * depth}}}'
            answer = is_refused(site.client.request(method, path, content=body))
            assert answer["code"] == "invalid_json", (path, opened)


def test_a_webhook_keeps_each_event_once_and_no_address_with_a_break(site: Site) -> None:
    def made(url: str) -> Response:
        events = ["batch.failed", "batch.completed"] * 50_000
        return site.client.post("/api/webhooks", json={"url": url, "events": events})

    done = made("https://1.1.1.1/a?b=c")
    assert done.status_code == 201, done.text
    assert done.json()["events"] == ["batch.completed", "batch.failed"]
    (kept,) = site.client.get("/api/webhooks").json()["data"]
    assert kept["events"] == ["batch.completed", "batch.failed"]
    for url in (
        "https://1.1.1.1/a\r\nx: y",
        "https://1.1.1.1\r\n/a",
        "https://1.1.1.1/a\t",
        " https://1.1.1.1/a",
        "https://1.1.1.1/?\x7f",
        "https://1.1.1.1/" + "a" * 3000,
    ):
        is_refused(made(url))
    assert len(site.client.get("/api/webhooks").json()["data"]) == 1


def test_no_answer_names_a_path_of_the_server_that_its_caller_did_not_name(
    site: Site, world: World, tmp_path: Path
) -> None:
    """What the ledger and messages hold of paths, seen by a user, by an operator, and by whoever asks this machine."""
    own, store = tmp_path / "own", tmp_path / "store"
    world.do(f"UPDATE tenants SET roots = '{{{own}}}'")
    job = world.job(3, tenant="acme")
    world.do(f"UPDATE jobs SET roots = '{{{own}}}', uploads = '{store}/acme/inputs'")
    place = f"{store}/acme/files/file-1.jsonl"
    inputs, source = f"{store}/acme/inputs/file-2.csv", f"{own}/in.jsonl"
    ours = (place, str(Path(serve_app.__file__).parent), str(tmp_path / "models"), "/scratch")
    world.run(
        jobs.fail,
        job,
        BadInput(
            f"{private(place)}: cut off; {private(inputs)}; {private(source)}; "
            f"{private(Path(serve_app.__file__))} line 3"
        ),
    )
    seen = site.client.get(f"/api/jobs/{job}").text
    assert "file-1.jsonl: cut off" in seen
    assert inputs in seen, "the specs of the tenant name its uploads"
    assert source in seen
    assert not [each for each in ours if each in seen]
    world.do("UPDATE tenants SET callables = true")
    refused = site.client.post("/api/jobs", json=function_spec("x", Path(place), tmp_path / "o"))
    assert place in refused.json()["error"]["message"], "which the caller has named"
    operator = {"authorization": f"Bearer {key(world, 'operator')}"}
    assert place in site.client.get(f"/api/jobs/{job}", headers=operator).text
    world.do("DELETE FROM api_keys")
    local = TestClient(site.client.app, base_url="http://127.0.0.1")
    assert place in local.get(f"/api/jobs/{job}").text


SECRETS = (
    pytest.param("{} cannot be read", id="as it is"),
    pytest.param("open({!r}) failed", id="quoted"),
    pytest.param("PUT https://host/o?name={quoted}: 403", id="in an address"),
    pytest.param('{{"file": "{escaped}"}}', id="in JSON"),
    pytest.param("the cache /scratch/worker-7/hub has no room", id="of another machine"),
)


@pytest.mark.parametrize("message", SECRETS)
@pytest.mark.parametrize("kind", [pytest.param(BadInput, marks=pytest.mark.slow), OSError])
def test_a_message_with_a_path_that_nobody_marked_is_for_operators(
    site: Site, world: World, tmp_path: Path, message: str, kind: type[Exception]
) -> None:
    """In every table that a tenant's pages and answers read, however the path is written."""
    place = f"{tmp_path}/store/acme/files/file-1.jsonl"
    ways = {"quoted": quote(place, safe=""), "escaped": place.replace("/", "\\/")}
    whole = message.format(place, **ways)
    forms = (*ways.values(), place, "/scratch")
    error = kind(whole)
    job = world.job(1, 1, 1, tenant="acme")
    fail = partial(failures.fail, error=error, permanent=True, max_attempts=1, backoff_seconds=60)
    world.run(fail, world.lease(job))
    world.run(lambda connection: leasing.release(connection, [world.lease(job)], error=error))
    world.run(jobs.remark, job, error)
    world.run(lambda connection: watches.start(connection, job, 60))
    world.do("UPDATE job_watches SET next_look_at = now()")
    due = world.run(watches.take_due, "reaper")
    assert due is not None
    end = partial(watches.end_look, files=None, listing=None, error=error)
    world.run(end, due.hold)
    world.run(jobs.pause, job, error)
    console.add(site.app)
    places = [
        "/api/jobs",
        *(f"/api/jobs/{job}{each}" for each in ("", "/explain", "/history", "/errors")),
        "/",
        *(f"/jobs/{job}{each}" for each in ("", "/failed", "/batches/0", "/batches/1")),
    ]
    operator = {"authorization": f"Bearer {key(world, 'operator')}"}
    for each in places:
        answer = site.client.get(each)
        assert answer.status_code == 200, (each, answer.text)
        text = f"{answer.text} {html.unescape(answer.text)}"
        assert not [form for form in forms if form in text or form in repr(text)], each
    for each in (f"/api/jobs/{job}", f"/api/jobs/{job}/explain", f"/api/jobs/{job}/history"):
        answer = site.client.get(each, headers=operator).json()
        assert any(whole in text for text in texts(answer)), each


def texts(value: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in texts(each)]


def key(world: World, role: Any) -> str:
    """A new key of the tenant acme."""
    return world.run(lambda connection: keys.create(connection, "acme", role, role, None)[1])


def test_a_batch_of_the_openai_api_names_no_folder_of_the_server(
    site: Site, world: World, tmp_path: Path
) -> None:
    """Its tenant has named neither its files nor its model."""
    store, model = f"{tmp_path}/store/acme", f"{tmp_path}/models/small"
    job = world.job(
        3,
        tenant="acme",
        input={"uri": f"{store}/files/file-1.jsonl", "format": "openai"},
        task={"kind": "requests", "endpoint": "/v1/chat/completions"},
        engine={"backend": "vllm", "model": model},
        output={"uri": f"{store}/batches/batch_1"},
    )
    world.do(f"UPDATE jobs SET output_uri = '{store}/batches/batch_1'")
    world.do(f"UPDATE input_files SET uri = '{store}/files/file-1.jsonl'")
    console.add(site.app)
    for each in ("/api/jobs", f"/api/jobs/{job}", f"/jobs/{job}", "/"):
        seen = site.client.get(each)
        assert seen.status_code == 200, seen.text
        assert store not in seen.text, each
        assert model not in seen.text, each
