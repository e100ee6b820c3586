"""Completion in real shells: names come from a real ledger, and none of them is ever run."""

import os
import pty
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.producer.cli import proposals
from nightshift.producer.cli.completion import SCRIPTS
from tests.support.world import World

ROOT = Path(__file__).parents[2]

START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}

SOURCE = {
    "bash": "source {script}",
    "zsh": "autoload -Uz compinit; compinit -u -D; source {script}",
    "fish": "source {script}",
}

HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "x; touch pwned",
    'it\'s "two" words',
    "a:b",
    "back\\slash",
)

Types = Callable[..., list[str]]


@pytest.fixture(params=["bash", "zsh", "fish"])
def types(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> Types:
    """Types a line into an interactive shell, and returns the arguments that the command gets."""
    shell = request.param
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}")
    script = tmp_path / f"completion.{shell}"
    # A busy machine may need longer than a person would wait.
    script.write_text(SCRIPTS[shell].replace("--seconds 1", "--seconds 100"))
    command = tmp_path / "bin" / "nightshift"
    command.parent.mkdir()
    command.write_text(
        f"""#!/bin/sh
if [ "$1" = __complete ]; then PYTHONPATH={ROOT} exec {sys.executable} -m nightshift.producer.cli "$@"; fi
printf '%s\\n' "$@" > {tmp_path}/given
"""
    )
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "TERM": "vt100",
        "NIGHTSHIFT_DATABASE_URL": database_url,
    }

    def types_in(line: str) -> list[str]:
        ours, theirs = pty.openpty()
        lines = f"{SOURCE[shell].format(script=script)}\n{line}\nexit\n"
        process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", program, *START[shell]],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=tmp_path,
            env=environment,
        )
        os.close(theirs)
        os.write(ours, lines.encode())
        shown = drained(ours)
        process.wait(timeout=60)
        assert (tmp_path / "given").is_file(), shown.decode(errors="replace")
        return (tmp_path / "given").read_text().splitlines()

    return types_in


def drained(terminal: int) -> bytes:
    """What a shell wrote until it ended."""
    shown = b""
    try:
        while read := os.read(terminal, 65536):
            shown += read
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    return shown


@pytest.mark.slow
def test_a_shell_completes_commands_jobs_and_words(world: World, types: Types) -> None:
    world.job(1, name="reviews")
    world.job(1, name="tickets")
    assert types("nightshift canc\trev\t") == ["cancel", "reviews"]
    assert types("nightshift errors reviews --kind trunc\t") == [
        "errors",
        "reviews",
        "--kind",
        "truncated",
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_completed_as_it_is_and_never_run(
    world: World, types: Types, tmp_path: Path, name: str
) -> None:
    world.do("INSERT INTO cordons (kind, name, drains) VALUES ('host', %s, false)", name)
    assert types("nightshift uncordon \t") == ["uncordon", name]
    assert not (tmp_path / "pwned").exists()


def test_a_file_is_completed_for_a_spec(types: Types, tmp_path: Path) -> None:
    (tmp_path / "job of mine.yaml").touch()
    assert types("nightshift run job\t") == ["run", "job of mine.yaml"]


def proposed(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "nightshift.producer.cli", "__complete", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=100,
    )


def lines(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def patient(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process completes from this test's ledger, and waits for as long as a busy machine needs."""
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.setattr(proposals.Asked, "seconds", 100)
    monkeypatch.setattr(proposals.Asked, "has_own", False)


def test_jobs_pools_and_machines_are_proposed_with_what_they_are(
    world: World, patient: None
) -> None:
    first, second = world.job(1, name="first"), world.job(1, name="second", pool="gpus")
    world.do("UPDATE jobs SET name = 'reviews'")
    world.do("INSERT INTO cordons (kind, name, drains) VALUES ('host', 'gpu-7', true)")
    assert proposals.jobs("") == [
        ("reviews", f"job {second}, running"),
        (str(second), "reviews, running"),
        (str(first), "reviews, running"),
    ]
    assert proposals.jobs("rev") == [("reviews", f"job {second}, running")]
    assert proposals.jobs("x") == []
    assert proposals.pools("") == [("default", "has jobs"), ("gpus", "has jobs")]
    assert proposals.machines("gpu") == [("gpu-7", "host, drained")]


def test_the_value_of_an_option_is_proposed_behind_its_sign(
    world: World, database_url: str
) -> None:
    world.job(1, pool="gpus")
    asked = ("--seconds", "100", "--", "submit", "job.yaml", "--pool", "=", "g")
    assert lines(proposed(*asked, NIGHTSHIFT_DATABASE_URL=database_url)) == ["gpus\thas jobs"]


def test_at_most_fifty_are_proposed_and_none_with_control_characters(
    world: World, database_url: str
) -> None:
    world.do(
        "INSERT INTO cordons (kind, name, drains) SELECT 'host', 'host-' || number || CASE number %% 30 "
        "WHEN 0 THEN E'\\t\\n\\x1b' ELSE '' END, false FROM generate_series(10, 69) AS number"
    )
    asked = ("--seconds", "100", "--", "uncordon", "")
    found = lines(proposed(*asked, NIGHTSHIFT_DATABASE_URL=database_url))
    assert found == [f"host-{number}\thost, cordoned" for number in range(10, 60) if number != 30]


def test_without_a_ledger_nothing_is_proposed_and_nothing_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        urls = (f"postgresql://u:secret@127.0.0.1:{port}/x", "postgresql://u@127.0.0.1:1/x", "none")
        for url in urls:
            done = proposed("--", "status", "", NIGHTSHIFT_DATABASE_URL=url)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_flag_that_is_answered_at_once_answers_nothing_in_a_proposal() -> None:
    found = lines(proposed("--", "--version", "cance"))
    assert [line.partition("\t")[0] for line in found] == ["cancel"]


def test_no_embedded_server_is_started_for_a_proposal(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "postgres").mkdir(parents=True)
    (home / "database_url").write_text("postgresql://u@127.0.0.1:1/x")
    before = sorted(home.rglob("*"))
    done = proposed("--", "status", "", NIGHTSHIFT_HOME=str(home), NIGHTSHIFT_DATABASE_URL="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(home.rglob("*")) == before
