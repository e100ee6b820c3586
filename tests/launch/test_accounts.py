"""The launchers that need a machine or an account which no test has: what they would say to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launch.staging import env_file
from tests.support.example import EXAMPLES, Example

FILES = sorted(path for path in (EXAMPLES / "launch").iterdir() if path.suffix != ".md")


def run(launch: Example, script: str, program: str, text: str, **given: str) -> str:
    """What a launcher's program prints, which is a shell script here."""
    folder = launch.folder / "bin"
    folder.mkdir()
    (folder / program).write_text(f"#!/bin/bash\n{text}\n")
    (folder / program).chmod(0o755)
    done = subprocess.run(
        [launch.folder / script, env_file(launch), "--pool", "gpu"],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(launch.folder), **given},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_a_launcher_is_short_and_says_whether_it_was_run(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 30
    assert any("un by tests/" in line or "Not run here" in line for line in lines[:3])
    assert any("nightshift-worker" in line or "docker run" in line for line in lines)
    assert any("--leave-idle 10m" in line for line in lines)


def test_hugging_face_gets_the_worker_as_the_command_and_the_addresses_as_secrets(
    launch: Example,
) -> None:
    """Its own program reads the command line, and sends nothing."""
    hf = Path(sys.prefix) / "bin/hf"
    shown = run(
        launch,
        "hf_jobs.sh",
        "hf",
        f'exec {hf} "$1" "$2" --dry-run --namespace me "${{@:3}}"',
        IMAGE="me/worker:1",
        HF_TOKEN="hf_none",
        HF_HUB_OFFLINE="1",
    )
    said = dict(line.split(None, 1) for line in shown.splitlines() if len(line.split(None, 1)) == 2)
    assert said["command"] == "tini nightshift-worker --leave-idle 10m --pool gpu"
    assert (said["image"], said["flavor"], said["timeout"]) == ("me/worker:1", "l40sx1", "8h")
    assert "NIGHTSHIFT_DATABASE_URL=***" in shown
    assert launch.environment["NIGHTSHIFT_DATABASE_URL"] not in shown


def test_docker_gets_the_file_and_no_address(launch: Example) -> None:
    said = run(launch, "docker.sh", "docker", 'printf "%s " "$@"')
    assert said.startswith("container rm nightshift-worker run --detach ")
    assert f"--env-file {launch.folder}/worker.env " in said
    assert said.endswith(" nightshift/worker-gpu:0.1.0 --leave-idle 10m --pool gpu ")
    assert launch.environment["NIGHTSHIFT_DATABASE_URL"] not in said


def test_skypilot_refuses_a_launch_without_the_addresses() -> None:
    task = yaml.safe_load((EXAMPLES / "launch/skypilot.yaml").read_text())
    assert task["secrets"] == {"NIGHTSHIFT_DATABASE_URL": None, "NIGHTSHIFT_BROKER_URL": None}
    assert task["resources"]["use_spot"] is True
