"""The script for Slurm, in a real Slurm: workers come with a job, work, and leave, and no row is lost."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.launch.slurm import Slurm
from tests.launch.staging import command_lines_with, env_file, submitted
from tests.support.example import Example
from tests.support.fleet import (
    logs,
    output_ids,
    tree,
    wait_until,
)

Ask = Callable[[str], list[tuple[Any, ...]]]

SLOW = {"backend": "function", "callable": "rules:slow"}

SECRET = "a-secret-of-the-submitter"


GIVEN_BACK = ("ended", None, 0, 0, 0)
"""The only worker has ended in order, and has neither charged nor kept a batch."""


def standing(ask: Ask) -> list[tuple[Any, ...]]:
    """The state and error of each worker; the failures, losses and leases of the batches."""
    return ask("""
        SELECT w.state, w.error, sum(b.failures)::int, sum(b.losses)::int,
               count(*) FILTER (WHERE b.state = 'leased')::int
        FROM workers w CROSS JOIN batches b GROUP BY w.id
    """)


def test_a_worker_of_slurm_does_the_job_and_ends_its_allocation(
    launch: Example, slurm: Slurm, ask: Ask
) -> None:
    ids = submitted(launch, batch={"rows": 20})
    script = launch.folder / "slurm.sbatch"
    number = slurm.submit(script, str(env_file(launch)), "--leave-idle", "2s", OTHER_SECRET=SECRET)
    wait_until(lambda: ask("SELECT FROM workers"), what=f"a worker{slurm.logs()}")
    address = launch.environment["NIGHTSHIFT_DATABASE_URL"]
    assert command_lines_with(address) == []
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
    ids=["as at the end of its time", "cancelled or preempted"],
)
def test_a_worker_that_must_go_gives_its_batch_back_and_the_next_one_finishes_it(
    launch: Example, slurm: Slurm, ask: Ask, cancel: tuple[str, ...], state: str
) -> None:
    launch.let(0)
    ids = submitted(launch, engine=SLOW)
    script, file = launch.folder / "slurm.sbatch", str(env_file(launch))
    number = slurm.submit(script, file, "--leave-idle", "2s")
    wait_until((launch.folder / "passed").exists, what="a batch under way")
    slurm.command("scancel", *cancel, str(number))
    assert slurm.ended(number)["JobState"] == state, slurm.logs()
    assert standing(ask) == [GIVEN_BACK], slurm.logs()
    launch.let()
    assert slurm.ended(slurm.submit(script, file, "--leave-idle", "2s"))["ExitCode"] == "0:0"
    launch.nightshift("wait", "shouted")
    assert output_ids(launch.folder / "out") == ids
    launch.nightshift("verify", "shouted")


def test_a_sigterm_to_each_process_of_a_job_charges_nobody(launch: Example, ask: Ask) -> None:
    """A Slurm that keeps jobs in cgroups, as most do, ends them so; without cgroups it asks the worker alone."""
    launch.let(0)
    submitted(launch, engine=SLOW)
    worker = launch.worker()
    wait_until((launch.folder / "passed").exists, what="a batch under way")
    for process in reversed(tree(worker)):
        process.terminate()
    assert worker.wait(120) == 0, logs(launch.folder)
    assert standing(ask) == [GIVEN_BACK], logs(launch.folder)


def test_a_file_that_others_may_read_is_refused(launch: Example, slurm: Slurm) -> None:
    file = env_file(launch)
    file.chmod(0o640)
    job = slurm.ended(slurm.submit(launch.folder / "slurm.sbatch", str(file)))
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "2:0")
    assert "chmod 600" in slurm.logs()
