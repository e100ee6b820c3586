"""Every command that a page names exists, with the flags that the page gives it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nightshift.producer.cli.app import app
from nightshift.worker.cli import app as worker_app
from tests.support.recipe import ROOT, blocks

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

PROGRAMS = {
    "nightshift": typer.main.get_command(app),
    "nightshift-worker": typer.main.get_command(worker_app),
}

ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "<", ")"}


def commands(text: str) -> Iterator[list[str]]:
    """What a page tells to type, as words: inline code, and lines of blocks for a shell."""
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    scripts = [block.text for block in blocks(text) if block.language in ("sh", "bash", "console")]
    for code in [*(" ".join(each.split()) for each in inline), *scripts]:
        for line in code.replace("\\\n", " ").splitlines():
            yield from _of_line(line)


def _of_line(line: str) -> Iterator[list[str]]:
    if "nightshift" not in line:
        return
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        words = list(reader)
    except ValueError:  # a quotation goes on in the next line
        words = line.split()
    for at, word in enumerate(words):
        if word.rpartition("/")[2] in PROGRAMS and (at == 0 or is_before(words[at - 1])):
            end = next((i for i in range(at, len(words)) if words[i] in ENDS), len(words))
            yield [word.rpartition("/")[2], *words[at + 1 : end]]


def is_before(word: str) -> bool:
    """Whether a command may follow this word."""
    return word in ENDS | {"run", "then", "do", "exec", "srun", "$(", "("} or "=" in word


def flaw(words: list[str]) -> str | None:
    """What this command has that the program has not."""
    command: Any = PROGRAMS[words[0]]  # of the Click that Typer brings
    rest = words[1:]
    while hasattr(command, "commands"):
        while rest and rest[0] in ("--debug",):
            rest = rest[1:]
        if not rest or rest[0] not in command.commands:
            break
        command, rest = command.commands[rest[0]], rest[1:]
    if hasattr(command, "commands") and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        return f"no command {rest[0]}"
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
    unknown = [each for each in given if each not in known | {"--help"}]
    return f"{command.name} has no {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists_with_its_flags(page: Path) -> None:
    found = list(commands(page.read_text()))
    assert [(shlex.join(words), wrong) for words in found if (wrong := flaw(words))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`nightshift statsu`", "no command statsu"),
        ("`nightshift status --jsn`", "status has no --jsn"),
        ("`nightshift key mint`", "no command mint"),
        ("```sh\nA=1 nightshift run x --budgt 3 | tail --lines 3\n```", "run has no --budgt"),
        ("```sh\nnightshift collect x \\\n    --too y\n```", "collect has no --too"),
        ("`nightshift-worker --leave`", "has no --leave"),
        ("`nightshift retry JOB --failed`", None),
        ("`nightshift`", None),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, wrong: str | None) -> None:
    [words] = commands(text)
    found = flaw(words)
    assert found == wrong or (wrong is not None and str(found).endswith(wrong))
