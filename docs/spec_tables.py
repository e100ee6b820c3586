"""Writes the tables of docs/spec.md from the models of the spec; what stands around them is prose.

Run by `make docs`. The tables stand in the page in the order of TABLES.
"""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nightshift.common import spec
from nightshift.common.spec import sections
from nightshift.common.spec.tasks import generate, sampling, structured

PAGE = Path(__file__).with_name("spec.md")

HEAD = "| field | type | default | meaning |\n|---|---|---|---|\n"

PRICES = tuple(name for name in spec.FunctionEngineSpec.model_fields if name.startswith("price_"))
"""They stand in a table of their own, for every engine."""

TABLES: tuple[tuple[tuple[str, type[BaseModel]], ...], ...] = (
    (("", spec.JobSpec),),
    (("input.", spec.InputSpec),),
    (("task.", spec.GenerateTask),),
    (("task.messages[].", spec.Message),),
    (
        ("task.messages[].content[].", generate.TextPart),
        ("task.messages[].content[].", spec.ImagePart),
    ),
    (("task.sampling.", spec.Sampling),),
    (("task.sampling_columns.", sampling.SamplingColumns),),
    (("task.output.", spec.StructuredOutput),),
    (("task.output.on_invalid.", structured.OnInvalid),),
    (("task.", spec.EmbedTask),),
    (("task.", spec.ClassifyTask),),
    (("task.", spec.ScoreTask),),
    (("task.", spec.RequestsTask),),
    (("task.", spec.FunctionTask),),
    (("engine.", spec.VllmEngineSpec),),
    (("engine.", spec.TransformersEngineSpec),),
    (("engine.", spec.OpenaiEngineSpec),),
    (("engine.", spec.FunctionEngineSpec),),
    (("engine.price", spec.FunctionEngineSpec),),
    (("output.", sections.OutputSpec),),
    (("batch.", sections.BatchSpec),),
    (("retry.", sections.RetrySpec),),
    (("limits.", sections.LimitsSpec),),
)

TYPES = {"task": "one of the kinds below", "engine": "one of the backends below"}
"""Sections that are one of several."""

DEFAULTS = {"task.endpoint": ""}
"""What a validator fills in."""


def written(page: str) -> str:
    """The page with its tables as the models are now; ValueError where a table is missing."""
    rest = iter(TABLES)
    found = len(re.findall(re.escape(HEAD), page))
    if found != len(TABLES):
        raise ValueError(f"{PAGE.name} has {found} tables of fields, not {len(TABLES)}")
    return re.sub(
        re.escape(HEAD) + r"(\| `.*\n)+", lambda _: HEAD + "".join(_lines(next(rest))), page
    )


def _lines(table: tuple[tuple[str, type[BaseModel]], ...]) -> Iterator[str]:
    for prefix, section in table:
        only_prices = prefix == "engine.price"
        for name, field in section.model_fields.items():
            if prefix.startswith("engine.") and (name in PRICES) != only_prices:
                continue
            full = f"{prefix.removesuffix('price')}{field.alias or name}"
            if not field.description:
                raise ValueError(f"{section.__name__}.{name} has no description")
            kind = TYPES.get(full) or _type(field.annotation)
            default = DEFAULTS.get(full, _default(field))
            yield f"| `{full}` | {kind} | {default} | {field.description} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = None if isinstance(field.default, BaseModel) else field.default
    return "" if field.default_factory or default is None else f"`{default}`"


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        *others, last = map(str, parts)
        return f"{', '.join(others)} or {last}" if others else last
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in parts if each is not type(None))
    if parts:
        return f"{origin.__name__}[{', '.join(map(_type, parts))}]"
    return "Any" if annotation is Any else str(annotation.__name__)


def main() -> int:
    """Writes the page; with --check, says by the exit code whether it is as it would be written."""
    page = PAGE.read_text(encoding="utf-8")
    new = written(page)
    if "--check" not in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    return int("--check" in sys.argv and new != page)


if __name__ == "__main__":
    sys.exit(main())
