"""The script for SSH hosts, with a real server: workers start by a list of hosts and leave by themselves."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launch import programs
from tests.launch.sshd import Sshd
from tests.launch.staging import command_lines_with, env_file, submitted
from tests.support.containers import may_mount
from tests.support.example import Example
from tests.support.fleet import output_ids, wait_until


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A server, which ends with the test."""
    if lacking := programs.missing(programs.SSH):
        pytest.skip(
            f"{', '.join(lacking)}: not here; `python -m tests.launch.programs` unpacks Debian's"
        )
    if os.getuid() != 0 or not may_mount():
        pytest.skip("the server needs root with the right to mount")
    found = Sshd(tmp_path / "ssh")
    found.start()
    yield found
    found.end()


def started(
    launch: Example, sshd: Sshd, env: Path, *hosts: str
) -> subprocess.CompletedProcess[str]:
    """Runs the script over these hosts."""
    (launch.folder / "hosts").write_text(
        "# The hosts of this test.\n" + "".join(f"{host}\n" for host in hosts)
    )
    return subprocess.run(
        [
            launch.folder / "ssh.sh",
            launch.folder / "hosts",
            env,
            "--pool",
            "default",
            "--leave-idle",
            "2s",
        ],
        env={"PATH": f"{sshd.client}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_workers_start_by_ssh_do_the_job_and_leave(
    launch: Example, sshd: Sshd, ask: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    launch.let(0)
    ids = submitted(launch, engine={"backend": "function", "callable": "rules:slow"})
    done = started(launch, sshd, env_file(launch), "gpu-1", "gpu-2")
    assert done.returncode == 0, done.stdout + done.stderr + sshd.log.read_text()
    # Both names are this machine, where one worker is enough.
    found = re.fullmatch(r"gpu-1: pid (\d+), log (.+)\ngpu-2: runs already\n", done.stdout)
    assert found is not None, done.stdout
    worker = psutil.Process(int(found[1]))
    try:
        wait_until((launch.folder / "passed").exists, what="a batch under way")
        address = launch.environment["NIGHTSHIFT_DATABASE_URL"]
        assert command_lines_with(address) == []
        kept = b"".join(path.read_bytes() for path in sshd.home.rglob("*") if path.is_file())
        assert address.encode() not in kept
        launch.let()
        launch.nightshift("wait", "shouted")
        assert output_ids(launch.folder / "out") == ids
        wait_until(lambda: not worker.is_running(), what="the end of the worker")
    finally:
        if worker.is_running():
            worker.terminate()
    assert "supervisor_ended" in Path(found[2]).read_text()
    assert ask("SELECT state, error FROM workers") == [("ended", None)]


def test_a_host_on_which_no_worker_starts_is_named(launch: Example, sshd: Sshd) -> None:
    env = env_file(launch, NIGHTSHIFT_DATABASE_URL="postgresql://127.0.0.1:1/none")
    done = started(launch, sshd, env, "gpu-1")
    assert done.returncode == 1
    assert done.stdout == "gpu-1: not started\n"
    assert "127.0.0.1" in done.stderr
