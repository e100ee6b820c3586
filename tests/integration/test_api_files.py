"""Files of the HTTP API: uploaded as streams, listed, read, deleted, and swept away."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.api_batches.sweep import sweep_once
from nightshift.producer.serve.ledger import files, keys, tenants

LIMIT = 3_000_000


@pytest.fixture
def clients(ledger: Ledger, tmp_path: Path) -> dict[str, TestClient]:
    """A client of each of two tenants."""
    options = {"serve_store": str(tmp_path), "serve_max_file_bytes": LIMIT}
    app = serve_app.build(ledger, load_settings(**options))
    found = {}
    with ledger.transaction() as connection:
        for name in ("acme", "other"):
            tenants.ensure(connection, name)
            _, key = keys.create(connection, name, name, "user", None)
            found[name] = TestClient(app, headers={"authorization": f"Bearer {key}"})
    return found


@pytest.fixture
def acme(clients: dict[str, TestClient]) -> TestClient:
    return clients["acme"]


def upload(client: TestClient, data: bytes, name: str = "rows.jsonl") -> str:
    answer = client.post("/v1/files", data={"purpose": "batch"}, files={"file": (name, data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.jsonl") if path.is_file()]


def form(*parts: tuple[str, bytes], boundary: bytes = b"B") -> bytes:
    body = b"".join(
        b"--"
        + boundary
        + b"\r\ncontent-disposition: form-data; "
        + head.encode()
        + b"\r\n\r\n"
        + data
        + b"\r\n"
        for head, data in parts
    )
    return body + b"--" + boundary + b"--\r\n"


PURPOSE = ('name="purpose"', b"batch")
MULTIPART = {"content-type": "multipart/form-data; boundary=B"}


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20, (1 << 20) + 1, LIMIT])
def test_what_goes_in_comes_out(acme: TestClient, size: int) -> None:
    data = os.urandom(size)
    file_id = upload(acme, data, name="../../etc/passwd")
    seen = acme.get(f"/v1/files/{file_id}").json()
    assert (seen["bytes"], seen["filename"], seen["purpose"]) == (size, "../../etc/passwd", "batch")
    content = acme.get(f"/v1/files/{file_id}/content")
    assert (content.content, content.headers["content-length"]) == (data, str(size))


@pytest.mark.parametrize("first", [True, False])
def test_the_file_may_come_before_its_purpose(acme: TestClient, first: bool) -> None:
    file = ('name="file"; filename="a\\"b"', b"\r\n--A\r\n--")
    body = form(file, PURPOSE) if first else form(PURPOSE, file)
    answer = acme.post("/v1/files", content=body, headers=MULTIPART)
    assert answer.status_code == 200, answer.text
    assert acme.get(f"/v1/files/{answer.json()['id']}/content").content == b"\r\n--A\r\n--"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (form(PURPOSE), 400, "file"),
        (form(('name="file"; filename="a"', b"x")), 400, "purpose"),
        (
            form(('name="purpose"', b"assistants"), ('name="file"; filename="a"', b"x")),
            400,
            "purpose",
        ),
        (form(PURPOSE, ('name="data"; filename="a"', b"x")), 400, "file"),
        (form(PURPOSE, *[('name="file"; filename="a"', b"x")] * 2), 400, "file"),
        (form(('name="purpose"', b"b" * 5000)), 400, "purpose"),
        (form(*[(f'name="f{n}"', b"x") for n in range(30)]), 400, None),
        (form(PURPOSE, ('name="file"; filename="a"', b"x" * (LIMIT + 1))), 413, None),
        (form(PURPOSE, ('name="file"; filename="a"', b"x" * 9))[:-12], 400, None),
        (b"nonsense", 400, None),
    ],
)
def test_a_broken_form_leaves_nothing(
    acme: TestClient, tmp_path: Path, body: bytes, status: int, param: str | None
) -> None:
    answer = acme.post("/v1/files", content=body, headers=MULTIPART)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert acme.get("/v1/files").json()["data"] == []
    assert stored(tmp_path) == []


def test_lists_have_pages_to_the_last_and_no_empty_page_says_more(acme: TestClient) -> None:
    ids = [upload(acme, b"x") for _ in range(5)]
    for order, wanted in (("asc", ids), ("desc", ids[::-1])):
        found, after = [], None
        while True:
            query = {"limit": 2, "order": order} | ({"after": after} if after else {})
            page = acme.get("/v1/files", params=query).json()
            found += [each["id"] for each in page["data"]]
            assert page["has_more"] is (len(found) < 5)
            if not page["has_more"]:
                break
            after = page["last_id"]
        assert found == wanted
    assert acme.delete(f"/v1/files/{ids[2]}").status_code == 200
    after_gone = acme.get("/v1/files", params={"after": ids[2]}).json()
    assert [each["id"] for each in after_gone["data"]] == ids[1::-1], "a list goes on behind it"
    empty = acme.get("/v1/files", params={"after": ids[0]}).json()
    assert (empty["data"], empty["has_more"], empty["last_id"]) == ([], False, None)
    assert acme.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
    for limit in ("0", "10001", "00000000100000000", "9" * 30, "٣"):
        assert acme.get("/v1/files", params={"limit": limit}).status_code == 400, limit


def test_files_of_another_tenant_are_not_there(clients: dict[str, TestClient]) -> None:
    file_id = upload(clients["acme"], b"x")
    other = clients["other"]
    for path in ("", "/content"):
        assert other.get(f"/v1/files/{file_id}{path}").status_code == 404
    assert other.delete(f"/v1/files/{file_id}").status_code == 404
    assert other.get("/v1/files").json()["data"] == []
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "1h"}
    assert other.post("/v1/batches", json=body).status_code == 400


def test_a_file_in_use_stays_and_a_deleted_one_is_swept(
    acme: TestClient, ledger: Ledger, tmp_path: Path
) -> None:
    file_id = upload(acme, b"x")
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "1h"}
    batch = acme.post("/v1/batches", json=body).json()["id"]
    refused = acme.delete(f"/v1/files/{file_id}")
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert batch in refused.json()["error"]["message"]
    acme.post(f"/v1/batches/{batch}/cancel")
    assert acme.delete(f"/v1/files/{file_id}").json()["deleted"] is True
    assert acme.get(f"/v1/files/{file_id}").status_code == 404
    assert len(stored(tmp_path)) == 1
    sweep_once(ledger)
    assert stored(tmp_path) == []


def test_what_never_came_whole_is_swept_and_can_never_be_seen(
    acme: TestClient, ledger: Ledger, tmp_path: Path
) -> None:
    kept = upload(acme, b"kept")
    place = tmp_path / "half.jsonl"
    place.write_bytes(b"half")
    with ledger.transaction() as connection:
        files.receive(connection, "file-half", "acme", str(place))
    sweep_once(ledger)
    assert place.exists(), "its bytes may still come"
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_files SET touched_at = now() - interval '2 hours'")
    sweep_once(ledger)
    assert not place.exists()
    with ledger.transaction() as connection:
        given = {"purpose": "batch", "filename": "x", "size": 4, "expires_after": None}
        assert files.ready(connection, "file-half", **given) is None
    assert acme.get(f"/v1/files/{kept}/content").content == b"kept"


def test_an_expired_file_is_not_there_and_is_swept(
    acme: TestClient, ledger: Ledger, tmp_path: Path
) -> None:
    file_id = upload(acme, b"x")
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_files SET expires_at = now() - interval '1 second'")
    assert acme.get(f"/v1/files/{file_id}").status_code == 404
    assert acme.get("/v1/files").json()["data"] == []
    sweep_once(ledger)
    assert stored(tmp_path) == []


def test_rows_of_webhooks_are_deleted_a_month_after_their_delivery(
    acme: TestClient, ledger: Ledger
) -> None:
    def do(statement: str) -> None:
        with ledger.transaction() as connection:
            connection.exec_driver_sql(statement)

    do("INSERT INTO webhook_endpoints (id, tenant, url, events) VALUES ('e', 'acme', 'x', '{a}')")
    do(
        "INSERT INTO webhook_outbox (id, endpoint_id, event, body, delivered_at) VALUES "
        "('old', 'e', 'a', '', now() - interval '31 days'), ('new', 'e', 'a', '', now()), "
        "('open', 'e', 'a', '', NULL)"
    )
    sweep_once(ledger)
    with ledger.transaction() as connection:
        left = connection.exec_driver_sql("SELECT id FROM webhook_outbox ORDER BY id").scalars()
        assert list(left) == ["new", "open"]


@pytest.mark.parametrize(
    ("headers", "status", "place", "span"),
    [
        ({}, 200, slice(None), None),
        ({"range": "bytes=0-0"}, 206, slice(0, 1), "bytes 0-0/1000"),
        ({"range": "bytes=990-"}, 206, slice(990, None), "bytes 990-999/1000"),
        ({"range": "bytes=990-5000"}, 206, slice(990, None), "bytes 990-999/1000"),
        ({"range": "bytes=-10"}, 206, slice(990, None), "bytes 990-999/1000"),
        ({"range": "bytes=-5000"}, 206, slice(None), "bytes 0-999/1000"),
        ({"range": "bytes=1000-"}, 416, slice(0, 0), "bytes */1000"),
        ({"range": "bytes=-0"}, 416, slice(0, 0), "bytes */1000"),
        ({"range": "bytes=9-1"}, 200, slice(None), None),
        ({"range": "bytes=0-1,5-6"}, 200, slice(None), None),
        ({"range": "lines=0-1"}, 200, slice(None), None),
        ({"range": "bytes=5-9", "if-range": '"other"'}, 200, slice(None), None),
        ({"range": "bytes=5-9", "if-range": "ETAG"}, 206, slice(5, 10), "bytes 5-9/1000"),
        ({"if-none-match": "ETAG"}, 304, slice(0, 0), None),
        ({"if-none-match": '"other", W/ETAG'}, 304, slice(0, 0), None),
    ],
)
def test_content_comes_whole_or_in_one_range(
    acme: TestClient, headers: dict[str, str], status: int, place: slice, span: str | None
) -> None:
    data = os.urandom(1000)
    address = f"/v1/files/{upload(acme, data)}/content"
    etag = acme.head(address).headers["etag"]
    given = {name: value.replace("ETAG", etag) for name, value in headers.items()}
    answer = acme.get(address, headers=given)
    assert (answer.status_code, answer.headers.get("content-range")) == (status, span)
    if status == 416:
        assert answer.json()["error"]["param"] == "range"
        return
    assert answer.content == data[place]
    bare = acme.head(address, headers=given)
    assert (bare.status_code, bare.content) == (status, b"")
    assert bare.headers.get("content-length") == answer.headers.get("content-length")


def limited(ledger: Ledger, **limits: int | None) -> None:
    with ledger.transaction() as connection:
        known = tenants.get(connection, "acme")
        assert known is not None
        tenants.change(connection, replace(known, **limits))  # type: ignore[arg-type]


def sent(client: TestClient, data: bytes) -> tuple[int, str | None]:
    """The status of an upload, and its code if that is an error."""
    files = {"file": ("a.jsonl", data), "purpose": (None, "batch")}
    answer = client.post("/v1/files", files=files)
    return answer.status_code, answer.json().get("error", {}).get("code")


def test_files_and_bytes_of_a_tenant_are_bounded_and_what_goes_makes_room(
    clients: dict[str, TestClient], ledger: Ledger, tmp_path: Path
) -> None:
    acme, refused = clients["acme"], (429, "storage_limit_exceeded")
    limited(ledger, max_files=2)
    first = upload(acme, b"x" * 600)
    upload(acme, b"x" * 300)
    assert sent(acme, b"x") == refused
    assert sent(clients["other"], b"x" * 5000) == (200, None)
    limited(ledger, max_files=None, max_bytes=1000)
    stored = sorted(tmp_path.rglob("*.jsonl"))
    assert sent(acme, b"x" * 5000) == refused, "while the bytes come"
    assert sent(acme, b"x" * 101) == refused
    assert sorted(tmp_path.rglob("*.jsonl")) == stored
    assert sent(acme, b"x" * 90) == (200, None)
    assert acme.delete(f"/v1/files/{first}").status_code == 200
    assert sent(acme, b"x" * 610) == (200, None)


def test_an_upload_that_is_cut_off_reserves_nothing(
    clients: dict[str, TestClient], ledger: Ledger
) -> None:
    acme = clients["acme"]
    limited(ledger, max_files=1, max_bytes=2000)
    for _ in range(3):
        body = form(PURPOSE, ('name="file"; filename="a.jsonl"', b"x" * 900))[:-30]
        answer = acme.post("/v1/files", content=body, headers=MULTIPART)
        assert answer.status_code == 400, answer.text
    assert sent(acme, b"x" * 900) == (200, None)
