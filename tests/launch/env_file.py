"""The file with the two addresses, as the launchers want it."""

import sys
from pathlib import Path

from tests.launch import programs
from tests.support.example import EXAMPLES, Example


def write(launch: Example, **more: str) -> Path:
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
