"""examples/reviews: what `make demo` runs, with fewer rows."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.example import EXAMPLES, Example
from tests.support.fleet import logs


def test_the_commands_of_make_demo_end_with_a_score(example: Callable[[str], Example]) -> None:
    reviews = example("reviews")
    folder = reviews.folder.parent
    (folder / "examples").mkdir()
    shutil.move(reviews.folder, folder / "examples" / "reviews")
    made = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "demo", "--old-file=.venv/.ready"],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    commands = made.stdout.replace("\\\n", " ").replace(
        ".venv/bin", str(Path(sys.executable).parent)
    )
    assert "--rows 2000" in commands
    done = subprocess.run(
        ["bash", "-euc", commands.replace("--rows 2000", "--rows 300")],
        cwd=folder,
        env={**reviews.environment, "HOME": os.environ.get("HOME", "/")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + logs(folder)
    assert "accuracy" in done.stdout.splitlines()[-1]
    assert "of 300)" in done.stdout.splitlines()[-1]
