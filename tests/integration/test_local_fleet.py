"""The reaper and the workers of one machine, as real processes that are started and stopped."""

import dataclasses
from pathlib import Path

from nightshift.common.settings import Settings
from nightshift.producer.local.fleet import LocalFleet
from tests.support.world import World, child_of, make_ready


def test_what_a_worker_could_not_give_back_is_free_once_the_fleet_stands_still(
    world: World, tmp_path: Path
) -> None:
    settings = Settings(database_url=world.ledger.url, drain_seconds=1)
    fleet = LocalFleet(settings, tmp_path, world.ledger, [], {"worker": ["--pool", "elsewhere"]})
    fleet.start()
    try:
        # A child that the worker does not know stands for one whose end it could not tell.
        job_id = world.job(1, 1)
        supervisor = (tmp_path / "supervisors").read_text()
        make_ready(world, dataclasses.replace(child_of(world.specs[job_id]), supervisor=supervisor))
        for _ in range(2):
            world.lease(job_id, owner="child-1")
    finally:
        fleet.stop()
    # The reaper may have enqueued what is free before it ended.
    states = world.states(job_id)
    assert (len(states), {*states} <= {"pending", "queued"}) == (2, True), states
