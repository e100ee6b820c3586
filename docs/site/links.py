"""Links of docs/, which are right on the repository's host, become links of the site or of the repository.

README.md and CHANGELOG.md are pages of the site, too. MkDocs calls the functions by their names.
"""

from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[2]

TOP = {"readme.md": "README.md", "changes.md": "CHANGELOG.md"}
"""Pages of the site that are files at the top of the repository."""

NO_ADDRESS = "Files of the repository have no links here: the site was built without the repository's address."


class Links(Treeprocessor):
    """Turns the links of one page after the other.

    A link to a file that is no page becomes one of the repository, on the newest commit of its main branch.
    Where no address is known, the text stays without a link, and a tooltip has the path.
    """

    def __init__(self, repository: str) -> None:
        super().__init__()
        self.repository = repository
        self.page = ""
        self.pages: frozenset[str] = frozenset()

    def run(self, root: Element) -> None:
        """Changes links and pictures of the page that `page` names."""
        for link in root.iter("a"):
            self._turn(link, "href")
        for picture in root.iter("img"):
            self._turn(picture, "src")

    def _turn(self, element: Element, name: str) -> None:
        target, mark, anchor = element.get(name, "").partition("#")
        if not target or ":" in target or target.startswith("/"):
            return
        path = normpath(PurePosixPath(TOP.get(self.page, f"docs/{self.page}")).parent / target)
        page = next(
            (page for page, file in TOP.items() if file == path), path.removeprefix("docs/")
        )
        if page in self.pages:
            element.set(name, relpath(page, PurePosixPath(self.page).parent) + mark + anchor)
        elif not (ROOT / path).exists():
            return  # MkDocs refuses the link
        elif self.repository:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            element.set(name, f"{self.repository}/{kind}/HEAD/{path}{mark}{anchor}")
        else:
            element.tag = "span"
            element.attrib = {"class": "file", "title": path}


class LinksExtension(Extension):
    """Puts the links between inline patterns (priority 20), which make them, and MkDocs' own look at them (0)."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.links = links

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (Markdown's name)
        """Registers the treeprocessor."""
        md.treeprocessors.register(self.links, "repository_links", 1)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Registers the links, and slugs of headings as the repository's host makes them."""
    repository = str(config.extra.get("repository") or "").rstrip("/")
    config.extra["links"] = Links(repository)
    config.markdown_extensions.append(LinksExtension(config.extra["links"]))  # type: ignore[arg-type]
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.copyright = f'<a href="{repository}">Repository</a>' if repository else NO_ADDRESS
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the top."""
    for page, name in TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    config.extra["links"].pages = frozenset(file.src_uri for file in files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Tells the links which page comes."""
    config.extra["links"].page = page.file.src_uri
    return markdown
