"""DuckDB 1.5.5 in a venv of its own: the last one whose extensions for tables of a lake are in the index of Python
packages. The one of this project, 2.0, would load them from a server of DuckDB's.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

VERSION = "1.5.5"

EXTENSIONS = ("avro", "delta", "iceberg")

HOME = Path(sys.prefix) / f"duckdb-{VERSION}"
"""Made by the first test that wants it, and kept."""

QUESTIONS = """
import importlib.util, json, sys
from pathlib import Path
import duckdb

asked = json.load(sys.stdin)
assert duckdb.__version__ == asked["version"]
found = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
for name in asked["extensions"]:
    home = Path(importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations[0])
    (file,) = home.glob(f"extensions/*/{name}.duckdb_extension")
    found.execute(f"LOAD '{file}'")
found.execute("SET TimeZone = 'UTC'")
print(json.dumps([found.execute(each).fetchall() for each in asked["questions"]], default=str))
"""


def home() -> Path:
    """The venv; skips the test where the index cannot be reached."""
    if HOME.exists():
        return HOME
    made = Path(tempfile.mkdtemp(prefix=f"{HOME.name}.", dir=HOME.parent))
    wanted = [
        f"duckdb=={VERSION}",
        *(f"duckdb-extension-{each}=={VERSION}" for each in EXTENSIONS),
        "pytz",
    ]
    try:
        _uv("venv", "--quiet", "--python", sys.executable, str(made / "venv"))
        python = str(made / "venv" / "bin" / "python")
        said = _uv("pip", "install", "--quiet", "--python", python, *wanted)
        if said is not None:
            pytest.skip(
                f"DuckDB {VERSION} and its extensions are not to be had from the index: {said}"
            )
        (made / "venv").rename(HOME)
    except OSError:
        assert HOME.exists()  # another process of the run was first
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return HOME


def _uv(*arguments: str) -> str | None:
    """None where uv succeeds, else what went wrong."""
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, *arguments], capture_output=True, text=True, timeout=600)
    return None if done.returncode == 0 else done.stderr.strip()


def answers(*questions: str) -> list[list[list[Any]]]:
    """The rows of each question; what JSON has no type for is text."""
    asked = {"version": VERSION, "extensions": EXTENSIONS, "questions": questions}
    done = subprocess.run(
        [home() / "bin" / "python", "-I", "-c", QUESTIONS],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[list[Any]]] = json.loads(done.stdout)
    return found
