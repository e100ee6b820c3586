"""Packages in a venv of their own, beside that of this project: made by the first test that wants them, and kept."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def home(name: str, *wanted: str) -> Path:
    """The venv of this name with the packages `wanted`, whose versions the name tells; skips the test where the
    index cannot be reached.
    """
    found = Path(sys.prefix) / name
    if found.exists():
        return found
    made = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=found.parent))
    try:
        _uv("venv", "--quiet", "--relocatable", "--python", sys.executable, str(made / "venv"))
        python = str(made / "venv" / "bin" / "python")
        said = _uv("pip", "install", "--quiet", "--python", python, *wanted)
        if said is not None:
            pytest.skip(f"{', '.join(wanted)} are not to be had from the index: {said}")
        (made / "venv").rename(found)
    except OSError:
        assert found.exists()  # another process of the run was first
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def _uv(*arguments: str) -> str | None:
    """None where uv succeeds, else what went wrong."""
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, *arguments], capture_output=True, text=True, timeout=600)
    return None if done.returncode == 0 else done.stderr.strip()
