"""Over HTTP, too, each change leaves one row, under the name of its key."""

import json
from pathlib import Path

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger, audit_log
from tests.support import batch_site, console_site


@pytest.fixture
def api(ledger: Ledger, tmp_path: Path) -> tuple[batch_site.Site, TestClient]:
    """Batches, and a client with a key of the tenant acme."""
    batches = batch_site.Site(ledger, tmp_path)
    door = console_site.Site(ledger, batches.settings)
    client = door.browser()
    client.headers["authorization"] = f"Bearer {door.keys['user']}"
    return batches, client


def changes(ledger: Ledger) -> list[tuple[str, str, str | None]]:
    """Action, who and subject, without the migration of the database."""
    with ledger.transaction() as connection:
        found = audit_log.listed(connection, limit=100, before=2**63 - 1)[::-1]
    rows = [(row["action"], row["who"], row["subject"]) for row in found]
    return [row for row in rows if row[0] != "migrate"]


def upload(client: TestClient) -> str:
    content = json.dumps(batch_site.line()).encode()
    form = {"data": {"purpose": "batch"}, "files": {"file": ("rows.jsonl", content)}}
    return str(client.post("/v1/files", **form).json()["id"])


def test_files_and_batches_of_a_key_are_in_the_log_with_the_job_that_a_reaper_made_of_them(
    ledger: Ledger, api: tuple[batch_site.Site, TestClient]
) -> None:
    """The job once stood there under the user of the reaper, and the rest not at all."""
    batches, client = api
    me = "key 2 user (acme)"
    file = upload(client)
    asked = {
        "input_file_id": file,
        "endpoint": batch_site.ENDPOINT,
        "completion_window": "24h",
    }
    batch = client.post("/v1/batches", json=asked).json()["id"]
    again = client.post("/v1/batches", json=asked, headers={"x-stainless-retry-count": "1"})
    assert again.json()["id"] == batch, "the first try once more, which changes nothing"
    assert batches.validate()
    spare = upload(client)
    assert client.delete(f"/v1/files/{spare}").status_code == 200
    assert changes(ledger) == [
        ("file upload", me, f"file {file}"),
        ("batch create", me, f"batch {batch}"),
        ("submit", me, None),
        ("file upload", me, f"file {spare}"),
        ("file delete", me, f"file {spare}"),
    ]
    with ledger.transaction() as connection:
        (submitted,) = audit_log.of_job(connection, 1, "acme")
    assert (submitted["who"], submitted["host"]) == (me, "testclient")


def test_webhooks_are_in_the_log_without_their_address(
    ledger: Ledger, tmp_path: Path, api: tuple[batch_site.Site, TestClient]
) -> None:
    """An address may hold a secret."""
    batches, _ = api
    settings = batches.settings.model_copy(
        update={"webhook_key": SecretStr("0" * 64), "webhook_private": True}
    )
    door = console_site.Site(ledger, settings)
    client = door.browser()
    client.headers["authorization"] = f"Bearer {door.keys['user']}"
    url = "http://127.0.0.1/?token=secret"
    made = client.post("/api/webhooks", json={"url": url})
    assert made.status_code == 201, made.text
    hook = made.json()["id"]
    assert client.delete(f"/api/webhooks/{hook}").status_code == 200
    found = changes(ledger)
    assert [(action, subject) for action, _, subject in found] == [
        ("webhook create", f"webhook {hook}"),
        ("webhook delete", f"webhook {hook}"),
    ]
    with ledger.transaction() as connection:
        assert "secret" not in str(audit_log.listed(connection, limit=100, before=2**63 - 1))


def test_a_file_that_an_open_batch_reads_is_not_deleted_and_leaves_no_row(
    ledger: Ledger, api: tuple[batch_site.Site, TestClient]
) -> None:
    batches, client = api
    batch = batches.batch(batch_site.line())
    assert client.delete(f"/v1/files/{batch.input_file_id}").status_code == 409
    assert changes(ledger) == []
