"""What an unmodified client trips over where a server is only nearly the API: each line is a test here, in
test_batch_creates.py (creates that are sent again) or in test_api_document.py (the shape of errors).
"""

import json
from pathlib import Path
from typing import Any

import openai.types as shapes
import pytest
from httpx2 import Response
from openai.types.batch_error import BatchError
from pydantic import BaseModel
from starlette.testclient import TestClient

from nightshift.common import storage
from nightshift.common.ledger import Ledger, holds
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.api_batches import finalize, validate
from nightshift.producer.serve.ledger import (
    api_batch_steps,
    api_batches,
    keys,
    tenants,
)
from nightshift.producer.serve.v1 import create

ROW: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": []},
}


class Site:
    """Two servers over one ledger, and a reaper that works when a test says so."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        (folder / "models.yaml").write_text("models: {m: {engine: {backend: vllm, model: a/b}}}")
        self.settings = load_settings(
            serve_store=str(folder / "store"), serve_models=folder / "models.yaml"
        )
        with ledger.transaction() as connection:
            tenants.ensure(connection, "acme")
            key = keys.create(connection, "acme", "any", "user", None)[1]
        self.client, self.other = (
            TestClient(
                serve_app.build(ledger, self.settings), headers={"authorization": f"Bearer {key}"}
            )
            for _ in range(2)
        )

    def upload(self, *rows: dict[str, Any]) -> str:
        data = "".join(f"{json.dumps(row)}\n" for row in rows or (ROW,))
        given = {"files": {"file": ("a.jsonl", data)}, "data": {"purpose": "batch"}}
        return str(self.client.post("/v1/files", **given).json()["id"])  # type: ignore[arg-type]

    def create(self, *rows: dict[str, Any]) -> str:
        body = {
            "input_file_id": self.upload(*rows),
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        made = self.client.post("/v1/batches", json=body)
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    def validate(self) -> None:
        assert validate.validate_once(self.ledger, self.settings, "r")

    def finalize(self) -> None:
        assert finalize.finalize_once(self.ledger, self.settings, "r")

    def seen(self, batch: str) -> dict[str, Any]:
        found: dict[str, Any] = self.other.get(f"/v1/batches/{batch}").json()
        return found

    def cancel(self, batch: str) -> Response:
        return self.other.post(f"/v1/batches/{batch}/cancel")

    def do(self, statement: str) -> None:
        with self.ledger.transaction() as connection:
            connection.exec_driver_sql(statement)

    def end_job(self) -> None:
        """No row of the job ran, and the job is over."""
        self.do("UPDATE jobs SET state = 'cancelled', finished_at = now(), closed_at = now()")


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


def test_a_create_answers_before_anybody_has_read_the_file(site: Site) -> None:
    batch = site.create({"no": "request"})
    assert site.seen(batch)["status"] == "validating"
    site.validate()
    assert site.seen(batch)["status"] == "failed"


def test_what_one_server_has_made_another_shows_at_once(site: Site) -> None:
    batch = site.create()
    assert site.seen(batch)["id"] == batch
    assert [each["id"] for each in site.other.get("/v1/batches").json()["data"]] == [batch]
    assert site.other.get(f"/v1/files/{site.upload()}").status_code == 200


def test_a_cancel_that_was_answered_ends_in_cancelled(site: Site) -> None:
    early, late = site.create(), site.create()
    assert site.cancel(early).json()["status"] == "cancelled", "nothing of it has begun"
    site.validate()
    assert site.cancel(late).json()["status"] == "cancelling"
    assert site.cancel(late).json()["status"] == "cancelling", "a cancel may come twice"
    site.end_job()
    site.finalize()
    assert site.seen(late)["status"] == "cancelled"
    assert site.cancel(late).status_code == 200


def test_a_cancel_once_finalizing_has_begun_is_answered_and_the_batch_completes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = site.create()
    site.validate()
    site.do("UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()")
    answers = []

    def write(*given: Any) -> Any:
        answers.append(site.cancel(batch))
        return finalize.ResultFile("file-x", ""), finalize.ResultFile("file-y", "")

    monkeypatch.setattr(finalize, "write_results", write)
    site.finalize()
    assert [(each.status_code, each.json()["status"]) for each in answers] == [(200, "finalizing")]
    assert site.seen(batch)["status"] == "completed"


@pytest.mark.parametrize("state", ["completed", "failed", "expired"])
def test_a_late_cancel_is_not_to_be_sent_again(site: Site, state: str) -> None:
    batch = site.create()
    site.do(f"UPDATE api_batches SET state = '{state}'")
    refused = site.cancel(batch)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert refused.json()["error"]["code"] == "batch_over"


def test_lists_of_batches_have_pages_to_the_last_and_no_empty_page_says_more(site: Site) -> None:
    made = [site.create() for _ in range(5)]
    for limit in (1, 2, 4, 5, 6):
        found: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = site.client.get("/v1/batches", params={"limit": limit, **after}).json()
            found += [each["id"] for each in page["data"]]
            assert page["has_more"] is (len(found) < 5)
            if not page["has_more"]:
                break
            assert page["last_id"] == found[-1]
            after = {"after": page["last_id"]}
        assert found == made[::-1]
    last = site.client.get("/v1/batches", params={"after": made[0]}).json()
    assert (last["data"], last["has_more"], last["last_id"]) == ([], False, None)


def test_counts_are_numbers_and_files_are_named_only_when_they_are_there(site: Site) -> None:
    """In every state on the way, and at the end of a batch of which nothing ran."""
    batch = site.create(ROW, {**ROW, "custom_id": "b"})

    def look(total: int) -> None:
        seen = site.seen(batch)
        assert seen["request_counts"] == {"total": total, "completed": 0, "failed": 0}
        assert seen["output_file_id"] is seen["error_file_id"] is None

    look(0)
    site.validate()
    look(2)
    site.cancel(batch)
    look(2)
    site.end_job()
    with site.ledger.transaction() as connection:
        taken = api_batch_steps.take_ended(connection, "r-0")
        assert taken is not None
        assert holds.postpone(connection, taken[1], -1)
    look(2)
    site.finalize()
    seen = site.seen(batch)
    assert seen["output_file_id"] is None, "a file without lines does not exist"
    listed = site.client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"]
    assert [each["id"] for each in listed] == [seen["error_file_id"]]
    content = site.client.get(f"/v1/files/{seen['error_file_id']}/content").text
    assert [json.loads(line)["custom_id"] for line in content.splitlines()] == ["a", "b"]


def as_the_client_types_it(shape: type[BaseModel], answer: Any) -> None:
    """Raises where a member is missing, or is of another type than the client says."""
    shape.model_validate(answer, strict=True)


def test_every_object_is_of_the_types_of_the_official_client(site: Site) -> None:
    failed = site.create({"no": "request"})
    done = site.create()
    site.validate()
    site.validate()
    site.cancel(done)
    site.end_job()
    site.finalize()
    for batch in (failed, done, site.create()):
        as_the_client_types_it(shapes.Batch, site.seen(batch))
    for error in site.seen(failed)["errors"]["data"]:
        as_the_client_types_it(BatchError, error)
    for file in site.client.get("/v1/files").json()["data"]:
        as_the_client_types_it(shapes.FileObject, file)
    for model in site.client.get("/v1/models").json()["data"]:
        as_the_client_types_it(shapes.Model, model)
    gone = site.client.delete(f"/v1/files/{site.upload()}").json()
    as_the_client_types_it(shapes.FileDeleted, gone)


def test_bytes_that_come_behind_the_sweep_are_not_kept(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = storage.write_streamed

    def write(uri: str, *given: Any, **named: Any) -> Any:
        written = real(uri, *given, **named)
        site.do("DELETE FROM api_files")
        return written

    monkeypatch.setattr(storage, "write_streamed", write)
    answer = site.client.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"})
    assert answer.status_code == 408, answer.text
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_file_lives_as_long_as_its_upload_says(site: Site) -> None:
    """At most as long as the operator keeps files, 30 days here."""
    form = {"purpose": "batch", "expires_after[anchor]": "created_at"}

    def upload(seconds: str) -> Response:
        given = {**form, "expires_after[seconds]": seconds}
        return site.client.post("/v1/files", data=given, files={"file": ("a", b"x")})

    file = upload("3600").json()
    assert file["expires_at"] - file["created_at"] == 3600
    for wrong in ("3599", "2592001", "soon", ""):
        refused = upload(wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "expires_after")


def test_the_state_of_a_batch_is_none_of_the_jobs(site: Site) -> None:
    """Every state that a client can see is one of the API."""
    site.create()
    states = {str(state) for state in api_batches.ApiBatchStatus}
    named = shapes.Batch.model_fields["status"].annotation
    assert states == set(getattr(named, "__args__", ()))


def test_a_retry_that_is_sent_again_gives_the_batch_that_runs(site: Site) -> None:
    batch = site.create()
    site.validate()
    site.do("UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()")
    site.do("UPDATE batches SET state = 'dead', failures = 3")
    site.do("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    assert site.client.post(f"/v1/batches/{batch}/retry").json()["status"] == "in_progress"
    again = {"x-stainless-retry-count": "1"}
    second = site.other.post(f"/v1/batches/{batch}/retry", headers=again)
    assert (second.status_code, second.json()["status"]) == (200, "in_progress")
    assert site.other.post(f"/v1/batches/{batch}/retry").status_code == 409


def test_a_batch_whose_rows_are_archived_is_not_tried_again(site: Site) -> None:
    batch = site.create()
    site.validate()
    site.do("UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()")
    site.do("UPDATE batches SET state = 'dead', failures = 3")
    site.do("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.do("UPDATE jobs SET archived_at = now()")
    answer = site.client.post(f"/v1/batches/{batch}/retry")
    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == (
        "the rows of the batch are archived: create a batch of the file again"
    )


def test_results_that_are_deleted_or_archived_are_not_streamed(site: Site) -> None:
    batch = site.create()
    assert site.client.get(f"/v1/batches/{batch}/results").status_code == 200
    site.validate()
    site.cancel(batch)
    site.end_job()
    site.finalize()
    assert site.client.get(f"/v1/batches/{batch}/results").status_code == 200
    site.do("UPDATE jobs SET archived_at = now()")
    away = site.client.get(f"/v1/batches/{batch}/results")
    file_id = site.seen(batch)["error_file_id"]
    assert away.status_code == 404
    assert away.json()["error"]["message"] == f"the parts are archived: every line is in {file_id}"
    site.do("UPDATE jobs SET archived_at = NULL")
    assert site.client.delete(f"/v1/files/{file_id}").status_code == 200
    gone = site.client.get(f"/v1/batches/{batch}/results")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "results_gone")


def test_so_many_batches_wait_for_their_files_to_be_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "MOST_VALIDATING", 2)
    file_id = site.upload()
    body = {"input_file_id": file_id, "endpoint": ROW["url"], "completion_window": "24h"}
    answers = [site.client.post("/v1/batches", json=body) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["code"] == "too_many_batches"
    site.validate()
    assert site.client.post("/v1/batches", json=body).status_code == 200
