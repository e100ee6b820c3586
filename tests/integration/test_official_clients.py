"""The official clients, unmodified, of other majors and of another language, through every flow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_batch_api import door, remote  # noqa: F401
from tests.support.serve import Door

FLOWS = Path(__file__).parent.parent / "support" / "clients"

pytestmark = pytest.mark.slow


def ran(*argv: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(each) for each in argv], cwd=cwd, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("release", ["openai>=2,<3", "openai>=3"])
def test_the_python_client(door: Door, tmp_path: Path, release: str) -> None:  # noqa: F811
    ran(sys.executable, "-m", "venv", tmp_path / "client", cwd=tmp_path)
    python = tmp_path / "client" / "bin" / "python"
    ran(python, "-m", "pip", "install", "--quiet", release, cwd=tmp_path)
    door.worker()
    said = ran(python, FLOWS / "flow.py", door.url, cwd=tmp_path)
    assert said.startswith(f"passed {release[8]}.")


def test_the_node_client(door: Door, tmp_path: Path) -> None:  # noqa: F811
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no node with npm on this machine")
    (tmp_path / "package.json").write_text("{}")
    ran(npm, "install", "openai", "--no-audit", "--no-fund", "--loglevel=error", cwd=tmp_path)
    shutil.copy(FLOWS / "flow.mjs", tmp_path)
    door.worker()
    assert ran(node, "flow.mjs", door.url, cwd=tmp_path) == "passed\n"
