"""A job ends while its rows run: what is finished is kept, and of each other row it is known whether it was sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import sent_rows
from nightshift.common.states import RowErrorKind
from nightshift.producer.reaper import finish
from nightshift.producer.verify.verify import verify
from nightshift.worker.engines.protocol import Answer, Refusal
from tests.integration.test_batch_runner import ROWS, Scene


@pytest.fixture
def scene(ledger: Ledger, tmp_path: Path) -> Iterator[Scene]:
    """All rows in one batch."""
    found = Scene(ledger, tmp_path, batch_rows=ROWS)
    who = found.who
    child = Child(who.owner, "supervisor", who.pool, 0, "here", 1, who.engine_key)
    with ledger.transaction() as connection:
        workers.register(connection, child)
    yield found
    found.patient.given_up.set()


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_rows_that_are_finished_when_their_job_ends_are_committed_and_the_others_released(
    scene: Scene, end: str
) -> None:
    """They were answered and paid for, and once were thrown away."""
    thread = scene.run()
    scene.wait_taken(1)
    with scene.ledger.transaction() as connection:
        row = jobs.progress(connection, scene.job_id)
        assert row["rows_done_uncommitted"] == 0, "leased, and nothing is reported"
    work, _ = scene.engine.taken[0]
    work.wait(lambda _: None, range(ROWS))
    for row in range(4):
        assert work.begin(row)
    assert work.rows is not None
    for position in range(2):
        work.emit(position, Answer({"loud": "X"}))
    work.emit(2, Refusal(RowErrorKind.REFUSED, "no"))
    heartbeat = scene.heartbeat()
    heartbeat.beat()
    with scene.ledger.transaction() as connection:
        row = jobs.progress(connection, scene.job_id)
        assert (row["rows_done"], row["rows_done_uncommitted"]) == (0, 2)
        assert (row["rows_failed"], row["rows_failed_uncommitted"]) == (0, 1)
        if end == "cancelled":
            jobs.cancel(connection, scene.job_id)
        else:
            jobs.fail(connection, scene.job_id, "gone")
    heartbeat.beat()
    thread.join(60)
    assert not thread.is_alive()
    assert sorted(scene.states()) == ["done", "pending", "split"]
    assert scene.is_over()
    with scene.ledger.transaction() as connection:
        row = jobs.progress(connection, scene.job_id)
        sent = [set(piece) for piece in sent_rows.sent(connection, scene.job_id)]
    assert (row["rows_done"], row["rows_failed"], row["rows_done_uncommitted"]) == (2, 1, 0)
    assert sent == [{0, 1, 2, 3}]
    finish.finish(scene.ledger, scene.job_id)
    with scene.ledger.transaction() as connection:
        job = jobs.get(connection, scene.job_id)
    assert job is not None
    assert job.closed_at is not None
    assert verify(scene.ledger, job) == []
    assert scene.parts() == 1


def test_a_batch_of_which_nothing_was_sent_says_so_when_its_job_is_cancelled(
    scene: Scene,
) -> None:
    thread = scene.run()
    scene.wait_taken(1)
    work, _ = scene.engine.taken[0]
    work.wait(lambda _: None, range(ROWS))
    with scene.ledger.transaction() as connection:
        jobs.cancel(connection, scene.job_id)
    scene.heartbeat().beat()
    thread.join(60)
    scene.wait_gone(0)
    assert scene.states() == ["pending"]
    assert not work.begin(0), "the engine sends nothing of it from now on"
    with scene.ledger.transaction() as connection:
        assert [len(piece) for piece in sent_rows.sent(connection, scene.job_id)] == [0]
