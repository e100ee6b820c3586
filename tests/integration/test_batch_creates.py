"""`POST /v1/batches`: what is refused, and what a client that sends it again gets."""

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from starlette.testclient import TestClient

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.ledger import files, keys, tenants
from nightshift.producer.serve.v1 import early_refusals

BODY: dict[str, Any] = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}

ENGINE = {"backend": "vllm", "model": "a/b"}

MODELS = {
    "m": {"aliases": ["alias"], "engine": ENGINE},
    "priced": {"engine": {**ENGINE, "price_per_hour": 2}},
    "elsewhere": {"pool": "large", "engine": ENGINE},
}

AGAIN = {"x-stainless-retry-count": "1"}


class Site:
    """A server in this process, and a key of the tenants acme and other."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        with ledger.transaction() as connection:
            self.keys = {}
            for name in ("acme", "other"):
                tenants.ensure(connection, name)
                self.keys[name] = keys.create(connection, name, "any", "user", None)[1]
            files.receive(connection, "file-1", "acme", str(folder / "x"))
            files.ready(
                connection, "file-1", purpose="batch", filename="x", size=1, expires_after=None
            )
        self.folder, models = folder, folder / "models.yaml"
        models.write_text(json.dumps({"models": MODELS}))
        settings = load_settings(serve_store=str(folder), serve_models=models)
        self.client = TestClient(serve_app.build(ledger, settings), raise_server_exceptions=False)

    def create(self, body: Any = None, who: str = "acme", **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(
            "/v1/batches",
            content=json.dumps(BODY if body is None else body),
            headers={"authorization": f"Bearer {self.keys[who]}", **named},
        )

    def write(self, data: str) -> None:
        """The bytes of file-1."""
        (self.folder / "x").write_text(data, encoding="utf-8")
        size = (self.folder / "x").stat().st_size
        with self.ledger.transaction() as connection:
            connection.exec_driver_sql(f"UPDATE api_files SET bytes = {size}")

    def count(self) -> int:
        with self.ledger.transaction() as connection:
            found = connection.exec_driver_sql("SELECT count(*) FROM api_batches")
            return int(found.scalar_one())


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


def test_a_create_answers_with_all_that_a_client_reads(site: Site) -> None:
    body = {**BODY, "metadata": {"a": "b"}, "nightshift": {"priority": -3, "on_bad_line": "skip"}}
    made = site.create(body)
    assert made.status_code == 200, made.text
    seen = made.json()
    assert (seen["status"], seen["metadata"]) == ("validating", {"a": "b"})
    assert seen["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert seen["expires_at"] - seen["created_at"] == 86_400
    assert seen["output_file_id"] is seen["error_file_id"] is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "file-2"}, "input_file_id"),
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata." + "k" * 65 + ".[key]"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after"),
        ({"nightshift": {"priority": "high"}}, "nightshift.priority"),
        ({"nightshift": {"speed": 1}}, "nightshift.speed"),
        ({"nightshift": {"finish_by": "soon"}}, "nightshift.finish_by"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_bad_parameter_is_named_and_makes_no_batch(
    site: Site, change: dict[str, Any], param: str
) -> None:
    refused = site.create(BODY | change)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"].startswith(param)
    assert site.count() == 0


def row(model: str, text: str = "") -> str:
    """A line of a batch file."""
    return json.dumps({"custom_id": "a", "body": {"model": model, "messages": [text]}}) + "\n"


@pytest.mark.parametrize(
    ("data", "options", "param", "code"),
    [
        (row("m"), {"priority": 1}, "nightshift.priority", "not_allowed"),
        (row("m"), {"priority": 1, "on_bad_line": "skip"}, "nightshift.priority", "not_allowed"),
        (row("none"), {}, "body.model", "model_not_found"),
        ("\ufeff \n" + row("none") + row("m"), {}, "body.model", "model_not_found"),
        (row("none").rstrip(), {}, "body.model", "model_not_found"),
        (row("elsewhere"), {}, "body.model", "not_allowed"),
        (row("alias"), {"budget": 5}, "nightshift.budget", "invalid_value"),
    ],
)
def test_what_is_known_at_create_is_refused_there(
    site: Site, data: str, options: dict[str, Any], param: str, code: str
) -> None:
    site.write(data)
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE tenants SET pools = '{default}'")
    refused = site.create({**BODY, "nightshift": options})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert site.count() == 0


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (row("m") + row("none"), {}),
        (row("priced"), {"budget": 5, "priority": 0}),
        (row("none"), {"on_bad_line": "skip"}),
        (row("none", "x" * 300_000), {}),
        ("{broken\n" + row("none"), {}),
        ("[1]\n", {}),
        ('{"body": {"model": 1}}\n', {}),
        (" \n\n", {}),
        ("", {}),
    ],
)
def test_what_only_a_whole_file_tells_is_left_to_a_reaper(
    site: Site, data: str, options: dict[str, Any]
) -> None:
    site.write(data)
    assert site.create({**BODY, "nightshift": options}).status_code == 200


def test_a_create_goes_on_without_the_store_and_without_the_table_of_models(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    site.write(row("none"))
    with monkeypatch.context() as patch:
        patch.setattr(early_refusals, "LOOK_SECONDS", 0.01)
        patch.setattr(early_refusals, "_first_line", lambda _: ended.wait(60) and b"")
        assert site.create().status_code == 200, "the store stalls"
        ended.set()
    assert site.create().status_code == 400
    (site.folder / "models.yaml").write_text("broken")
    assert site.create().status_code == 200


def test_a_model_that_is_gone_since_the_first_try_does_not_deny_its_batch(site: Site) -> None:
    site.write(row("m"))
    first = site.create().json()["id"]
    (site.folder / "models.yaml").write_text("models: {}")
    assert site.create().status_code == 400
    assert site.create(**AGAIN).json()["id"] == first


def test_a_request_that_is_sent_again_gives_the_batch_of_the_first_try(site: Site) -> None:
    first = site.create().json()["id"]
    assert site.create(**AGAIN).json()["id"] == first
    assert site.create().json()["id"] != first, "two creates on purpose are two batches"
    assert site.count() == 2
    assert site.create({**BODY, "completion_window": "1h"}, **AGAIN).status_code == 200
    assert site.count() == 3, "another body is another request"
    assert site.create(who="other", **AGAIN).status_code == 400, "the file is not theirs"
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_batches SET state = 'cancelled'")
    assert site.create(**AGAIN).json()["status"] == "validating", "one that was cancelled is over"


def test_a_create_whose_first_try_still_runs_waits_for_it(site: Site) -> None:
    found: list[str] = []

    def send(**headers: str) -> None:
        found.append(site.create(**headers).json()["id"])

    threads = [threading.Thread(target=send, kwargs=AGAIN) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert site.count() == 1


def test_an_idempotency_key_makes_one_batch_and_no_other(site: Site) -> None:
    first = site.create(idempotency_key="a").json()["id"]
    assert site.create(idempotency_key="a").json()["id"] == first
    other = site.create({**BODY, "completion_window": "1h"}, idempotency_key="a")
    assert (other.status_code, other.headers["x-should-retry"]) == (409, "false")
    assert site.create(idempotency_key="b").json()["id"] != first
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE api_batches SET created_at = created_at - interval '25 hours'"
        )
    assert site.create(idempotency_key="a").json()["id"] != first, "a key counts for a day"


def test_a_create_over_the_budget_of_the_tenant_is_refused_and_not_to_be_repeated(
    site: Site,
) -> None:
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE tenants SET budget = 10, spent = 10 WHERE name = 'acme'")
    refused = site.create()
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "reaches its budget 10.00" in error["message"]
    assert site.count() == 0


def lost_answer(ledger: Ledger, *, commits: bool) -> Callable[[], Any]:
    """A transaction whose COMMIT is made or not, and whose answer never comes."""
    real, broken = ledger.transaction, [True]

    @contextmanager
    def transaction() -> Any:
        with real() as connection:
            marks = connection.exec_driver_sql("SELECT count(*) FROM api_batches").scalar_one()
            yield connection
            now = connection.exec_driver_sql("SELECT count(*) FROM api_batches").scalar_one()
            is_create = now > marks and broken
            if is_create:
                broken.clear()
                if not commits:
                    raise LedgerUnavailable("cut off before COMMIT")
        if is_create:
            raise LedgerUnavailable("cut off behind COMMIT")

    return transaction


@pytest.mark.parametrize("commits", [True, False])
def test_a_create_that_failed_never_runs_and_one_that_counted_is_said(
    site: Site, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    monkeypatch.setattr(site.ledger, "transaction", lost_answer(site.ledger, commits=commits))
    answer = site.create()
    assert answer.status_code == (200 if commits else 503), answer.text
    assert site.count() == (1 if commits else 0)


def test_a_retry_without_a_job_keeps_the_files_and_a_cancel_is_in_the_audit_log(
    site: Site, tmp_path: Path
) -> None:
    batch = site.create().json()["id"]
    with site.ledger.transaction() as connection:
        files.receive(connection, "file-out", "acme", str(tmp_path / "out"))
        given = {"purpose": "batch_output", "filename": "o", "size": 1, "expires_after": None}
        files.ready(connection, "file-out", **given)  # type: ignore[arg-type]
        connection.exec_driver_sql(
            "UPDATE api_batches SET state = 'completed', job_id = 99, rows_failed = 1, "
            "output_file_id = 'file-out'"
        )
    key = {"authorization": f"Bearer {site.keys['acme']}"}
    assert site.client.post(f"/v1/batches/{batch}/retry", headers=key).status_code == 409
    assert site.client.get("/v1/files/file-out", headers=key).status_code == 200
    other = site.create().json()["id"]
    assert site.client.post(f"/v1/batches/{other}/cancel", headers=key).status_code == 200
    with site.ledger.transaction() as connection:
        rows = connection.exec_driver_sql(
            "SELECT who, subject FROM audit_log WHERE action = 'cancel'"
        )
        assert [row.subject for row in rows] == [f"batch {other}"]
