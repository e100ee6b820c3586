"""Wrong addresses, wrong methods and addresses that end in a slash, as programs and browsers send them."""

from pathlib import Path

import pytest
from openai import NotFoundError, OpenAI

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from tests.support.console_site import Site


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, load_settings(serve_store=str(tmp_path / "store")))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/jobs", 405), ("GET", "/jobs/999", 404)],
)
def test_a_wrong_address_answers_in_the_language_of_who_asks(
    site: Site, method: str, path: str, status: int
) -> None:
    browser = site.browser("user")
    page = browser.request(method, path)
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert '<a href="/">' in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    told = browser.request(method, path, headers={"accept": "application/json"})
    assert told.status_code == status
    assert set(told.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nowhere", 404), ("PUT", "/v1/files", 405), ("POST", "/api/nowhere", 404)],
)
def test_the_api_answers_in_json_whoever_asks(
    site: Site, method: str, path: str, status: int
) -> None:
    told = site.browser("user").request(method, path)
    assert told.status_code == status
    assert set(told.json()["error"]) == {"message", "type", "param", "code"}


def test_who_asks_for_an_answer_at_once_hears_where_batches_go(site: Site) -> None:
    client = OpenAI(base_url="http://console/v1", api_key="none", http_client=site.browser())  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=r"in batches alone: .* POST /v1/files, .* /v1/batches"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def test_an_address_that_ends_in_a_slash_is_the_one_without(site: Site) -> None:
    program = site.browser()
    program.headers["authorization"] = f"Bearer {site.keys['user']}"
    given = {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "batch"}}
    sent = program.post("/v1/files/", **given)  # type: ignore[arg-type]
    assert sent.status_code == 200, "and the body came with it"
    for path in (
        f"/v1/files/{sent.json()['id']}/",
        "/v1/files/",
        "/v1/batches/?limit=1",
        "/api/jobs/",
    ):
        assert program.get(path).status_code == 200, path
    body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/embeddings"}
    made = program.post("/v1/batches/", json={**body, "completion_window": "1h"})
    assert made.status_code == 200
    assert program.post(f"/v1/batches/{made.json()['id']}/cancel/").status_code == 200
