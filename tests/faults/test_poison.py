"""Rows that kill or hang a function's process or the whole child, and batches too large for the
memory: found, and nobody else pays for them.
"""

import math
import resource
from typing import Any

import pytest

from tests.support.fleet import wait_until
from tests.support.rig import Rig
from tests.support.world import World, child_of, make_ready

DEADLY = """
import os
import re
import signal
import time

def shout(rows):
    for row in rows:
        if row["id"] in ("poison-3000", "two-0", "two-3"):
            open("seen", "w").close()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        if row["id"] == "stop-0":
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(600)
        if row["id"] == "host-7":
            open("seen", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if row["id"] == "hang-1":
            time.sleep(3600)
        if row["id"] == "regex-0":
            re.match("(a+)+$", 99 * "a" + "b")
    name, number = rows[0]["id"].split("-")
    if name.startswith("other") and os.path.exists("seen") and not os.path.exists("enough"):
        time.sleep(0.002 * len(rows))
    return [{"loud": row["text"].upper()} for row in rows]
"""
"""Once the killer was seen, the rows of others take their time until there are enough. A function's
parent is its child: a row that ends it stands for any engine that dies.
"""

SHOUT = {"backend": "function", "callable": "rules:shout"}

BATCH = 64

MUCH = 20_000
"""Rows of other work: two children have enough of them for tens of seconds."""

OPEN = """SELECT coalesce(sum(rows_total - rows_done - rows_failed), 0) FROM job_progress
          WHERE name LIKE 'other%'"""


def deaths(rig: Rig) -> int:
    """Children that ended with an error."""
    return int(rig.value("SELECT count(*) FROM workers WHERE error IS NOT NULL"))


@pytest.mark.slow
def test_a_row_that_kills_every_engine_is_found_and_costs_nobody_else(rig: Rig) -> None:
    """Two children with the same queue full of other work, so that neither is idle by itself."""
    (rig.folder / "rules.py").write_text(DEADLY)
    rig.reaper()
    rig.worker("--slots", "2")
    others = {"other0": submit(rig, "other0", MUCH, BATCH)}
    ids = submit(rig, "poison", 10_001, BATCH)

    def is_over() -> bool:
        """Nobody comes to the end of the other work before the killer is found."""
        if rig.value(OPEN) < MUCH / 2:
            name = f"other{len(others)}"
            others[name] = submit(rig, name, MUCH, BATCH)
        return bool(rig.value("SELECT closed_at IS NOT NULL FROM jobs WHERE name = 'poison'"))

    wait_until(is_over, 400, "the end of the search")
    assert rig.value(OPEN) > 0
    rig.finished("poison", ids, failed={"poison-3000": "engine_died"})
    assert deaths(rig) <= math.log2(BATCH) + 4, rig.standing()
    assert rig.value(MEANWHILE) > 10, rig.standing()
    (rig.folder / "enough").touch()
    for name, expected in others.items():
        rig.finished(name, expected)
    assert rig.charges()[0] == 0


def submit(rig: Rig, name: str, rows: int, batch: int, **sections: Any) -> list[str]:
    """A job whose ids begin with its name."""
    files = [(f"{name}.parquet", rows)]
    return rig.submit(name, files, **{"engine": SHOUT, "batch": {"rows": batch}, **sections})


@pytest.mark.slow
def test_two_rows_that_kill_their_child_are_found_in_one_batch(rig: Rig) -> None:
    (rig.folder / "rules.py").write_text(DEADLY)
    two = submit(rig, "two", 40, 4)
    rig.reaper()
    rig.worker("--slots", "2")
    rig.finished("two", two, failed={"two-0": "engine_died", "two-3": "engine_died"})
    assert deaths(rig) <= 2 * (math.log2(4) + 4), rig.standing()
    assert rig.charges()[0] == 0


