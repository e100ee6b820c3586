"""A batch that a person takes from its owner: uncharged, and one attempt wins it."""

import json
import threading
from collections.abc import Callable

import pytest

from nightshift.common.errors import LeaseLost
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.batches.records import Lease
from tests.support.fleet import commit_one, wait_until
from tests.support.rig import Rig
from tests.support.world import World, part_of

RULES = """
import os
import time

def slow(rows):
    while os.path.exists("hang"):
        time.sleep(0.05)
    return [{"loud": row["text"].upper()} for row in rows]
"""


def test_the_owner_may_commit_until_somebody_else_claims_and_never_after(world: World) -> None:
    job_id = world.job(4, 4)
    first, second = world.admit(job_id) and world.claim(job_id, owner="a")
    for lease in (first, second):
        assert world.run(leasing.release_batch, lease.batch_id, "a person").owner == "a"
    world.commit(first)
    assert world.batch(first.batch_id).state == "done"
    world.admit(job_id)
    [mine] = world.claim(job_id, owner="b")
    with pytest.raises(LeaseLost):
        world.commit(second)
    world.commit(mine)
    assert world.rows(job_id) == (8, 0)
    assert world.run(leasing.release_batch, mine.batch_id, "a person").state == "done", (
        "nobody holds it"
    )
    assert world.rows(job_id) == (8, 0)
    ended = world.ask("SELECT outcome FROM attempts ORDER BY batch_id, attempt")
    assert [row.outcome for row in ended] == ["done", "released", "done"]
    assert world.ask("SELECT sum(failures + losses) AS n FROM batches")[0].n == 0


def test_a_release_beside_the_commit_of_the_owner_waits_and_finds_the_batch_done(
    world: World, second_ledger: Callable[[], Ledger]
) -> None:
    job_id = world.job(4)
    lease: Lease = world.lease(job_id)
    found: list[str] = []

    def release() -> None:
        with second_ledger().transaction() as connection:
            found.append(leasing.release_batch(connection, lease.batch_id, "a person").state)  # type: ignore[union-attr]

    waits = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted"
    with world.ledger.transaction() as connection:
        commit_one(connection, lease, part_of(lease))
        beside = threading.Thread(target=release)
        beside.start()
        wait_until(lambda: world.ask(waits)[0].n, what="a release that waits for the row")
        assert not found
    beside.join(60)
    assert found == ["done"]
    assert world.batch(lease.batch_id).state == "done"


def test_a_batch_is_taken_from_a_worker_that_hangs_in_it(rig: Rig) -> None:
    (rig.folder / "rules.py").write_text(RULES)
    (rig.folder / "hang").touch()
    ids = rig.submit(
        "stuck", 6, engine={"backend": "function", "callable": "rules:slow"}, batch={"rows": 6}
    )
    rig.reaper()
    rig.worker()
    held = "SELECT seq FROM batches WHERE state = 'leased'"
    [(batch,)] = wait_until(lambda: rig.ask(held), what="the lease")
    missing = rig.command("release", "stuck", "--batch", "999")
    assert (missing.returncode, missing.stderr) == (
        2,
        "nightshift: job 1 (stuck) has no batch 999\n",
    )
    assert "leased" in rig.command("release", "stuck", "--batch", str(batch)).stdout
    told = json.loads(rig.command("history", "stuck", "--json").stdout)["attempts"]
    [attempt] = [each for each in told if each["attempt"] == 1]
    assert attempt["why"].endswith(" took it back by `nightshift release`")
    (rig.folder / "hang").unlink()
    rig.finished("stuck", ids)
    assert rig.value("SELECT outcome FROM attempts WHERE attempt = 1") in ("released", "done")
    assert rig.charges() == (0, 0)
    again = rig.command("release", "stuck", "--batch", str(batch))
    assert again.stdout.endswith("nothing changed, it is done and nobody holds it\n")
