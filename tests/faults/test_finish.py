"""A reaper dies or freezes while it finishes a job: no part too much, none too few."""

import shutil
from collections.abc import Callable

import psutil
import pytest

from nightshift.common.errors import LeaseLost
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import leasing, retries
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.control import deletion
from tests.support.fleet import tree
from tests.support.rig import Rig
from tests.support.world import World, close

UNTIL_MENDED = """
import os

def shout(rows):
    if not os.path.exists("mended") and any(row["id"].endswith("3") for row in rows):
        raise ValueError("not yet")
    return [{"loud": row["text"].upper()} for row in rows]
"""

SHOUT = {"backend": "function", "callable": "rules:shout"}


def let_others_finish(rig: Rig) -> None:
    """The courtesy that one reaper has a job's files to itself is over after a minute."""
    rig.ask("UPDATE holds SET until = '-infinity' RETURNING subject")


def test_another_reaper_finishes_what_one_left_half_done(rig: Rig) -> None:
    rig.worker()
    rig.reaper()
    for moment in (Moment.FINISHING, Moment.SWEEPING, Moment.CLOSING):
        rig.arm(moment, "kill")
        ids = rig.submit(moment, 40, engine=SHOUT)
        rig.wait_fired(moment)
        rig.reaper()
        let_others_finish(rig)
        rig.finished(moment, ids)


def test_a_late_sweep_deletes_no_part_of_a_retry(rig: Rig) -> None:
    """It lists the files, freezes, and a retry replaces the part before it goes on."""
    (rig.folder / "rules.py").write_text(UNTIL_MENDED)
    rig.arm(Moment.SWEEPING, "freeze")
    ids = rig.submit("late", 30, engine=SHOUT, batch={"rows": 30})
    late = rig.reaper()
    rig.worker()
    rig.wait_fired(Moment.SWEEPING)
    (rig.folder / "mended").touch()
    # The new part lies beside the old one, which nobody deletes.
    rig.arm(Moment.MOVED, "kill")
    with rig.ledger.transaction() as connection:
        retries.retry(connection, jobs.find(connection, "late").id, failed=True, dead=False)
    # Another that sweeps first would leave the late one nothing to do.
    rig.arm(Moment.FINISHING, "freeze")
    other = rig.reaper()
    rig.wait_fired(Moment.MOVED)
    assert rig.rows_done("late") == 30
    let_others_finish(rig)
    rig.wait_fired(Moment.FINISHING)
    rig.thaw(tree(late))
    # It leaves only when its finish is over.
    late.terminate()
    assert late.wait(200) == 0
    rig.thaw(tree(other))
    let_others_finish(rig)
    rig.finished("late", ids)


def test_a_slow_finish_deletes_no_part_that_a_retry_is_about_to_commit(rig: Rig) -> None:
    """It freezes before it lists the files, and goes on while a retry's part waits for COMMIT."""
    (rig.folder / "rules.py").write_text(UNTIL_MENDED)
    rig.arm(Moment.FINISHING, "freeze")
    ids = rig.submit("slow", 30, engine=SHOUT, batch={"rows": 30})
    slow = rig.reaper()
    rig.worker()
    rig.wait_fired(Moment.FINISHING)
    (rig.folder / "mended").touch()
    rig.arm(Moment.WRITTEN, "freeze")
    with rig.ledger.transaction() as connection:
        retries.retry(connection, jobs.find(connection, "slow").id, failed=True, dead=False)
    rig.reaper()
    child = psutil.Process(rig.wait_fired(Moment.WRITTEN))
    rig.thaw(tree(slow))
    # It leaves only when its finish is over.
    slow.terminate()
    assert slow.wait(200) == 0
    let_others_finish(rig)
    rig.thaw([child])
    rig.finished("slow", ids)


@pytest.mark.slow
def test_a_late_manifest_never_stays_over_the_one_of_a_later_end(rig: Rig) -> None:
    """A reaper freezes while it writes the manifest; the job ends, is retried and ends again."""
    (rig.folder / "rules.py").write_text(UNTIL_MENDED)
    rig.arm(Moment.CLOSING, "freeze")
    ids = rig.submit("stale", 30, engine=SHOUT, batch={"rows": 30})
    late = rig.reaper()
    rig.worker()
    rig.wait_fired(Moment.CLOSING)
    rig.arm(Moment.WRITING, "freeze")
    rig.thaw(tree(late))
    rig.wait_fired(Moment.WRITING)
    rig.reaper()
    let_others_finish(rig)
    rig.wait_closed("stale")
    (rig.folder / "mended").touch()
    with rig.ledger.transaction() as connection:
        retries.retry(connection, jobs.find(connection, "stale").id, failed=True, dead=False)
    rig.finished("stale", ids)
    rig.thaw(tree(late))
    late.terminate()
    assert late.wait(200) == 0
    rig.oracle("stale", ids)


@pytest.mark.slow
def test_a_suspended_reaper_names_no_manifest_in_the_directory_of_the_next_job(rig: Rig) -> None:
    """The job is finished by another reaper and deleted, and the same spec runs again in the same place."""
    rig.arm(Moment.NAMING, "freeze")
    ids = rig.submit("again", 30, engine=SHOUT)
    late = rig.reaper()
    rig.worker()
    rig.wait_fired(Moment.NAMING)
    rig.reaper()
    let_others_finish(rig)
    rig.wait_closed("again")
    with rig.ledger.transaction() as connection:
        job = jobs.find(connection, "again")
    deletion.delete(rig.ledger, job, Settings(database_url=rig.url), output=False)
    for path in (rig.folder / "again").glob("*"):  # as `rm -r out/*`
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert rig.put(rig.spec_of("again", engine=SHOUT)).job_id != job.id
    rig.finished("again", ids)
    before = rig.manifest("again")
    rig.thaw(tree(late))
    late.terminate()
    assert late.wait(200) == 0
    assert rig.manifest("again") == before
    rig.oracle("again", ids)


def test_a_part_that_was_swept_is_never_named_when_its_failed_job_runs_again(
    second_ledger: Callable[[], Ledger],
) -> None:
    world = World(second_ledger())
    job = world.job(2, 2)
    lease = world.lease(job)
    world.run(leasing.release, [lease])
    world.run(jobs.fail, job, "no engine")
    world.run(job_end.take_owners, job, 10)
    assert world.run(close, job) is JobState.FAILED
    world.retry(job, failed=True)
    with pytest.raises(LeaseLost):
        world.commit(lease)