@pytest.mark.slow
def test_a_function_that_dies_hangs_or_keeps_pythons_lock_costs_its_process_alone(
    rig: Rig,
) -> None:
    """One child runs all of it, and another job beside: no lease is lost, and no batch is charged."""
    (rig.folder / "rules.py").write_text(DEADLY)
    others = submit(rig, "other", 4_000, BATCH)
    ids = {
        "host": submit(rig, "host", 200, BATCH),
        "hang": submit(rig, "hang", 40, 2, retry={"row_timeout_seconds": 4}),
        "regex": submit(rig, "regex", 30, 2, retry={"row_timeout_seconds": 4}),
    }
    rig.reaper()
    rig.worker()
    for name, row in (("host", "host-7"), ("hang", "hang-1"), ("regex", "regex-0")):
        rig.finished(name, ids[name], failed={row: "engine_died"})
    (rig.folder / "enough").touch()
    rig.finished("other", others)
    assert rig.charges() == (0, 0), rig.standing()
    assert rig.value("SELECT count(*) FROM attempts WHERE outcome <> 'done'") == 0, rig.standing()
    assert rig.value("SELECT count(*) FROM workers") == 1, rig.standing()
    assert deaths(rig) == 0


AWAY = """
import os
import signal

class Shout:
    def __init__(self):
        if os.path.exists("away"):
            raise ConnectionError("the hub is away")

    def __call__(self, rows):
        if not os.path.exists("ended"):
            open("away", "w").close()
            open("ended", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"loud": row["text"].upper()} for row in rows]
"""


@pytest.mark.slow
def test_a_function_that_cannot_be_set_up_again_waits_until_it_can(
    rig: Rig,
) -> None:
    (rig.folder / "rules.py").write_text(AWAY)
    ids = submit(rig, "host", 200, 50, engine={**SHOUT, "callable": "rules:Shout"})
    rig.reaper()
    rig.worker()
    aside = "SELECT count(*) FROM machines_set_aside WHERE error LIKE '%the hub is away'"
    wait_until(lambda: rig.value(aside), what="a failed load")
    (rig.folder / "away").unlink()
    rig.finished("host", ids)
    assert rig.charges() == (0, 1), "the batch over which the process ended is a suspect"


ONCE = """
import os
import signal

class Shout:
    def __init__(self):
        if os.path.exists(f"child-{os.getppid()}"):
            raise ConnectionError("one process of a child may have the device")
        open(f"child-{os.getppid()}", "w").close()

    def __call__(self, rows):
        if any(row["id"] == "once-0" for row in rows):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"loud": row["text"].upper()} for row in rows]
"""


@pytest.mark.slow
def test_a_row_that_ends_a_process_which_no_child_can_start_twice_is_found(rig: Rig) -> None:
    """Its batch was once given back uncharged for ever."""
    (rig.folder / "rules.py").write_text(ONCE)
    ids = submit(rig, "once", 4, 2, engine={**SHOUT, "callable": "rules:Shout"})
    rig.reaper()
    rig.worker()
    rig.finished("once", ids, failed={"once-0": "engine_died"})


@pytest.mark.long
def test_a_child_that_cannot_say_that_it_hangs_is_ended_by_its_supervisor(rig: Rig) -> None:
    """No heartbeat and no drain comes out of it: its supervisor sees that it is silent."""
    (rig.folder / "rules.py").write_text(DEADLY)
    ids = submit(rig, "stop", 30, 1)
    rig.reaper()
    rig.worker()
    rig.finished("stop", ids, failed={"stop-0": "engine_died"})
    assert deaths(rig) == 3, rig.standing()


HUNGRY = """
import mmap
import os
import signal
import time

ROW_BYTES = 1_600 * 2**20
NEVER_TOUCHED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000

def shout(rows):
    held = []
    try:
        for row in rows:
            held.append(mmap.mmap(-1, ROW_BYTES, flags=NEVER_TOUCHED))
    except OSError:
        if row["id"].startswith("child"):
            os.kill(os.getppid(), signal.SIGABRT)
            time.sleep(60)
        if row["id"].startswith("hard"):
            os.abort()
        raise MemoryError("so many rows do not fit")
    finally:
        for each in held:
            each.close()
    return [{"loud": row["text"].upper()} for row in rows]
"""
"""Native code aborts where Python would raise, and a native engine takes its child with it; 0x4000
is MAP_NORESERVE.
"""

LIMIT_BYTES = 8 * 2**30
"""Four rows and a process of Python fit, five rows do not."""


