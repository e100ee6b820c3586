"""A browser, and a fleet with jobs in every state."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.browser import chromium
from tests.support import debian
from tests.support.fleet import function_spec, wait_until, write_rows
from tests.support.remote import Remote
from tests.support.serve import Door

RULES = """
import time
from pathlib import Path

HERE = Path(__file__).parent

def shout(rows):
    return [{"loud": row["text"].upper()} for row in rows]

def slow(rows):
    time.sleep(0.05 * len(rows))
    return shout(rows)

def picky(rows):
    if any(row["id"].endswith("7") for row in rows) and not (HERE / "mended").exists():
        raise ValueError("a seven")
    return shout(rows)
"""

ROOT = Path(__file__).parents[2]

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

PICTURES = Path(os.environ.get("SCREENSHOTS", ".venv/screenshots")).absolute()
"""Where the pictures of all pages go."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser of its own for each module: its event loop would be in the way of other tests."""
    found = chromium.found()
    if found is None:
        assert not debian.is_here(), "`make test-slow` brings a Chromium; or install it"
        pytest.skip("there is no Chromium on this machine")
    program, own = found
    with sync_playwright() as play:
        started = play.chromium.launch(
            executable_path=program, args=ARGUMENTS, env={**os.environ, **own}
        )
        yield started
        started.close()


class Person:
    """Somebody with a browser window; what the page complains of fails the test."""

    def __init__(self, browser: Browser, base: str, **options: Any) -> None:
        self.base = base
        self.context: BrowserContext = browser.new_context(base_url=base, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: dialog.accept())

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{self.page.url} {message.text}")

    def open(self, path: str) -> Page:
        """Goes to a page of the console."""
        answer = self.page.goto(path, wait_until="domcontentloaded")
        assert answer is not None
        assert answer.status == 200, path
        return self.page

    def login(self, key: str) -> None:
        """Gives a key."""
        self.open("/login")
        self.page.get_by_label("Key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Jobs").wait_for()

    def picture(self, name: str) -> None:
        """Keeps what is seen."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


@pytest.fixture
def person(browser: Browser, site: Door) -> Iterator[Callable[..., Person]]:
    """Opens windows, which close with the test."""
    people: list[Person] = []

    def opened(**options: Any) -> Person:
        people.append(Person(browser, f"http://127.0.0.1:{site.port}", **options))
        return people[-1]

    yield opened
    for each in people:
        each.context.close()
    assert [each.complaints for each in people if each.complaints] == []


@pytest.fixture
def remote() -> Iterator[Remote]:
    """The server behind the model of batches."""
    with Remote().running() as found:
        yield found


@pytest.fixture
def site(tmp_path: Path, database_url: str, redis_url: str, remote: Remote) -> Iterator[Door]:
    """A fleet with the console, and rules for functions; without workers."""
    folder = tmp_path / "site"
    engine = {"backend": "openai", "model": "m", "base_url": remote.url}
    door = Door(folder, database_url, redis_url, {"m": {"engine": engine}})
    door.environment["PYTHONPATH"] = str(ROOT)
    door.environment["NIGHTSHIFT_CALLABLE_PATHS"] = str(folder)
    door.environment["NIGHTSHIFT_ALLOWED_MODULES"] = "rules"
    (folder / "rules.py").write_text(RULES)
    write_rows(folder / "in", [("a.jsonl", 60)])
    try:
        door.serve()
        door.reaper()
        yield door
    finally:
        door.end()


def submit(door: Door, name: str, rule: str = "shout", **sections: Any) -> int:
    """Submits a job of the rules; returns its number."""
    engine = {"backend": "function", "callable": f"rules:{rule}"}
    made = function_spec(
        name, door.folder / "in", door.folder / name, engine=engine, batch={"rows": 5}, **sections
    )
    done = door.command("submit", str(door.spec(made)), "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["job"])


def key(door: Door, tenant: str, role: str) -> str:
    """A key of a tenant with a role."""
    made = door.command("key", "create", "--tenant", tenant, "--role", role)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def ended(door: Door, job: int) -> None:
    """Waits for the end of a job."""

    def look() -> bool:
        with psycopg.connect(door.environment["NIGHTSHIFT_DATABASE_URL"]) as connection:
            found = connection.execute("SELECT closed_at FROM jobs WHERE id = %s", (job,))
            row = found.fetchone()
        return row is not None and row[0] is not None

    wait_until(look, what=f"the end of job {job}")
