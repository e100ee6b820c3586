"""The site of `make site`: its links lead somewhere, it loads nothing from elsewhere, and it can be searched."""

import functools
import json
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import PICTURES
from tests.support import site_pages

pytestmark = pytest.mark.slow

REPOSITORY = "https://github.com/nobody/nightshift"
"""Of a host that Material would ask for stars, had it the address."""

HOSTS_OF_SCRIPTS = {"unpkg.com", "api.github.com", "${e}", "nbsp"}
"""In Material's scripts: for Mermaid and old browsers, and for facts of a repository. The policy of each page
refuses them. Another one here wants a look."""

WINDOWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}

SHOWN = ("index", "readme", "spec", "states", "operations", "performance", "guarantees", "console")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without an address of the repository."""
    folder = tmp_path_factory.mktemp("site")
    said = site_pages.make_site(folder)
    assert "Documentation built" in said, "a quiet build counts no warnings"
    assert "WARNING -" not in said
    assert f"the site is in {folder}" in said
    return folder


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, site_pages.Page]:
    return site_pages.pages(built)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with an address of the repository."""
    folder = tmp_path_factory.mktemp("linked")
    site_pages.make_site(folder, f"{REPOSITORY}/")
    return folder


def test_every_page_of_docs_is_a_page_of_the_site_and_nothing_else_is(built: Path) -> None:
    docs = site_pages.ROOT / "docs"
    names = {str(page.relative_to(docs).with_suffix(".html")) for page in docs.rglob("*.md")}
    found = {str(page.relative_to(built)) for page in built.rglob("*.html")}
    assert found == names | {"404.html", "readme.html", "changes.html"}
    assert [*built.rglob("*.py"), *built.rglob("*.md")] == []


def test_every_link_and_anchor_of_the_site_leads_somewhere(
    built: Path, pages: dict[Path, site_pages.Page]
) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme in {"http", "https"}:
                continue
            to, anchor = site_pages.target(built, path, link)
            if not to.is_file() or (anchor and anchor not in pages[to].ids):
                broken.append((path.name, link))
    assert broken == []


def test_pages_and_styles_load_only_files_of_the_site(
    built: Path, pages: dict[Path, site_pages.Page]
) -> None:
    addresses = [
        (path, address)
        for path, address in site_pages.loaded(built, pages)
        if not address.startswith(("data:", "#"))
    ]
    assert len(addresses) > 4 * len(pages)
    assert [
        (path.name, address)
        for path, address in addresses
        if urlsplit(address).scheme
        or urlsplit(address).netloc
        or not site_pages.target(built, path, address)[0].is_file()
    ] == []


def test_scripts_know_no_other_host_and_the_policy_of_each_page_refuses_all(
    built: Path, pages: dict[Path, site_pages.Page]
) -> None:
    files = [path.read_text(encoding="utf-8") for path in built.rglob("*.js")]
    named = {host for text in files for host in site_pages.ADDRESSES.findall(text)}
    assert named <= HOSTS_OF_SCRIPTS
    for path, page in pages.items():
        assert page.policy.startswith("default-src 'self';"), path
        assert "//" not in page.policy
        assert [site_pages.ADDRESSES.findall(text) for text in page.scripts if "//" in text] == []
        to, _ = site_pages.target(built, path, str(page.config["search"]))
        assert to.is_file()


def test_the_search_index_has_the_words_of_each_page(
    built: Path, pages: dict[Path, site_pages.Page]
) -> None:
    index = json.loads((built / "search/search_index.json").read_text())
    texts = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert {location.partition("#")[0] for location in texts} == {
        str(path.relative_to(built)) for path in pages if path.name != "404.html"
    }
    assert "Unknown keys are refused" in texts["spec.html"]


def test_files_of_the_repository_are_links_where_its_address_is_given_and_names_where_not(
    built: Path, linked: Path
) -> None:
    page = (linked / "guarantees.html").read_text()
    links = re.findall(rf'href="{REPOSITORY}/blob/HEAD/(tests/[^"#]+)"', page)
    assert len(links) > 25
    assert [link for link in links if not (site_pages.ROOT / link).is_file()] == []
    assert 'class="file"' not in page
    assert (
        f'href="{REPOSITORY}/tree/HEAD/examples/notebook"' in (linked / "python.html").read_text()
    )
    assert f'<a href="{REPOSITORY}">' in page

    page = (built / "guarantees.html").read_text()
    assert {f'<span class="file" title="{link}">' in page for link in links} == {True}
    assert "built without the repository" in page
    everything = "".join(path.read_text() for path in built.rglob("*.html"))
    assert "/blob/HEAD/" not in everything


def test_diagrams_are_drawn_when_the_site_is_built(built: Path) -> None:
    source = (site_pages.ROOT / "docs/states.md").read_text()
    page = (built / "states.html").read_text()
    assert page.count('<div class="diagram"><svg') == source.count("```mermaid") > 0
    assert "stateDiagram-v2" not in page


class Visitor:
    """Somebody with a browser that may open the site alone; notes what else it asked for and complained of."""

    def __init__(self, browser: Browser, folder: Path, **window: Any) -> None:
        handler = functools.partial(Quiet, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}/"
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self.context = browser.new_context(base_url=self.base, **window)
        self.context.route("**", self._look)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def _look(self, route: Route) -> None:
        if route.request.url.startswith(self.base):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def close(self) -> None:
        """Ends the browser's window and the server."""
        self.context.close()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(params=list(WINDOWS))
def visitor(request: pytest.FixtureRequest, browser: Browser, linked: Path) -> Iterator[Visitor]:
    somebody = Visitor(browser, linked, **WINDOWS[request.param])
    try:
        yield somebody
    finally:
        somebody.close()
    assert somebody.elsewhere == []
    assert somebody.complaints == []


def test_a_search_finds_a_page_and_the_browser_asks_no_other_host(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("index.html")
    if not page.get_by_role("textbox", name="Search").is_visible():
        page.locator("label.md-header__button[for=__search]").click()
    page.get_by_role("textbox", name="Search").fill("input.where")
    hit = page.locator("a.md-search-result__link[href*='spec.html']").first
    hit.wait_for()
    hit.click()
    page.wait_for_url(re.compile(r"spec\.html\?h="))
    expect(page.get_by_role("heading", name="The job spec")).to_be_visible()


def test_pages_fit_the_window_in_its_colours(
    visitor: Visitor, request: pytest.FixtureRequest
) -> None:
    page = visitor.page
    window = request.node.callspec.params["visitor"]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in SHOWN:
        page.goto(f"{name}.html")
        page.screenshot(path=PICTURES / f"site-{name}-{window}.png")
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, name
        scheme = "slate" if window == "dark" else "default"
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", scheme)
