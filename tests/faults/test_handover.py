"""The end of a job: rows that have not begun leave a busy child, whatever happens meanwhile."""

import os
import signal
import subprocess

import psutil
import pytest

from nightshift.common.failpoints import Moment
from nightshift.common.ledger.jobs import jobs
from tests.support.fleet import wait_until, write_rows
from tests.support.rig import Rig

RULES = """
import os
import time

def held(rows):
    # No call ends before the test says so; the first call of the job waits for longer.
    name = "ready"
    if rows[0]["id"].startswith("end"):
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
            name = "go"
        except FileExistsError:
            pass
    while not os.path.exists(name):
        time.sleep(0.05)
    time.sleep(0.01 * len(rows))
    line = "".join(row["id"] + chr(10) for row in rows)
    place = os.open("computed", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(place, line.encode())
    os.close(place)
    return [{"loud": row["text"].upper()} for row in rows]
"""

SIZES = (17, 19, 23, 29, 31, 26, 22, 33)
"""Rows of the files, and so of the batches: half of what a child holds is not a number of whole ones."""

HELD = {"backend": "function", "callable": "rules:held"}


class Ending:
    """A job that two warm children share until one of them is kept busy by its first batch, while the
    other has done its own.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        (rig.folder / "rules.py").write_text(RULES)
        files = [(f"end{number}.parquet", rows) for number, rows in enumerate(SIZES)]
        self.ids = write_rows(rig.folder / "in-end", files)
        write_rows(rig.folder / "in-warm", [("b.parquet", 400)])
        rig.put(rig.spec_of("warm", engine=HELD, batch={"rows": 2}))
        rig.reaper()
        self.workers: list[subprocess.Popen[bytes]] = [rig.worker(), rig.worker()]
        rig.wait_ready(2)
        (rig.folder / "ready").touch()
        rig.wait_closed("warm")

    def begin(self) -> None:
        """Submits the job; one child has begun its first batch."""
        self.rig.put(self.rig.spec_of("end", engine=HELD, batch={"rows": 40}))
        wait_until((self.rig.folder / "first").exists, what="the first call")

    def go(self) -> None:
        """The first batch may end."""
        (self.rig.folder / "go").touch()

    def finished(self) -> None:
        """Each row is in the output once."""
        self.go()
        self.rig.finished("end", self.ids)


def test_rows_that_have_not_begun_leave_a_busy_child_and_nothing_is_charged(rig: Rig) -> None:
    """One child does everything that its sibling has not begun, in whole batches and in pieces."""
    ending = Ending(rig)
    ending.begin()
    rig.wait_rows("end", len(ending.ids) - max(SIZES))
    ending.finished()
    assert rig.value("SELECT count(*) FROM attempts WHERE outcome = 'released'") > 0
    assert rig.value("SELECT count(*) FROM batches WHERE state = 'split'") > 0
    assert set(rig.computed().values()) == {1}
    assert rig.charges() == (0, 0)


@pytest.mark.slow
def test_the_giver_dies_in_the_middle_and_then_the_taker(rig: Rig) -> None:
    ending = Ending(rig)
    rig.arm(Moment.HANDING_OVER, "kill")
    ending.begin()
    rig.wait_fired(Moment.HANDING_OVER)
    rig.arm(Moment.CLAIMED, "kill")
    rig.wait_fired(Moment.CLAIMED)
    ending.finished()
    assert rig.charges()[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", ["drain", "pause", "cancel"])
def test_an_order_that_comes_in_the_middle_of_a_handover(rig: Rig, order: str) -> None:
    ending = Ending(rig)
    rig.arm(Moment.HANDING_OVER, "freeze")
    ending.begin()
    frozen = rig.wait_fired(Moment.HANDING_OVER)
    [worker] = [each for each in ending.workers if psutil.Process(frozen).ppid() == each.pid]
    with rig.ledger.transaction() as connection:
        job_id = jobs.find(connection, "end").id
        if order == "pause":
            jobs.pause(connection, job_id, "by hand")
        elif order == "cancel":
            jobs.cancel(connection, job_id)
    if order == "drain":
        worker.terminate()
    os.kill(frozen, signal.SIGCONT)
    ending.go()
    if order == "cancel":
        assert rig.wait_closed("end") == "cancelled"
        assert not rig.manifest("end")["complete"]
        return
    if order == "pause":
        with rig.ledger.transaction() as connection:
            jobs.resume(connection, job_id)
    ending.finished()
    if order == "drain":
        assert worker.wait(100) == 0
    assert rig.charges()[0] == 0
