"""A child as its supervisor starts it, where its job is not what the plan said any more."""

import dataclasses
import json
import socket
import subprocess
import sys

from nightshift.common.settings import Settings, child_environment
from nightshift.worker.supervisor.children import ChildConfig
from tests.support.world import World, child_of


def test_a_child_whose_job_has_another_engine_by_now_serves_nobody(world: World) -> None:
    """Under its key it would run the rows of other jobs on the engine of this one."""
    job_id = world.job(1)
    child = dataclasses.asdict(child_of(world.specs[job_id])) | {"engine_key": "before"}
    ours, childs = socket.socketpair()
    with ours, childs:
        config = ChildConfig(**child, job_id=job_id, channel=childs.fileno())
        done = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "nightshift.worker.child",
                json.dumps(dataclasses.asdict(config)),
            ],
            env=child_environment(Settings(database_url=world.ledger.url)),
            pass_fds=[childs.fileno()],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert "job_has_another_engine" in done.stdout + done.stderr
    assert world.ask("SELECT state FROM workers WHERE id = 'child-1'")[0].state == "ended"