@pytest.mark.slow
def test_batches_too_large_for_the_memory_of_the_worker_are_halved_until_they_fit(rig: Rig) -> None:
    """One job after the other: what the hosts of one job found would spare the children of another."""
    (rig.folder / "rules.py").write_text(HUNGRY)
    worker = rig.worker()
    for kind, most in ((resource.RLIMIT_DATA, LIMIT_BYTES), (resource.RLIMIT_CORE, 0)):
        resource.prlimit(worker.pid, kind, (most, most))
    rig.reaper()
    for name in ("child", "hard", "soft"):
        rig.finished(name, submit(rig, name, 16, 8))
    split = "SELECT count(*) FROM batches b JOIN jobs j ON j.id = b.job_id WHERE b.state = 'split'"
    assert rig.value(split) >= 2
    assert rig.value(f"{split} AND j.name <> 'child'") == 0
    assert rig.value("SELECT count(*) FROM workers WHERE error LIKE '%SIGABRT'") == deaths(rig)
    # Each of the two is lost with others twice, and once alone: then it fits.
    assert 3 <= deaths(rig) <= 6, rig.standing()
    assert rig.charges()[0] == 0


MEANWHILE = """
    WITH lost AS (SELECT min(ended_at) AS first, max(ended_at) AS last
                  FROM attempts WHERE outcome = 'lost')
    SELECT count(*) FROM lost, attempts a JOIN jobs j ON j.id = a.job_id
    WHERE j.name LIKE 'other%' AND a.outcome = 'done' AND a.ended_at BETWEEN lost.first AND lost.last
"""
"""Batches of the other job that were done while the killer was searched for."""


def lone_first(world: World, *, priority: int = 0, children: int = 2) -> int:
    """A job of eight batches, the first of which must run alone, and busy children for it."""
    job_id = world.job(*[2] * 8, priority=priority)
    world.ask("UPDATE batches SET losses = 2 WHERE seq = 0 RETURNING id")
    world.admit(job_id)
    for number in range(1, children + 1):
        make_ready(world, child_of(world.specs[job_id], number))
    return job_id


def takes(world: World, job_id: int, child: int, *, idle: bool = False) -> list[int]:
    """The batches that a child claims, two at most, by their numbers in the job."""
    leases = world.claim(job_id, owner=f"child-{child}", most=2, idle=idle)
    return [lease.seq for lease in leases]


def test_for_a_batch_that_must_run_alone_one_child_empties_itself_and_the_others_go_on(
    world: World,
) -> None:
    job_id = lone_first(world, children=3)
    taken = {child: takes(world, job_id, child) for child in (1, 2, 3)}
    assert sorted(taken.values()) == [[], [1, 2], [3, 4]]
    (elected,) = [child for child, seqs in taken.items() if not seqs]
    assert takes(world, job_id, elected) == []
    assert takes(world, job_id, elected, idle=True) == [0]


def test_an_idle_child_takes_the_lone_batch_and_the_elected_one_goes_on(world: World) -> None:
    job_id = lone_first(world)
    (elected,) = [child for child in (1, 2) if not takes(world, job_id, child)]
    world.admit(world.job(2, name="later"))
    assert takes(world, job_id, 3 - elected, idle=True) == [0]
    assert takes(world, job_id, elected) != []


def test_a_child_that_fell_silent_is_not_waited_for(world: World) -> None:
    job_id = lone_first(world)
    (elected,) = [child for child in (1, 2) if not takes(world, job_id, child)]
    world.admit(world.job(2, name="later"))
    world.ask(
        "UPDATE workers SET seen_at = now() - interval '1 hour' WHERE id = %s RETURNING id",
        f"child-{elected}",
    )
    assert takes(world, job_id, 3 - elected) == []
    assert takes(world, job_id, elected) != []


def test_urgent_work_goes_before_a_batch_that_must_run_alone(world: World) -> None:
    job_id = lone_first(world, children=1)
    urgent = world.job(2, name="urgent", priority=1)
    world.admit(urgent)
    (lease,) = world.claim(job_id, owner="child-1", most=1, idle=False)
    assert lease.job_id == urgent
    assert takes(world, job_id, 1) == []
