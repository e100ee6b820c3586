"""Writes the tables of docs/settings.md from common/settings.py; what stands around them is prose.

Run by `make docs`. The page shows the settings in the order of their fields: a new field joins the
table of the field before it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from nightshift.common.serve_settings import ServeSettings
from nightshift.common.settings import Settings

PAGE = Path(__file__).with_name("settings.md")

HEAD = "| variable | default | meaning |\n|---|---|---|\n"

FIRST = (
    "database_url",
    "lease_seconds",
    "retention_days",
    "read_cache_bytes",
    "allowed_modules",
    "run_dir",
    "serve_host",
)
"""The first setting of each table of the page."""


def written(page: str) -> str:
    """The page with its tables as the settings are now; ValueError where a table is missing."""
    tables = iter(_tables())
    found = page.count(HEAD)
    if found != len(FIRST):
        raise ValueError(f"{PAGE.name} has {found} tables of settings, not {len(FIRST)}")
    return re.sub(re.escape(HEAD) + r"(\| `.*\n)*", lambda _: HEAD + "".join(next(tables)), page)


def _tables() -> Iterator[list[str]]:
    known = Settings.model_fields
    # The fields of a base class come first in Python; the page has the HTTP API last.
    own = [name for name in known if name not in ServeSettings.model_fields]
    fields = [(name, known[name]) for name in (*own, *ServeSettings.model_fields)]
    begins = [position for position, (name, _) in enumerate(fields) if name in FIRST]
    for begin, end in zip(begins, [*begins[1:], len(fields)], strict=True):
        yield [_line(name, field) for name, field in fields[begin:end]]


def _line(name: str, field: FieldInfo) -> str:
    if not field.description:
        raise ValueError(f"Settings.{name} has no description")
    variable = name.upper() if field.validation_alias else f"NIGHTSHIFT_{name.upper()}"
    return f"| `{variable}` | {_default(field.default)} | {field.description} |\n"


def _default(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, tuple):
        value = ",".join(str(each) for each in value)
    return f"`{value}`" if value else "empty"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
