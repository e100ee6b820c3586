"""docs/site: what turns pages that are right on the repository's host into pages of a site."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from mkdocs.utils.yaml import yaml_load

ROOT = Path(__file__).parents[2]


def hook(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / f"docs/site/{name}.py"))


def test_each_page_of_docs_has_one_place_in_the_navigation() -> None:
    with (ROOT / "mkdocs.yml").open() as file:
        nav = yaml_load(file)["nav"]
    docs = ROOT / "docs"
    pages = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md")]
    named = list(leaves(hook("navigation")["written_out"](nav, pages)))
    assert sorted(named) == sorted([*pages, *hook("links")["TOP"]]), "name the page in mkdocs.yml"


def leaves(nav: Any) -> Any:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(entry)


def test_a_pattern_of_the_navigation_stands_for_its_pages_with_the_index_first() -> None:
    pages = ["b.md", "more/z.md", "more/a.md", "more/index.md", "more/deep/a.md"]
    written_out = hook("navigation")["written_out"]
    nav = ["b.md", {"More": ["more/*.md", "none/*.md"]}]
    assert written_out(nav, pages) == [
        "b.md",
        {"More": ["more/index.md", "more/a.md", "more/z.md"]},
    ]


LISTS = {
    "an item below an item": ("- a\n  - b\n", "<ul><li>a<ul><li>b</li></ul></li></ul>"),
    "a list below a paragraph": ("text:\n- a\n- b\n", "<p>text:</p><ul><li>a</li><li>b</li></ul>"),
    "a paragraph of an item": (
        "10. a\n\n    b\n11. c\n",
        '<ol start="10"><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>',
    ),
    "code in an item": (
        "- a\n\n  ```sh\n  b\n    c\n  ```\n\n- d\n",
        "<ul><li><p>a</p><pre><code>b|  c</code></pre></li><li><p>d</p></li></ul>",
    ),
    "no list in code": ("```\ntext\n- a\n  - b\n```\n", "<pre><code>text|- a|  - b</code></pre>"),
    "a number that begins a line": ("Exit code\n2. No more.\n", "<p>Exit code|2. No more.</p>"),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists_are_read_as_on_the_host_of_the_repository(case: str) -> None:
    from markdown import markdown

    text, wanted = LISTS[case]
    options = {"pymdownx.highlight": {"use_pygments": False}}
    made = markdown(
        hook("lists")["rewritten"](text),
        extensions=["sane_lists", "pymdownx.highlight", "pymdownx.superfences"],
        extension_configs=options,
    )
    tags = re.sub(r"</?div[^>]*>|<span></span>| class=\"[^\"]*\"", "", made)
    assert re.sub(r"(?<=>)\n(?=<)", "", tags).replace("\n", "|") == wanted


LINKS = {
    "a page": ("decisions/0001.md", "../spec.md#input", "", ("a", "../spec.md#input")),
    "the README": ("index.md", "../README.md", "", ("a", "readme.md")),
    "a page, from the README": ("readme.md", "docs/spec.md", "", ("a", "spec.md")),
    "a picture, from the README": (
        "readme.md",
        "docs/pictures/peers.svg",
        "",
        ("a", "pictures/peers.svg"),
    ),
    "a file": ("spec.md", "../Makefile", "https://h/r", ("a", "https://h/r/blob/HEAD/Makefile")),
    "a folder": ("spec.md", "../tests", "https://h/r", ("a", "https://h/r/tree/HEAD/tests")),
    "a file without an address": ("spec.md", "../Makefile", "", ("span", None)),
    "what is missing": ("spec.md", "../missing.md", "https://h/r", ("a", "../missing.md")),
    "another host": ("spec.md", "https://other/x", "https://h/r", ("a", "https://other/x")),
    "an anchor": ("spec.md", "#input", "https://h/r", ("a", "#input")),
}


@pytest.mark.parametrize("case", LINKS)
def test_links_lead_to_pages_of_the_site_or_to_the_repository(case: str) -> None:
    from xml.etree.ElementTree import Element, SubElement

    page, target, repository, wanted = LINKS[case]
    links = hook("links")["Links"](repository)
    links.page = page
    links.pages = frozenset({"spec.md", "readme.md", "pictures/peers.svg", "decisions/0001.md"})
    root = Element("div")
    link = SubElement(root, "a", {"href": target})
    links.run(root)
    assert (link.tag, link.get("href")) == wanted
