"""Reading a spec: a mapping or a YAML file becomes a JobSpec, or one message with every mistake.

A file has limits: its size, its depth, its aliases, and only values that JSON has.
"""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nightshift.common.errors import BadInput
from nightshift.common.public_text import public
from nightshift.common.spec import keys, yaml_errors
from nightshift.common.spec.engines import ADDRESS, CALLABLE, EngineSection
from nightshift.common.spec.job import NAME, JobSpec
from nightshift.common.spec.sections import PAUSE
from nightshift.common.spec.tables import CATALOG_NAME, TABLE_NAME
from nightshift.common.system_errors import told
from nightshift.common.text import unstorable
from nightshift.common.validation import merged, phrase, place_of

SPEC_BYTES = 1024 * 1024
"""Largest spec file, in bytes."""

SPEC_VALUES = 200_000
"""Most values of a spec with every alias written out; a file of the largest size has fewer."""

SPEC_DEPTH = 100
"""Deepest nesting of a spec."""

MERGE = "tag:yaml.org,2002:merge"
"""What YAML calls the key << (yaml.org/type/merge.html)."""

TAGS = frozenset({kind for engine in EngineSection.__subclasses__() for kind in engine.tasks}) | {
    "vllm",
    "transformers",
    "openai",
    "template",
    "parts",
    "image",
}
"""Steps of a place that only name the member of a union, as pydantic writes them."""

PATTERNS = {
    NAME: "letters without accents, digits, dots, dashes and underscores, 63 at most, and a letter or "
    "a digit first",
    ADDRESS: "an address such as http://host:8000/v1, without a password, a query and spaces",
    PAUSE: "a whole number with its unit, such as 30s, 5m or 1h",
    CATALOG_NAME: "letters without accents, digits, dashes and underscores",
    TABLE_NAME: "the name of a table with its namespace, such as sales.answers",
    CALLABLE: "module:name, such as rules:classify for the function classify of rules.py",
}
"""The texts that a pattern allows, in words. The text that does not match may hold a password."""


def parse_spec(data: object, source: str) -> JobSpec:
    """Checks a mapping; `source` names it in the BadInput that lists every mistake."""
    if not isinstance(data, dict):
        raise BadInput(f"{source}: a job spec is a mapping of sections, see docs/spec.md")
    if strange := list(islice(unusual(data), 5)):
        raise BadInput(f"{source}: {public('; '.join(strange))}")
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(f"{source}: {public('; '.join(mistakes(error)))}") from error


def load_spec(path: Path) -> JobSpec:
    """Reads one YAML spec; BadInput when it is unreadable, too large, no YAML or not valid."""
    return parse_spec(read_yaml(path), str(path))


def mistakes(error: ValidationError) -> list[str]:
    """One phrase for each mistake, with the dotted place; union tags are left out of the place."""
    found = []
    for mistake in error.errors():
        place = place_of(tuple(step for step in mistake["loc"] if step not in TAGS))
        message = phrase(mistake)
        if mistake["type"] == "extra_forbidden":
            message += keys.hint(place)
        elif mistake["type"] == "string_pattern_mismatch":
            message = f"must be {PATTERNS[mistake['ctx']['pattern']]}"
        found.append((place, message))
    return [f"{place}: {message}" if place else message for place, message in merged(found)]


def read_yaml(path: Path) -> object:
    """The content of one YAML file; BadInput when it is unreadable, too large or no valid YAML."""
    return parse_yaml(read_text(path, "job spec"), str(path))


def parse_yaml(text: str, source: str) -> object:
    """The content of YAML, which `source` names; BadInput for what is too large or no valid YAML."""
    if len(text) > SPEC_BYTES:
        raise BadInput(f"{source}: larger than {SPEC_BYTES} bytes, this is no job spec")
    try:
        return _parsed(text, source)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{source}: no valid YAML, {public(yaml_errors.said(error, text))}"
        ) from error


def read_text(path: Path, what: str) -> str:
    """A file that is not larger than a spec may be; BadInput when it is or cannot be read."""
    try:
        with path.open("rb") as file:
            # A device has no size and no end.
            data = file.read(SPEC_BYTES + 1)
        if len(data) <= SPEC_BYTES:
            return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path}: cannot be read (no text in UTF-8, at byte {error.start + 1})"
        ) from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read ({told(error)})") from error
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
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which PyYAML would keep the last. Merge keys may repeat what
    they merge, since each mapping is looked at as it is written.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if (key.tag, key.value) in seen:
                raise yaml_errors.repeated(key)
            seen.add((key.tag, key.value))
        return node
