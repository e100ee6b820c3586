"""What users install: the wheel built from the sdist, in an empty environment, in a project of
their own whose modules are called as our folders are.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fleet import Fleet, logs

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

MODULES = {
    "common/__init__.py": "WORD = 'common'\n",
    "producer/__init__.py": "WORD = 'producer'\n",
    "worker.py": "WORD = 'worker'\n",
    "rules.py": """
import common
import producer
import worker

def sign(rows):
    words = " ".join(each.WORD for each in (common, producer, worker))
    return [{"said": f"{row['text']} {words}"} for row in rows]
""",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and nothing of this repository."""
    folder = tmp_path_factory.mktemp("installed")
    environment = dict(os.environ)
    if links := environment.get("PIP_FIND_LINKS", "").strip():
        environment.setdefault("UV_FIND_LINKS", links)

    def uv(*arguments: str | Path) -> None:
        done = subprocess.run(
            [UV, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    dist, home = folder / "dist", folder / "venv"
    # In this order uv makes the wheel from the sdist, not from the folder.
    uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", dist)
    [wheel] = dist.glob("*.whl")
    uv("venv", "--python", sys.executable, home)
    constraints = ("--constraint", "constraints.txt", "--override", "uv-overrides.txt")
    python = home / "bin" / "python"
    uv("pip", "install", "--python", python, *constraints, f"{wheel}[embedded]")
    return python


@pytest.fixture
def project(tmp_path: Path, installed: Path) -> Fleet:
    """A folder with modules that have nothing to do with Nightshift, and a job that uses them."""
    project = Fleet(tmp_path / "project")
    for name, code in MODULES.items():
        path = project.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    rows = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(5))
    (project.folder / "rows.jsonl").write_text(rows)
    project.spec(
        {
            "name": "signed",
            "input": {"uri": "rows.jsonl"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:sign"},
            "output": {"uri": "out", "format": "jsonl"},
        }
    )
    return project


def said(folder: Path) -> list[str]:
    """The answers of the finished job, in row order."""
    parts = [line for part in folder.glob("out/part-*") for line in part.read_text().splitlines()]
    rows = sorted(map(json.loads, parts), key=lambda row: row["row_index"])
    return [row["said"] for row in rows]


ANSWERS = [f"row {number} common producer worker" for number in range(5)]


@pytest.mark.slow
def test_a_run_in_a_project_with_modules_of_our_names_uses_ours_and_the_callable_its_own(
    project: Fleet, installed: Path
) -> None:
    done = subprocess.run(
        [installed.with_name("nightshift"), "run", "signed.yaml"],
        cwd=project.folder,
        env=project.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + logs(project.folder)
    assert said(project.folder) == ANSWERS


IN_PYTHON = """
import nightshift as ns
import pyarrow as pa

table = pa.table({"text": [f"row {number}" for number in range(5)]})
print("\\n".join(ns.run(table, function="rules:sign").to_arrow().column("said").to_pylist()))
"""


@pytest.mark.slow
def test_the_python_api_is_installed_typed_and_runs_a_table_in_such_a_project(
    project: Fleet, installed: Path
) -> None:
    done = subprocess.run(
        [installed, "-c", IN_PYTHON],
        cwd=project.folder,
        env=project.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + logs(project.folder)
    assert done.stdout.splitlines() == ANSWERS
    package = next(installed.parents[1].glob("lib/python*/site-packages/nightshift"))
    assert (package / "py.typed").exists()


@pytest.mark.slow
def test_a_fleet_in_such_a_project_does_its_job(
    project: Fleet, installed: Path, database_url: str, redis_url: str
) -> None:
    project.environment |= {
        "NIGHTSHIFT_DATABASE_URL": database_url,
        "NIGHTSHIFT_BROKER_URL": redis_url,
        "NIGHTSHIFT_ALLOWED_MODULES": "rules",
        "NIGHTSHIFT_CALLABLE_PATHS": str(project.folder),
    }
    nightshift = installed.with_name("nightshift")

    def command(*arguments: str) -> None:
        done = subprocess.run(
            [nightshift, *arguments],
            cwd=project.folder,
            env=project.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + logs(project.folder)

    command("submit", "signed.yaml")
    started = []
    # With -m Python puts the working directory first.
    for argv in ([nightshift, "reaper"], [installed, "-m", "nightshift.worker.cli"]):
        with (project.folder / f"{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    argv, cwd=project.folder, env=project.environment, stdout=log, stderr=log
                )
            )
    project.processes += started
    try:
        command("wait", "signed")
    finally:
        project.end()
    assert said(project.folder) == ANSWERS
