"""The built site as files: what its pages load, where their links lead, and `make site`, which builds it."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]

LOADS = {
    "audio": ("src",),
    "embed": ("src",),
    "form": ("action",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
"""Attributes whose address a browser opens by itself, or sends to."""

OF_STYLES = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?!["']|\)).{1,200}?)["')]""")

ADDRESSES = re.compile(r"""["'`](?:https?:)?//([^/"'`\s]+)""")
"""Hosts in the strings of a script; not those of its comments."""


def make_site(folder: Path, repository: str = "") -> str:
    """Runs `make site` into a folder, and returns all that it says; what is installed is left as it is."""
    made = ["make", "--no-print-directory", "--assume-old=.venv/.ready", "site"]
    done = subprocess.run(
        [*made, f"SITE={folder}", f"REPO={repository}"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass
class Page(HTMLParser):
    """What one page has: ids, links, addresses that it loads, scripts and styles in the page."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    policy: str = ""
    config: dict[str, object] = field(default_factory=dict)
    inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what the attributes name."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            assert given["id"] not in self.ids, f"{self.path.name} has {given['id']} twice"
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.loads += [given[name] for name in LOADS.get(tag, ()) if name in given]
        self.loads += OF_STYLES.findall(given.get("style", ""))
        self.inside = f"{tag} {given.get('type', '')}".strip() if tag in {"script", "style"} else ""

    def handle_endtag(self, tag: str) -> None:
        """Ends a script or a style."""
        self.inside = ""

    def handle_data(self, data: str) -> None:
        """Notes scripts and styles in the page."""
        if self.inside == "script application/json":
            self.config = json.loads(data)
        elif self.inside.startswith("script"):
            self.scripts.append(data)
        elif self.inside == "style":
            self.loads += OF_STYLES.findall(data)


def pages(site: Path) -> dict[Path, Page]:
    """Every page by its path."""
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def loaded(site: Path, found: dict[Path, Page]) -> Iterator[tuple[Path, str]]:
    """File and address: all that pages and style sheets load."""
    for path, page in found.items():
        for address in page.loads:
            yield path, address
    for path in sorted(site.rglob("*.css")):
        for address in OF_STYLES.findall(path.read_text(encoding="utf-8")):
            yield path, address


def target(site: Path, source: Path, address: str) -> tuple[Path, str]:
    """File and anchor of an address that has no host."""
    parts = urlsplit(address)
    start = site if parts.path.startswith("/") else source.parent
    path = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else source
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)
