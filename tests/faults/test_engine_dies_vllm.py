"""Real vLLM: its engine process is killed below a child, and is spared when all above it die."""

import psutil
import pyarrow.dataset as ds
import pytest

from nightshift.common.failpoints import Moment
from nightshift.common.ledger.jobs import jobs
from nightshift.producer.verify.verify import verify
from tests.support.fleet import is_alive, logs, tree, wait_until
from tests.support.models import reviews_spec
from tests.support.rig import Rig

ROWS = 160


@pytest.mark.timeout(1200)
def test_a_dead_engine_is_replaced_and_none_outlives_its_worker(rig: Rig) -> None:
    # A core busy with the load of an engine must not cost a lease.
    rig.environment |= {"NIGHTSHIFT_LEASE_SECONDS": "10", "NIGHTSHIFT_HEARTBEAT_SECONDS": "2"}
    rig.put(reviews_spec(rig.folder, ROWS, batch={"rows": 8}))
    rig.reaper()
    worker = rig.worker()
    # The child stands still with rows in its engine, so that the job cannot end too soon.
    rig.arm(Moment.ANSWERED, "freeze")
    first = psutil.Process(rig.wait_fired(Moment.ANSWERED, seconds=400))
    (engine,) = engines(first)
    engine.kill()
    rig.thaw([first])
    wait_until(lambda: not is_alive(first), 60, "the end of the child without an engine")

    assert rig.wait_closed("reviews", 400) == "completed", logs(rig.folder)
    check(rig)
    lost = rig.ask("SELECT error FROM attempts WHERE outcome = 'lost'")
    assert set(lost) == {("the engine died",)}
    assert rig.charges() == (0, len(lost))
    assert rig.value("SELECT count(*) FROM batches WHERE state <> 'done'") == 0
    assert rig.ask("SELECT state, error FROM workers ORDER BY started_at") == [
        ("ended", "the engine died"),
        ("ready", None),
    ]

    second = rig.child(worker)
    assert second != first
    (engine,) = engines(second)
    above = [member for member in tree(worker) if member not in (engine, *engine.children())]
    watchers = [member for member in above if "nightshift-watcher" in title(member)]
    assert watchers
    for member in (psutil.Process(worker.pid), second):
        member.kill()
    worker.wait(200)
    wait_until(lambda: not is_alive(engine), 60, "the end of the orphaned engine")
    wait_until(lambda: not any(map(is_alive, above)), 60, "the end of all that was above it")


def check(rig: Rig) -> None:
    """The oracle for answers of a model: each row once, nothing that verify finds, most right."""
    with rig.ledger.transaction() as connection:
        job = jobs.find(connection, "reviews")
    assert not verify(rig.ledger, job)
    rows = ds.dataset(rig.folder / "out").to_table().to_pylist()
    assert sorted(row["row_index"] for row in rows) == list(range(ROWS))
    assert len({row["review_id"] for row in rows}) == ROWS
    assert sum(row["output"] == row["label"] for row in rows) >= 0.95 * ROWS


def engines(child: psutil.Process) -> list[psutil.Process]:
    """vLLM's engine processes below a child."""
    below = child.children(recursive=True)
    return [member for member in below if "EngineCore" in title(member)]


def title(member: psutil.Process) -> str:
    try:
        return " ".join(member.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
