"""The script for Slurm, in a real Slurm: workers come with a job, work, and leave, and no row is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launch import env_file
from tests.launch.slurm import Slurm
from tests.support.example import Example
from tests.support.fleet import function_spec, output_ids, wait_until, write_rows

Ask = Callable[[str], list[tuple[Any, ...]]]

SECRET = "a-secret-of-the-submitter"


def submitted(launch: Example, **sections: Any) -> list[str]:
    """Submits a job, and starts a reaper; the ids of the rows."""
    ids = write_rows(launch.folder / "in", [("a.parquet", 60)])
    spec = function_spec("shouted", launch.folder / "in", launch.folder / "out", **sections)
    launch.nightshift("submit", str(launch.spec(spec)))
    launch.reaper()
    return ids


def env(launch: Example, slurm: Slurm) -> Path:
    return env_file.write(launch)


def held_by_others(word: str) -> list[str]:
    """Command lines of all processes that hold a word."""
    lines = []
    for process in psutil.process_iter():
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [line for line in lines if word in line]


def test_a_worker_of_slurm_does_the_job_and_ends_its_allocation(
    launch: Example, slurm: Slurm, ask: Ask
) -> None:
    ids = submitted(launch, batch={"rows": 20})
    script = launch.folder / "slurm.sbatch"
    number = slurm.submit(
        script, str(env(launch, slurm)), "--leave-idle", "2s", OTHER_SECRET=SECRET
    )
    wait_until(lambda: ask("SELECT FROM workers"), what=f"a worker{slurm.logs()}")
    address = launch.environment["NIGHTSHIFT_DATABASE_URL"]
    assert held_by_others(address) == []
    job = slurm.ended(number)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), slurm.logs()
    launch.nightshift("wait", "shouted")
    assert output_ids(launch.folder / "out") == ids
    assert ask("SELECT state, error FROM workers") == [("ended", None)]
    # Neither the addresses nor what else the submitter's shell had is kept, told or written by Slurm.
    said = " ".join(job.values()) + slurm.logs()
    kept = b"".join(path.read_bytes() for path in slurm.folder.rglob("*") if path.is_file())
    for secret in (address, SECRET):
        assert secret not in said
        assert secret.encode() not in kept


@pytest.mark.parametrize(
    ("cancel", "state"),
    [(("--batch", "--signal=TERM"), "COMPLETED"), ((), "CANCELLED")],
    ids=["the worker alone is asked", "each process gets the signal"],
)
def test_a_cancelled_worker_gives_its_batch_back_and_nothing_is_lost_or_charged(
    launch: Example, slurm: Slurm, ask: Ask, cancel: tuple[str, ...], state: str
) -> None:
    launch.let(7)
    ids = submitted(launch, engine={"backend": "function", "callable": "rules:slow"})
    given = [str(launch.folder / "slurm.sbatch"), str(env(launch, slurm)), "--leave-idle", "2s"]
    number = slurm.submit(Path(given[0]), *given[1:])
    wait_until((launch.folder / "passed").exists, what=f"a batch under way{slurm.logs()}")
    slurm.command("scancel", *cancel, str(number))
    assert slurm.ended(number)["JobState"] == state, slurm.logs()
    assert ask("SELECT state, error FROM workers") == [("ended", None)], slurm.logs()
    assert ask("SELECT DISTINCT failures, losses FROM batches") == [(0, 0)]
    assert ask("SELECT FROM batches WHERE state = 'leased'") == []
    launch.let()
    assert slurm.ended(slurm.submit(Path(given[0]), *given[1:]))["ExitCode"] == "0:0", slurm.logs()
    launch.nightshift("wait", "shouted")
    assert output_ids(launch.folder / "out") == ids
    launch.nightshift("verify", "shouted")


def test_a_file_that_others_may_read_is_refused(launch: Example, slurm: Slurm) -> None:
    file = env(launch, slurm)
    file.chmod(0o640)
    job = slurm.ended(slurm.submit(launch.folder / "slurm.sbatch", str(file)))
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "2:0")
    assert "chmod 600" in slurm.logs()
