"""A line of the navigation with a * stands for all pages that it matches: new ones need no line.

Decisions and the changelog come behind other pages in a search. MkDocs calls the functions by their names.
"""

from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

HISTORY = ("decisions/", "changes.md")

BOOST = 0.3
"""Factor of the search's score of a page that tells how things came to be."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Writes the patterns out, before MkDocs reads the navigation."""
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = written_out(config.nav, pages)
    return files


def written_out(nav: Any, pages: list[str]) -> Any:
    """The navigation with pages in place of patterns: by name, an index first. A pattern may match none."""
    if isinstance(nav, dict):
        return {title: written_out(entry, pages) for title, entry in nav.items()}
    if not isinstance(nav, list):
        return nav
    return [found for entry in nav for found in _matches(entry, pages)]


def _matches(entry: Any, pages: list[str]) -> list[Any]:
    if not isinstance(entry, str) or "*" not in entry:
        return [written_out(entry, pages)]
    found = [page for page in pages if PurePosixPath(f"/{page}").match(f"/{entry}")]
    return sorted(found, key=lambda page: (PurePosixPath(page).stem != "index", page))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Tells the search what is history."""
    if page.file.src_uri.startswith(HISTORY):
        page.meta["search"] = {"boost": BOOST}
    return markdown
