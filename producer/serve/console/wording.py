"""How pages write moments, counts, names and long messages: each in one way. Pure. Rates and durations, which sentences
have too, are written by `common/text.py`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from types import MappingProxyType

from markupsafe import Markup

MOST_LINE = 120
"""Characters of a message before it is one line that opens."""

HUB_CACHE = "snapshots"
"""The folder of a hub's cache that holds a model's revisions."""


def count(value: int | None) -> str:
    """A whole number with a comma for each thousand; a dash where unknown."""
    return "—" if value is None else f"{value:,}"


def short_time(value: datetime, now: datetime) -> str:
    """A moment beside `now`, both in the zone that is shown: "08:41" of today, "yesterday 23:10", "12 Nov 08:41",
    "2025-11-12 08:41" of another year.
    """
    clock = f"{value:%H:%M}"
    if value.date() == now.date():
        return clock
    if value.date() == now.date() - timedelta(days=1):
        return f"yesterday {clock}"
    if value.year == now.year:
        return f"{value.day} {value:%b} {clock}"
    return f"{value:%Y-%m-%d} {clock}"


def moment(value: datetime | None) -> Markup:
    """A time, short, and whole on hover; the browser writes both anew in its own time zone."""
    if value is None:
        return Markup("—")
    local = value.astimezone()
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        value.isoformat(),
        f"{local:%Y-%m-%d %H:%M:%S %Z}",
        short_time(local, datetime.now().astimezone()),
    )


def shortened(value: str, most: int = 32) -> Markup:
    """A name of at most so many characters, cut in its middle, where names differ least; whole on hover."""
    if len(value) <= most:
        return Markup.escape(value)
    begin = (most - 1) // 2
    cut = f"{value[:begin]}…{value[-(most - 1 - begin) :]}"
    return Markup('<span class="cut" title="{}">{}</span>').format(value, cut)


def folded(value: str | None) -> Markup:
    """A message; a long one as one line that opens."""
    text = value or ""
    if len(text) <= MOST_LINE and "\n" not in text:
        return Markup.escape(text)
    return Markup(
        '<details class="message"><summary>{}</summary><p class="text">{}</p></details>'
    ).format(" ".join(text[: 2 * MOST_LINE].split()), text)


def model_name(value: str | None, aliases: Mapping[str, str] = MappingProxyType({})) -> str:
    """The name of a model: its alias where it has one, that of a hub as it is, of a folder or an address its last
    part; of a revision in a hub's cache the name at the hub.
    """
    if value is not None and value in aliases:
        return aliases[value]
    text = (value or "").rstrip("/")
    parts = PurePosixPath(text.partition("://")[2] or text).parts
    if HUB_CACHE in parts:
        folder = parts[parts.index(HUB_CACHE) - 1]
        return folder.removeprefix("models--").replace("--", "/")
    is_place = "://" in text or text.startswith(("/", "./", "../", "~")) or len(parts) > 2
    return parts[-1] if is_place and parts else text
