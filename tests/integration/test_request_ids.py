"""Every answer of the server has an id of its request, which the lines of its log have, too."""

from pathlib import Path

import pytest
import structlog

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve.connections import refusal
from nightshift.producer.serve.ledger import files
from tests.support.console_site import Site


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, load_settings(serve_store=str(tmp_path / "store")))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/v1/batches", 200),
        ("GET", "/v1/files/file-0", 404),
        ("PUT", "/v1/files", 405),
        ("POST", "/v1/batches", 400),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/api/jobs", 200),
        ("GET", "/", 200),
        ("GET", "/jobs", 405),
        ("GET", "/nowhere", 404),
    ],
)
def test_every_answer_has_an_id_of_its_own(site: Site, method: str, path: str, status: int) -> None:
    client = site.browser("user")
    client.headers["authorization"] = f"Bearer {site.keys['user']}"
    given = {"x-request-id": "mine"}
    answers = [client.request(method, path, headers=given) for _ in range(2)]
    assert [each.status_code for each in answers] == [status] * 2
    ids = [each.headers["x-request-id"] for each in answers]
    assert all(each.startswith("req_") and len(each) == 36 for each in ids)
    assert len(set(ids)) == 2
    assert client.get(path, headers={"authorization": "Bearer no"}).headers["x-request-id"]


def test_what_the_connection_itself_refuses_has_an_id() -> None:
    assert b"\r\nx-request-id: req_" in refusal("400 Bad Request", "no")


def test_a_crash_has_the_id_of_its_log_line(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(files, "get", crash)
    client = site.browser("user")
    client.headers["authorization"] = f"Bearer {site.keys['user']}"
    client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    lines: list[dict[str, object]] = []

    def keep(_logger: object, _method: str, event: dict[str, object]) -> dict[str, object]:
        lines.append(dict(structlog.contextvars.merge_contextvars(None, "", event)))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        answer = client.get("/v1/files/file-1", headers={"x-client-request-id": "theirs"})
    finally:
        structlog.configure(**before)
    assert answer.status_code == 500
    [line] = [each for each in lines if each["event"] == "request_crashed"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["client_request_id"] == "theirs"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a%22b%0D%0Ac%22.jsonl", 'a"b\r\nc".jsonl'),
        ("100%25 %41.jsonl", "100%25 %41.jsonl"),
    ],
)
def test_the_name_of_a_file_is_as_its_client_has_it(site: Site, sent: str, kept: str) -> None:
    """Browsers and HTTP libraries escape three characters of a name, and nothing else."""
    client = site.browser("user")
    client.headers["authorization"] = f"Bearer {site.keys['user']}"
    body = (
        '--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--x\r\ncontent-disposition: form-data; name="file"; filename="{sent}"\r\n\r\n'
        "{}\r\n--x--\r\n"
    )
    kind = {"content-type": "multipart/form-data; boundary=x"}
    answer = client.post("/v1/files", content=body, headers=kind)
    assert answer.status_code == 200, answer.text
    assert answer.json()["filename"] == kept
    content = client.get(f"/v1/files/{answer.json()['id']}/content")
    assert content.status_code == 200
    assert "\n" not in content.headers.get("content-disposition", "")
