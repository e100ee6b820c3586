"""The Dockerfile as data: its arguments, its stages, and what an image inherits from its bases."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]

IMAGES = {
    "control": "nightshift",
    "worker-cpu": "nightshift-worker",
    "worker-gpu": "nightshift-worker",
}
"""Targets of the Dockerfile, and the command that each runs."""


@dataclass(frozen=True)
class Stage:
    """The instructions between one FROM and the next, in order; `base` is an image or a stage."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        """What stands behind each instruction of one kind."""
        return [value for kind, value in self.instructions if kind == instruction]


def arguments() -> dict[str, str]:
    """The arguments above the first FROM, with those that they name put in."""
    found: dict[str, str] = {}
    for kind, value in _instructions():
        if kind == "FROM":
            return found
        if kind == "ARG":
            name, _, default = value.partition("=")
            found[name] = Template(default).substitute(found)
    raise AssertionError("the Dockerfile has no FROM")


def arguments_of(target: str) -> dict[str, str]:
    """The arguments of a target that have a value."""
    return pairs([value for value in stages()[target].values("ARG") if "=" in value])


def stages() -> dict[str, Stage]:
    """Every stage by its name."""
    found: dict[str, Stage] = {}
    stage = None
    for kind, value in _instructions():
        if kind == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", value).groups()  # type: ignore[union-attr]
            stage = found[name] = Stage(name, Template(image).substitute(arguments()))
        elif stage is not None:
            stage.instructions.append((kind, value))
    return found


def inherited(target: str, instruction: str) -> list[str]:
    """The values of an instruction in an image, those of its bases first."""
    stage = stages().get(target)
    return [] if stage is None else inherited(stage.base, instruction) + stage.values(instruction)


def last(target: str, instruction: str) -> str:
    """The value that counts: the last one."""
    return inherited(target, instruction)[-1]


def pairs(values: list[str]) -> dict[str, str]:
    """Names and values of ENV or LABEL instructions."""
    return dict(word.split("=", 1) for value in values for word in shlex.split(value))


def exec_form(value: str) -> list[str]:
    """The words of a command in JSON form."""
    words: list[str] = json.loads(value[value.index("[") :])
    return words


def project() -> Any:
    """pyproject.toml's [project]."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned() -> dict[str, str]:
    """constraints.txt: package to version."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return dict(line.split("==") for line in lines)


@cache
def _parsed() -> list[tuple[str, str]]:
    with (ROOT / "Dockerfile").open("rb") as file:
        structure = DockerfileParser(fileobj=file).structure
    return [(each["instruction"], each["value"]) for each in structure]


def _instructions() -> Iterator[tuple[str, str]]:
    return (each for each in _parsed() if each[0] != "COMMENT")
