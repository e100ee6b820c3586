"""What the launchers are given: a job in the ledger, and the file with the two addresses."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.launch import programs
from tests.support.example import EXAMPLES, Example
from tests.support.fleet import function_spec, write_rows


def env_file(launch: Example, **more: str) -> Path:
    """The settings of a fleet and where its programs are, for whoever owns the file."""
    given = {
        **{
            key: value for key, value in launch.environment.items() if key.startswith("NIGHTSHIFT_")
        },
        "PYTHONPATH": str(EXAMPLES.parent),
        "PATH": ":".join([str(Path(sys.prefix) / "bin"), *programs.folders()]),
        **more,
    }
    path = launch.folder / "worker.env"
    path.write_text(
        "# Of this test.\n" + "\n".join(f"{key}={value}" for key, value in given.items())
    )
    path.chmod(0o600)
    return path


def submitted(launch: Example, **sections: Any) -> list[str]:
    """Submits a job, and starts a reaper; the ids of the rows."""
    ids = write_rows(launch.folder / "in", [("a.parquet", 60)])
    spec = function_spec("shouted", launch.folder / "in", launch.folder / "out", **sections)
    launch.nightshift("submit", str(launch.spec(spec)))
    launch.reaper()
    return ids


def command_lines_with(word: str) -> list[str]:
    """The command lines of this machine that hold a word."""
    lines = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if word in line]
