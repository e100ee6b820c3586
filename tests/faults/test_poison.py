"""Rows that kill or hang the engine, and batches too large for the memory: found, and nobody else
pays for them.
"""

import math

import pytest

from common.ledger import Ledger
from tests.faults.rig import Rig
from tests.integration.test_ledger import World, child_of, make_ready

DEADLY = """
import os
import signal
import time

def shout(rows):
    for row in rows:
        if row["id"] in ("poison-9000", "two-1", "two-6"):
            open("seen", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if row["id"] == "hang-2":
            time.sleep(3600)
    name, number = rows[0]["id"].split("-")
    if name == "other" and os.path.exists("seen") and not os.path.exists("enough"):
        time.sleep((0.002 if int(number) < 20_000 else 0.01) * len(rows))
    return [{"loud": row["text"].upper()} for row in rows]
"""
"""Once the killer was seen, the rows of others take their time until there are enough."""

SHOUT = {"backend": "function", "callable": "rules:shout"}

BATCH = 64


def deaths(rig: Rig) -> int:
    """Children that ended with an error."""
    return int(rig.value("SELECT count(*) FROM workers WHERE error IS NOT NULL"))


def test_a_row_that_kills_every_engine_is_found_and_costs_nobody_else(rig: Rig) -> None:
    """Two children with the same queue full of other work, so that neither is idle by itself."""
    (rig.folder / "rules.py").write_text(DEADLY)
    rig.reaper()
    rig.worker("--slots", "2")
    batch = {"rows": BATCH}
    others = rig.submit("other", [("other.parquet", 30_000)], engine=SHOUT, batch=batch)
    ids = rig.submit("poison", [("poison.parquet", 10_001)], engine=SHOUT, batch=batch)
    rig.finished("poison", ids, failed={"poison-9000": "engine_died"})
    assert rig.value("SELECT count(*) FROM jobs WHERE name = 'other' AND state = 'running'") == 1
    assert deaths(rig) <= math.log2(BATCH) + 4, rig.standing()
    assert rig.value(MEANWHILE) > 10, rig.standing()
    (rig.folder / "enough").touch()
    rig.finished("other", others)
    assert rig.charges()[0] == 0


MEANWHILE = """
    WITH lost AS (SELECT min(ended_at) AS first, max(ended_at) AS last
                  FROM attempts WHERE outcome = 'lost')
    SELECT count(*) FROM lost, attempts a JOIN jobs j ON j.id = a.job_id
    WHERE j.name = 'other' AND a.outcome = 'done' AND a.ended_at BETWEEN lost.first AND lost.last
"""
"""Batches of the other job that were done while the killer was searched for."""


@pytest.fixture
def world(ledger: Ledger) -> World:
    return World(ledger)


def lone_first(world: World, *, priority: int = 0, children: int = 2) -> int:
    """A job of four batches, the first of which must run alone, and busy children for it."""
    job_id = world.job(2, 2, 2, 2, priority=priority)
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
    assert sorted(taken.values()) == [[], [1, 2], [3]]
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
