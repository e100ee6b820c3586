"""Limits of a spec file: its size, its depth, its aliases, and only values that JSON has."""

import math
from collections.abc import Iterator
from pathlib import Path

import yaml

from nightshift.common.errors import BadInput
from nightshift.common.text import unstorable

SPEC_BYTES = 1024 * 1024
"""Largest spec file, in bytes."""

SPEC_VALUES = 200_000
"""Most values of a spec with every alias written out; a file of the largest size has fewer."""

SPEC_DEPTH = 100
"""Deepest nesting of a spec."""


def read_yaml(path: Path) -> object:
    """The content of one YAML file; BadInput when it is unreadable, too large or no valid YAML."""
    try:
        data = _parsed(read_text(path, "job spec"), str(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A value that looks like a date or a number, but is none, is a ValueError.
        raise BadInput(f"{path}: no valid YAML ({' '.join(str(error).split())})") from error
    return data


def read_text(path: Path, what: str) -> str:
    """A file that is not larger than a spec may be; BadInput when it is or cannot be read."""
    try:
        with path.open("rb") as file:
            # A device has no size and no end.
            data = file.read(SPEC_BYTES + 1)
        if len(data) <= SPEC_BYTES:
            return data.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from error
    raise BadInput(f"{path}: larger than {SPEC_BYTES} bytes, this is no {what}")


def unusual(data: object) -> Iterator[str]:
    """One phrase for each value that the ledger, which keeps specs as JSON, could not hold."""
    waiting: list[tuple[str, object, int]] = [("", data, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        where = f"{place.lstrip('.')}: " if place else ""
        if depth > SPEC_DEPTH:
            yield f"{where}is nested more than {SPEC_DEPTH} levels deep"
        elif isinstance(value, dict):
            for key, each in value.items():
                waiting += [(place, key, depth), (f"{place}.{key}"[:200], each, depth + 1)]
        elif isinstance(value, list):
            waiting += [(place, each, depth + 1) for each in value]
        elif isinstance(value, str):
            if why := unstorable(value):
                yield f"{where}{why}"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{where}{value} is no number that JSON has"
        elif value is not None and not isinstance(value, bool | int | float):
            yield f"{where}{type(value).__name__} is no value of a spec; quote it to make it text"


def _parsed(text: str, source: str) -> object:
    """The document, loaded only after its values are counted: aliases of aliases double by line."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise BadInput(f"{source}: the alias *{event.anchor} stands for nothing before it")
            total += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - before
        if total > SPEC_VALUES or len(open_nodes) > SPEC_DEPTH:
            raise BadInput(
                f"{source}: more than {SPEC_VALUES:,} values or {SPEC_DEPTH} levels with every "
                "alias written out, this is no job spec"
            )
    return yaml.safe_load(text)
