"""Real vLLM: an engine argument that runs code is used where the operator allows it, and waits with its
reason where not.
"""

import pytest

from nightshift.common.ledger.jobs import jobs
from nightshift.producer.verify.verify import verify
from tests.support.fleet import logs, wait_until
from tests.support.models import ARGUMENTS, MODEL, reviews_spec
from tests.support.rig import Rig

ROWS = 16


@pytest.mark.timeout(600)
def test_a_job_runs_with_an_argument_that_is_allowed_and_waits_with_one_that_is_not(
    rig: Rig,
) -> None:
    rig.environment |= {
        "NIGHTSHIFT_LEASE_SECONDS": "10",
        "NIGHTSHIFT_HEARTBEAT_SECONDS": "2",
        "NIGHTSHIFT_ALLOWED_ENGINE_ARGS": f"trust_remote_code:{MODEL.resolve()}",
    }
    for name, more in (
        ("refused", {"worker_cls": "rules.Worker"}),
        ("allowed", {"trust_remote_code": True}),
    ):
        engine = {"backend": "vllm", "model": str(MODEL), "args": {**ARGUMENTS, **more}}
        spec = reviews_spec(rig.folder, ROWS, engine=engine, batch={"rows": 8})
        rig.put({**spec, "name": name, "output": {"uri": str(rig.folder / name)}})
    rig.reaper()
    rig.worker()
    assert rig.wait_closed("allowed", 400) == "completed", logs(rig.folder)
    with rig.ledger.transaction() as connection:
        allowed = jobs.find(connection, "allowed")
    assert not verify(rig.ledger, allowed)
    assert rig.rows_done("allowed") == ROWS

    # Before it loads anything, and again whenever its pause is over; during a try a slot makes room for it.
    def status() -> str | None:
        screen = " ".join(rig.command("status", "refused").stdout.split())
        return screen if "NIGHTSHIFT_ALLOWED_ENGINE_ARGS" in screen else None

    screen = wait_until(status, 60, "the reason why the job waits")
    assert "waits: its engine could not be loaded" in screen
    assert "worker_cls" in screen
    assert rig.rows_done("refused") == 0
