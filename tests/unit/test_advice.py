"""What is advised in each situation, and that every command that any sentence of ours names exists."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from nightshift.producer.advice.advice import Need, Subject, advise
from nightshift.producer.advice.here import FLEET, NOBODY, Here, Works
from nightshift.producer.cli.app import app
from nightshift.worker.cli import app as worker

ROOT = Path(__file__).parents[2]

JOB = Subject(7, "gpus", "key", pools=("cpus", "gpus"))
ALONE = Subject(7, "gpus", "key")
DEAR = Subject(7, "gpus", "key", "limits.budget 3.00 is spent")
REFUSED = Subject(
    7, "gpus", "key", "the engine refused all 20 rows that ran, in the same words: no"
)

SERVE, PAGES = Here(Works.SERVE), Here(Works.PAGES)
OWN_RUN = Here(Works.RUN, 7, "gpus", "key")
SAME_ENGINE = Here(Works.RUN, 3, "gpus", "key")
OTHER_RUN = Here(Works.RUN, 3, "gpus", "other")
STARTING = Here(Works.RUN)

CASES: list[tuple[Need, Here, Subject, str]] = [
    (Need.RESUME, FLEET, JOB, "nightshift resume 7"),
    (Need.RESUME, SERVE, JOB, "nightshift resume 7"),
    (Need.RESUME, SAME_ENGINE, JOB, "nightshift resume 7"),
    (Need.RESUME, OWN_RUN, JOB, "nightshift run SPEC"),
    (Need.RESUME, STARTING, JOB, "nightshift run SPEC"),
    (Need.RESUME, OTHER_RUN, JOB, "nightshift wait 3; nightshift run SPEC"),
    (Need.RESUME, NOBODY, JOB, "nightshift run SPEC"),
    (Need.RESUME, PAGES, JOB, "nightshift run --ui SPEC"),
    (Need.RESUME, FLEET, DEAR, "nightshift resume 7 --budget MORE"),
    (Need.RESUME, NOBODY, DEAR, "nightshift resume 7 --budget MORE; nightshift run SPEC"),
    (Need.RESUME, FLEET, REFUSED, "nightshift retry 7 --failed; nightshift resume 7"),
    (Need.RESUME, NOBODY, REFUSED, "nightshift run SPEC"),
    (Need.RETRY, FLEET, JOB, "nightshift retry 7 --failed"),
    (Need.RETRY, SERVE, JOB, "nightshift retry 7 --failed"),
    (Need.RETRY, NOBODY, JOB, "nightshift run SPEC"),
    (Need.RETRY, OWN_RUN, JOB, "nightshift run SPEC"),
    (Need.RETRY_ROWS, FLEET, JOB, "nightshift retry 7 --failed"),
    (Need.RETRY_ROWS, NOBODY, JOB, "nightshift retry 7 --failed; nightshift run SPEC"),
    (Need.WORK, FLEET, JOB, "nightshift-worker --pool gpus"),
    (Need.WORK, SERVE, JOB, "nightshift set 7 --pool cpus"),
    (Need.WORK, SERVE, ALONE, "nightshift logs"),
    (Need.WORK, OWN_RUN, JOB, "nightshift logs"),
    (Need.WORK, OTHER_RUN, JOB, "nightshift wait 3; nightshift run SPEC"),
    (Need.WORK, NOBODY, JOB, "nightshift run SPEC"),
    (Need.WORK, PAGES, JOB, "nightshift run --ui SPEC"),
    (Need.REAPER, FLEET, JOB, "nightshift reaper"),
    (Need.REAPER, SERVE, JOB, "nightshift logs"),
    (Need.WORKERS, FLEET, JOB, "nightshift-worker --pool gpus"),
    (Need.WORKERS, SERVE, JOB, "nightshift logs"),
    (Need.WORKERS, PAGES, JOB, "nightshift run --ui SPEC"),
    (Need.AFRESH, FLEET, JOB, "nightshift submit SPEC --out ANOTHER"),
    (Need.AFRESH, NOBODY, JOB, "nightshift run SPEC --out ANOTHER"),
]


@pytest.mark.parametrize(
    ("need", "here", "job", "command"),
    CASES,
    ids=[f"{need}-{here.works}-{job.pools or job.reason}" for need, here, job, _ in CASES],
)
def test_what_is_advised_by_who_works_here(
    need: Need, here: Here, job: Subject, command: str
) -> None:
    assert advise(need, here, job) == command


QUOTED = re.compile(r"`(nightshift(?:-worker)?(?: [^`]*)?)`")

COMMAND = re.compile(r"^(nightshift(?:-worker)? [a-z-].*)$")

HOLE = "7"
"""What stands for a value that a sentence fills in: a job has this number, a name may be it."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string of a module that is no docstring and no piece of another, with its line; what it fills
    in is HOLE.
    """
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(each) for each in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(
                    str(each.value) if isinstance(each, ast.Constant) else HOLE
                    for each in node.values
                ),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def named() -> Iterator[tuple[str, str, bool]]:
    """Every command that a string or a page of ours names: where, which, and whether a sentence only
    mentions it by its name.
    """
    for package in ("producer", "worker", "common", "nightshift"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.is_symlink() or "migrations" in path.parts:
                continue
            for line, text in texts(ast.parse(path.read_text())):
                place = f"{path.relative_to(ROOT)}:{line}"
                for found in QUOTED.findall(text):
                    yield place, found, True
                if (whole := COMMAND.match(text.partition("    ")[0])) and "\n" not in text:
                    yield place, whole[1], False
    for path in sorted((ROOT / "producer/serve/console/templates").glob("*.html")):
        for found in re.findall(r"<code>(nightshift[^<{]*)</code>", path.read_text()):
            yield str(path.relative_to(ROOT)), found, False


@pytest.fixture(scope="module")
def every_named() -> list[tuple[str, str, bool]]:
    """Every command in the sources, collected once."""
    return sorted(set(named()))


NO_COMMANDS = ("alive: 7", "serves one pool", "runs with")
"""How texts go on that begin with the name of a program, and name no command."""


def wrong_with(command: str, *, mention: bool) -> str | None:
    """What the program itself would say of a command; None where it takes the command. Of a mention the
    name alone must be right.
    """
    program, *words = shlex.split(command)
    found: Any = typer.main.get_command(worker if program == "nightshift-worker" else app)
    while isinstance(found, TyperGroup) and not (words and words[0].startswith("--")):
        if not words:
            return None if mention else "it names no command"
        name = words.pop(0)
        found = found.commands.get(name)
        if found is None:
            return f"there is no command {name}"
    if words == ["--help"] or (mention and not words):
        return None
    filled = ["1" if word in ("MORE", "NUMBER") else word for word in words]
    if found.name == "set" and len(filled) < 2:
        return "it says nothing that changes"
    try:
        if HOLE * 2 not in "".join(filled):  # else an option is filled in
            found.make_context(program, filled)
    except Exception as error:  # of typer's own copy of click
        return str(error.format_message()) if hasattr(error, "format_message") else repr(error)
    return None


def test_the_search_for_commands_finds_those_of_every_kind(
    every_named: list[tuple[str, str, bool]],
) -> None:
    commands = {command for _, command, _ in every_named}
    assert {"nightshift migrate", f"nightshift retry {HOLE} --failed"} <= commands
    assert f"nightshift-worker --pool {HOLE}" in commands
    assert "nightshift key create --tenant TEAM --role viewer" in commands
    assert len(every_named) > 60


def test_every_command_that_a_sentence_names_exists_with_its_options(
    every_named: list[tuple[str, str, bool]],
) -> None:
    wrong = []
    for place, command, mention in every_named:
        if any(words in command for words in NO_COMMANDS):
            continue
        for part in command.split(";"):
            if (why := wrong_with(part, mention=mention)) is not None:
                wrong.append(f"{place}: `{part}`: {why}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("nightshift key create", "tenant"),
        ("nightshift tenant set NAME", "nothing that changes"),
        ("nightshift resume 7 --bugdet MORE", "bugdet"),
        ("nightshift restart 7", "no command restart"),
        ("nightshift run … with the spec of the job", "unexpected extra"),
        ("nightshift-worker --poool gpus", "poool"),
    ],
)
def test_a_command_that_its_program_refuses_is_found(command: str, why: str) -> None:
    said = wrong_with(command, mention=False)
    assert said is not None
    assert why in said
