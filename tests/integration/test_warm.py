"""A process that is forked from a nursery is what a newly started one would be."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import warm
from tests.support.fleet import is_alive, wait_until

CLI = [sys.executable, "-m", "nightshift.producer.cli"]


@pytest.mark.slow
def test_every_module_that_a_nursery_imports_is_there() -> None:
    missing = [name for name in {*warm.LIGHT, *warm.VLLM} if not importlib.util.find_spec(name)]
    assert missing == []


@pytest.mark.parametrize("arguments", [["--help"], ["no-such-command"]], ids=["0", "2"])
def test_it_prints_and_ends_as_one_that_was_started(arguments: list[str], tmp_path: Path) -> None:
    warmed = subprocess.run([*CLI, *arguments], cwd=tmp_path, capture_output=True, check=False)
    warm.use(())
    cold = subprocess.run([*CLI, *arguments], cwd=tmp_path, capture_output=True, check=False)
    assert (warmed.returncode, warmed.stdout, warmed.stderr) == (
        cold.returncode,
        cold.stdout,
        cold.stderr,
    )


def test_it_has_its_own_place_among_the_processes_and_ends_with_what_it_needs(
    tmp_path: Path, database_url: str
) -> None:
    environment = {**os.environ, "NIGHTSHIFT_DATABASE_URL": database_url, "MARK": "seen"}
    process = subprocess.Popen(
        [*CLI, "reaper"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    found = psutil.Process(process.pid)
    assert found.ppid() == os.getpid()
    assert [word for word in found.cmdline() if word] == [*CLI, "reaper"]
    assert found.environ()["MARK"] == "seen"
    assert found.cwd() == str(tmp_path)
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    children = wait_until(found.children, what="its own nursery")
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not any(map(is_alive, children)), what="the end of its nursery")
