"""`nightshift console` and `nightshift run --ui`: pages for the one person who has the link."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.advice.here import Here, Works
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.console import app as console
from nightshift.producer.serve.console.session import Session
from tests.support.console_site import ORIGIN, PAGES, send
from tests.support.fleet import Fleet, function_spec, wait_until, write_rows
from tests.support.serve import CLIENT_SECONDS
from tests.support.world import World

LINK = re.compile(r"http://127\.0\.0\.1:\d+/enter\?ticket=\S+")


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def browsers(ledger: Ledger, session: Session) -> list[TestClient]:
    app = serve_app.build(ledger, load_settings(), routes=(), here=lambda: Here(Works.PAGES))
    console.add(app, session)
    accept = {"accept": PAGES}
    return [
        TestClient(app, base_url=ORIGIN, headers=accept, follow_redirects=False) for _ in range(2)
    ]


def test_a_link_opens_the_pages_once_and_for_one_browser(
    browsers: list[TestClient], session: Session
) -> None:
    first, second = browsers
    assert first.get("/").headers["location"] == "/login?next=/"
    assert "has printed a link" in first.get("/login").text
    assert first.get("/enter?ticket=wrong").status_code == 401
    link = f"/enter?ticket={session.ticket}"
    opened = first.get(link)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert "httponly" in opened.headers["set-cookie"].lower()
    assert first.get("/").status_code == 200
    assert second.get(link).status_code == 401, "the link was used"
    assert second.get("/").status_code == 303
    for key in ("nightshift_key", session.cookie):
        second.cookies.set(key, session.ticket)
    assert second.get("/").status_code == 303, "the ticket is no cookie"
    assert first.get("/v1/models").status_code == 404, "the pages alone"


def test_who_has_the_link_is_an_operator_and_hears_that_nobody_works(
    browsers: list[TestClient], session: Session, world: World
) -> None:
    browser, _ = browsers
    browser.get(f"/enter?ticket={session.ticket}")
    job = world.job(3, tenant="acme")
    page = browser.get(f"/jobs/{job}").text
    assert "no worker runs the job" in page
    assert send(browser, f"/jobs/{job}/move", {"do": "pause"}).status_code == 303
    assert browser.post(f"/jobs/{job}/move", data={"do": "cancel"}).status_code == 403
    assert [row.state for row in world.ask("SELECT state FROM jobs")] == ["paused"]


@pytest.mark.slow
def test_a_run_shows_its_pages_until_it_ends_and_console_shows_them_after(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    write_rows(tmp_path / "in", [("a.jsonl", 40)])
    made = fleet.spec(function_spec("loud", tmp_path / "in", tmp_path / "out"))
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen(
            [sys.executable, "-m", "nightshift.producer.cli", "run", "--ui", str(made)],
            env=fleet.environment,
            cwd=tmp_path,
            stdout=said,
            stderr=said,
        )
        try:
            wait_until(lambda: LINK.search((tmp_path / "said").read_text()), what="a link")
            assert running.wait(200) == 0
        finally:
            running.kill()
            running.wait()
    with (tmp_path / "said").open("wb") as said:
        shown = subprocess.Popen(
            [sys.executable, "-m", "nightshift.producer.cli", "console"],
            env=fleet.environment,
            cwd=tmp_path,
            stdout=said,
            stderr=said,
        )
        try:
            wait_until(lambda: LINK.search((tmp_path / "said").read_text()), what="a link")
            found = LINK.search((tmp_path / "said").read_text())
            assert found is not None
            with httpx.Client(follow_redirects=True, timeout=CLIENT_SECONDS) as browser:
                page = browser.get(found[0])
            assert page.status_code == 200
            assert ">loud</a>" in page.text
            shown.terminate()
            assert shown.wait(120) == 0
        finally:
            shown.kill()
            shown.wait()
