"""Writes the reference in docs/python.md from the signatures and docstrings of the public names.

Run by `make docs`. What stands before MARK in the page is prose.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import nightshift as ns
from nightshift.specs import JobOptions

PAGE = Path(__file__).with_name("python.md")

MARK = "<!-- From here on `make docs` writes this page. -->\n"

OPTIONS = "**options"
"""Stands in a signature for the options of a job, which have a section of their own."""


def written(page: str) -> str:
    """The page with its reference as the code is now; ValueError where the mark is missing."""
    prose, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE.name} has no line {MARK.strip()}")
    names = [name for each in ns.PLACES.values() for name in each]
    found = [getattr(ns, name) for name in names]
    models = [each for each in found if isinstance(each, type) and issubclass(each, BaseModel)]
    lines = ["", "## Reference", ""]
    for name, each in zip(names, found, strict=True):
        if each not in models:
            lines += [f"### `{name}`", "", *_described(name, each), ""]
        if each is ns.Client:
            lines += ["### Options of a job", "", inspect.cleandoc(JobOptions.__doc__ or ""), ""]
    lines += [
        "### Sections of a spec",
        "",
        "The typed models of the spec; [spec.md](spec.md) has every field.",
        "",
        *(f"- `{each.__name__}`: {_first(each)}" for each in models),
    ]
    return f"{prose}{mark}" + "\n".join(lines) + "\n"


def _described(name: str, each: Any) -> Iterator[str]:
    if not isinstance(each, type):
        yield from (f"```python\nns.{name}{_signature(each)}\n```", "", inspect.getdoc(each) or "")
        return
    if each in (ns.Client,):
        yield from (f"```python\nns.{name}{_signature(each)}\n```", "")
    yield inspect.getdoc(each) or ""
    if dataclasses.is_dataclass(each) and each is ns.JobStatus:
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(each))
        yield from ("", f"Fields: {fields}.")
    if issubclass(each, ns.JobState):
        yield from ("", ", ".join(f"`{state}`" for state in each) + ".")
    if issubclass(each, ns.Client | ns.Job | ns.JobStatus):
        for method, call in vars(each).items():
            if isinstance(call, property) and not method.startswith("_"):
                yield from ("", f"**`{method}`**", "", inspect.getdoc(call) or "")
            elif inspect.isfunction(call) and not method.startswith("_"):
                yield from ("", f"**`{method}{_signature(call)}`**", "", inspect.getdoc(call) or "")


def _signature(call: Any) -> str:
    """The parameters as they are written, with one word for the options of a job."""
    signature = inspect.signature(call)
    known = JobOptions.__annotations__
    own = [
        each
        for each in signature.parameters.values()
        if each.name != "self" and (each.name not in known or each.default is not None)
    ]
    shown = str(signature.replace(parameters=own))
    if len(own) < len(signature.parameters) - ("self" in signature.parameters):
        shown = re.sub(r"\)( ->|$)", rf", {OPTIONS})\1", shown, count=1)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", shown).replace("'", "")


def _first(each: type) -> str:
    return (inspect.getdoc(each) or "").partition("\n")[0]


def main() -> int:
    """Writes the page; with --check, says by the exit code whether it is as it would be written."""
    page = PAGE.read_text(encoding="utf-8")
    new = written(page)
    if "--check" not in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    return int("--check" in sys.argv and new != page)


if __name__ == "__main__":
    sys.exit(main())
