"""A worker with `--leave-idle` leaves by itself: after its work, and never while an engine loads."""

from collections.abc import Callable
from typing import Any

import pytest

from nightshift.common.ledger.fleet import slots
from nightshift.common.ledger.fleet.slots import Machine
from tests.support.fleet import Fleet, function_spec, logs, wait_until, write_rows
from tests.support.world import World

Ask = Callable[[str], list[tuple[Any, ...]]]

LOADS_UNTIL_TOLD = """
import time
from pathlib import Path

HERE = Path(__file__).parent
(HERE / "loads").touch()
while not (HERE / "told").exists():
    time.sleep(0.02)

def shout(rows):
    return [{"loud": row["text"].upper()} for row in rows]
"""


def submit(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 60)])
    spec = function_spec("shouted", fleet.folder / "in", fleet.folder / "out", batch={"rows": 20})
    done = fleet.command("submit", str(fleet.spec(spec)))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_worker_leaves_after_its_work_and_not_while_it_loads(fleet: Fleet, ask: Ask) -> None:
    """A worker of another pool, which began later and leaves later, says that the time is over."""
    (fleet.folder / "rules.py").write_text(LOADS_UNTIL_TOLD)
    submit(fleet)
    fleet.reaper()
    worker = fleet.worker("--leave-idle", "1s")
    wait_until((fleet.folder / "loads").exists, what="a load")
    assert fleet.worker("--leave-idle", "3s", "--pool", "empty").wait(120) == 0
    assert worker.poll() is None, logs(fleet.folder)
    assert ask("SELECT state FROM workers") == [("loading",)]
    (fleet.folder / "told").touch()
    assert worker.wait(120) == 0, logs(fleet.folder)
    assert ask("SELECT state FROM jobs") == [("completed",)], logs(fleet.folder)
    assert ask("SELECT state, error FROM workers") == [("ended", None)]
    assert ask("SELECT FROM slots") == []


def test_a_batch_that_waits_for_its_next_try_keeps_the_machines_that_may_serve_it(
    world: World,
) -> None:
    """The plan counts no batch that backs off for longer than a load takes."""
    job_id = world.job(2)
    key = world.specs[job_id].engine_key
    every, same, other = (Machine("m", "default", "host", serves) for serves in (None, key, "k"))
    elsewhere = Machine("m", "elsewhere", "host")
    assert not world.run(slots.backs_off, every)
    world.ask("UPDATE batches SET not_before = now() + interval '1 minute' RETURNING id")
    assert [world.run(slots.backs_off, one) for one in (every, same, other, elsewhere)] == [
        True,
        True,
        False,
        False,
    ]
    world.ask("UPDATE jobs SET state = 'paused' RETURNING id")
    assert not world.run(slots.backs_off, every)
