"""Mermaid diagrams become SVG when the site is built: Material would load Mermaid from a CDN into the browser."""

import itertools
from typing import Any

import mermaidx
from mkdocs.config.defaults import MkDocsConfig

NUMBERS = itertools.count()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Registers fences that are called mermaid. Their class is another one, at which Material does nothing."""
    fence = {"name": "mermaid", "class": "diagram", "format": diagram}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def diagram(source: str, *_: Any, **__: Any) -> str:
    """The diagram as HTML, with ids of its own: a page may have several. Colours are in site.css."""
    svg = mermaidx.render(source, theme="neutral").svg()
    return f'<div class="diagram">{svg.replace("my-svg", f"diagram-{next(NUMBERS)}")}</div>'
