"""DuckDB 1.5.5 in a venv of its own: the last one whose extensions for tables of a lake are in the index of Python
packages. The one of this project, 2.0, would load them from a server of DuckDB's.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support import own_venv

VERSION = "1.5.5"

EXTENSIONS = ("avro", "delta", "iceberg")

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
    extensions = (f"duckdb-extension-{each}=={VERSION}" for each in EXTENSIONS)
    return own_venv.home(f"duckdb-{VERSION}", f"duckdb=={VERSION}", *extensions, "pytz")


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
