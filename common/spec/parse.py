"""Reading a spec: a mapping or a YAML file becomes a JobSpec, or one message with every mistake."""

from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from nightshift.common.errors import BadInput
from nightshift.common.spec.engines import EngineSection
from nightshift.common.spec.file import read_yaml, unusual
from nightshift.common.spec.job import JobSpec

TAGS = frozenset({kind for engine in EngineSection.__subclasses__() for kind in engine.tasks}) | {
    "vllm",
    "transformers",
    "openai",
    "template",
    "parts",
    "image",
}
"""Steps of a place that only name the member of a union, as pydantic writes them."""


def parse_spec(data: object, source: str) -> JobSpec:
    """Checks a mapping; `source` names it in the BadInput that lists every mistake."""
    if not isinstance(data, dict):
        raise BadInput(f"{source}: a job spec is a mapping of sections, see docs/spec.md")
    if mistakes := list(islice(unusual(data), 5)):
        raise BadInput(f"{source}: {'; '.join(mistakes)}")
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(f"{source}: {'; '.join(_mistakes(error))}") from error


def load_spec(path: Path) -> JobSpec:
    """Reads one YAML spec; BadInput when it is unreadable, too large, no YAML or not valid."""
    return parse_spec(read_yaml(path), str(path))


def _mistakes(error: ValidationError) -> list[str]:
    """One phrase a mistake, with the dotted place; union tags are left out of the place."""
    lines = []
    for mistake in error.errors():
        place = ".".join(str(step) for step in mistake["loc"] if step not in TAGS)
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            message = "unknown key"
        lines.append(f"{place}: {message}" if place else message)
    return lines
