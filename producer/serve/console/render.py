"""HTML of pages: templates, how values are written, and headers that bound what a browser may do.

Everything that rows and names contain is escaped; nothing of it becomes a link.
"""

import hashlib
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from nightshift.common.text import counted, duration, money, rate
from nightshift.producer.serve.console import drawing, marks, values, wording
from nightshift.producer.serve.console.pictures import answers
from nightshift.producer.views import fleet_tables, rates

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every page: scripts and styles of this server alone, and nothing inline."""

STATIC = resources.files("nightshift.producer.serve.console") / "static"


@cache
def environment() -> Environment:
    """Where templates are loaded from, with the filters that they use."""
    found = Environment(
        loader=PackageLoader("nightshift.producer.serve.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "count": wording.count,
        "counted": counted,
        "rate": rate,
        "duration": duration,
        "moment": wording.moment,
        "shortened": wording.shortened,
        "folded": wording.folded,
        "model": wording.model_name,
        "percent": answers.percent,
        "money": lambda value: "—" if value is None else money(value),
        "brief": values.brief,
        "whole": values.whole,
        "text": values.text,
        "column": values.column,
        "said": values.said,
        "sentence": lambda value: f"{value[:1].upper()}{value[1:]}.",
        "why": fleet_tables.why,
        "place": fleet_tables.place,
        "gpus": fleet_tables.gpus,
        "change": fleet_tables.detail,
    }
    found.globals |= {"bar": drawing.bar, "sparkline": drawing.sparkline, "asset": asset}
    found.globals |= {"sheets": sheets, "state": marks.state}
    found.globals |= {"overall_rate": rates.overall_rate}
    found.globals |= {"saved": rates.saved, "elapsed": rates.elapsed_seconds}
    return found


def page(name: str, status: int = 200, **given: Any) -> HTMLResponse:
    """A page of a template."""
    return HTMLResponse(fragment(name, **given), status, HEADERS)


def fragment(name: str, **given: Any) -> str:
    """A piece of HTML of a template."""
    return environment().get_template(name).render(given)


@cache
def asset(name: str) -> str:
    """The address of a file of `static/`; a file that changes has another address."""
    return f"/static/{name}?v={digest(name)[:12]}"


@cache
def sheets() -> list[str]:
    """The style sheets, the common one first: each part of the pages may have one of its own."""
    names = sorted(each.name for each in STATIC.iterdir() if each.name.endswith(".css"))
    return sorted(names, key=lambda name: name != "style.css")


def digest(name: str) -> str:
    """SHA-256 of a file of `static/`; those of the vendored ones stand in `hashes.json`."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()


def safe(html: str) -> Markup:
    """HTML that a template has made."""
    return Markup(html)  # noqa: S704


def quoted(value: str) -> str:
    """A value for the query of an address."""
    return quote(value, safe="")
