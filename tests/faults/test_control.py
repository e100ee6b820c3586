"""Jobs paused, resumed and cancelled at the worst moments, and a broken prompt that stops itself."""

import itertools
import threading
from collections.abc import Callable, Iterable

import psutil
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.failpoints import Moment
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import failure_limits, jobs, spending
from tests.faults.test_finish import let_others_finish
from tests.support.fleet import RULES, output_ids, wait_until
from tests.support.remote import Call, Remote, Reply, answered
from tests.support.rig import Rig

BROKEN = f"""{RULES}
def shout(rows):
    if not (HERE / "mended").exists():
        if len(rows) == 1:
            is_let(rows)
        raise KeyError("no such column")
    return [{{"loud": row["text"].upper()}} for row in rows]
"""

HANGING = """
import time

def shout(rows):
    if not rows[0]["id"].startswith("next"):
        time.sleep(3600)
    return [{"loud": row["text"].upper()} for row in rows]
"""

SHOUT = {"backend": "function", "callable": "rules:shout"}

WINDOW_ROWS = 2 * 64
"""Unfinished rows that a child of the function engine asks for."""

TOKENS_AN_ANSWER = 3
"""Output tokens of each answer of the remote server."""

MORE_ROWS = 8 * 5
"""Batches that are committing, and the one at the edge of the window."""


def change(rig: Rig, act: Callable[[Connection, int], None], name: str) -> None:
    """Pauses, resumes or cancels a job, as the command of that name does."""
    with rig.ledger.transaction() as connection:
        act(connection, jobs.find(connection, name).id)


def thaw(rig: Rig, pid: int) -> None:
    rig.thaw([psutil.Process(pid)])


def count(rig: Rig, states: Iterable[str], name: str) -> int:
    """Batches of a job that are in one of these states."""
    query = """SELECT count(*) FROM batches b JOIN jobs j ON j.id = b.job_id
               WHERE j.name = %s AND b.state = ANY (%s)"""
    return int(rig.value(query, name, list(states)))


def wait_state(rig: Rig, name: str, state: str) -> None:
    query = "SELECT state FROM jobs WHERE name = %s"
    wait_until(lambda: rig.value(query, name) == state, 120, f"{name} to be {state}")


def wait_let_go(rig: Rig, name: str) -> None:
    wait_until(lambda: not count(rig, ["leased"], name), 120, f"the end of the leases of {name}")


def wait_unqueued(rig: Rig, name: str) -> None:
    wait_until(lambda: not count(rig, ["queued"], name), 120, f"the queue without {name}")


@pytest.mark.slow
def test_a_job_is_paused_before_during_and_after_its_work_and_goes_on(rig: Rig) -> None:
    rig.reaper()
    # Before: admitted, but nothing is claimed yet.
    quiet = rig.submit("quiet", 30)
    wait_until(lambda: count(rig, ["queued"], "quiet"), what="the admission of a batch")
    change(rig, jobs.pause, "quiet")
    wait_unqueued(rig, "quiet")
    rig.worker()
    rig.finished("other", rig.submit("other", 10))
    assert rig.value("SELECT count(*) FROM attempts") == 2
    change(rig, jobs.resume, "quiet")
    rig.finished("quiet", quiet)

    # During a commit: the pause does not wait for it, and the batch counts.
    rig.arm(Moment.COMMITTING, "freeze")
    ids = rig.submit("caught", 200)
    child = rig.wait_fired(Moment.COMMITTING)
    change(rig, jobs.pause, "caught")
    before = rig.rows_done("caught")
    thaw(rig, child)
    wait_let_go(rig, "caught")
    stood = rig.rows_done("caught")
    assert before < stood < 200
    wait_unqueued(rig, "caught")
    change(rig, jobs.resume, "caught")
    rig.finished("caught", ids)

    # After: its last batch commits while it is paused, so there is nothing left to resume.
    rig.arm(Moment.WRITTEN, "freeze")
    ids = rig.submit("last", 5)
    child = rig.wait_fired(Moment.WRITTEN)
    change(rig, jobs.pause, "last")
    thaw(rig, child)
    rig.finished("last", ids)
    with pytest.raises(BadInput, match="completed"):
        change(rig, jobs.resume, "last")
    assert rig.charges()[0] == 0


def test_a_part_that_was_written_when_its_job_was_cancelled_never_counts(rig: Rig) -> None:
    rig.reaper()
    rig.worker()
    rig.let(20)
    rig.submit("cancelled", 300)
    rig.wait_rows("cancelled", 20)
    rig.arm(Moment.WRITTEN, "freeze")
    rig.let()
    child = rig.wait_fired(Moment.WRITTEN)
    change(rig, jobs.cancel, "cancelled")
    assert rig.wait_closed("cancelled") == "cancelled"
    done = rig.rows_done("cancelled")
    thaw(rig, child)
    # The child lives on: whatever it held is decided once it has taken other work.
    rig.finished("other", rig.submit("other", 10))
    manifest = rig.manifest("cancelled")
    assert (manifest["complete"], manifest["rows"]) == (False, done)
    ids = output_ids(rig.folder / "cancelled")
    assert len(ids) == done == rig.rows_done("cancelled")
    rig.oracle("cancelled", ids)
    with pytest.raises(BadInput, match="cancelled"):
        change(rig, jobs.resume, "cancelled")


@pytest.mark.slow
def test_a_job_cancelled_while_it_is_finished_is_cancelled_in_ledger_and_manifest(rig: Rig) -> None:
    rig.worker()
    rig.arm(Moment.CLOSING, "freeze")
    rig.reaper()
    ids = rig.submit("early", 10)
    first = rig.wait_fired(Moment.CLOSING)
    change(rig, jobs.cancel, "early")
    thaw(rig, first)
    rig.finished("early", ids, state="cancelled")

    # The manifest is under way already, and another reaper closes the job meanwhile.
    rig.arm(Moment.FINISHING, "freeze")
    ids = rig.submit("late", 10)
    rig.wait_fired(Moment.FINISHING)
    rig.arm(Moment.WRITING, "freeze")
    thaw(rig, first)
    rig.wait_fired(Moment.WRITING)
    change(rig, jobs.cancel, "late")
    rig.reaper()
    let_others_finish(rig)
    rig.finished("late", ids, state="cancelled")
    thaw(rig, first)
    log = rig.folder / "nightshift.producer.cli.1.log"
    wait_until(lambda: log.read_text().count("job_closed") == 2, what="the first reaper to end")
    rig.oracle("late", ids)


@pytest.mark.slow
def test_a_broken_prompt_is_stopped_within_one_window_and_again_after_a_resume(rig: Rig) -> None:
    (rig.folder / "rules.py").write_text(BROKEN)
    # Rows wait for their commits, so that no slow disk lets more of them run.
    enough = failure_limits.JUDGE_AFTER_ROWS + 5
    rig.let(enough)
    ids = rig.submit("broken", 1200, engine=SHOUT)
    rig.reaper()
    rig.worker()
    at_most = enough + WINDOW_ROWS + MORE_ROWS
    failed = 0
    for last in (False, True):
        wait_state(rig, "broken", "paused")
        rig.let()  # what the window holds now, and no row more
        wait_let_go(rig, "broken")
        before, failed = failed, rig.value("SELECT rows_failed FROM job_progress")
        assert failure_limits.JUDGE_AFTER_ROWS <= failed - before <= at_most
        assert "max_failed_fraction" in rig.value("SELECT reason FROM jobs")
        if last:
            (rig.folder / "mended").touch()
        rig.let(enough)
        change(rig, jobs.resume, "broken")
    assert rig.wait_closed("broken") == "completed"
    kinds = dict(rig.ask("SELECT row_id, kind FROM failed_rows"))
    assert len(kinds) == failed
    assert set(kinds.values()) == {"function_error"}
    rig.oracle("broken", ids, failed=kinds)


@pytest.mark.slow
def test_a_call_that_hangs_ends_when_its_job_is_cancelled_or_has_no_money_left(rig: Rig) -> None:
    """One child runs all of it, and a job after them: no batch is charged."""
    (rig.folder / "rules.py").write_text(HANGING)
    rig.environment |= {"NIGHTSHIFT_HEARTBEAT_SECONDS": "1", "NIGHTSHIFT_LEASE_SECONDS": "60"}
    rig.reaper()
    rig.worker()
    rig.submit("unwanted", 256, engine=SHOUT, batch={"rows": 256})
    wait_until(lambda: count(rig, ["leased"], "unwanted"), what="the call")
    change(rig, jobs.cancel, "unwanted")
    paid = {**SHOUT, "price_per_hour": 3600}
    rig.submit("dear", 256, engine=paid, batch={"rows": 256}, limits={"budget": 2})
    wait_state(rig, "dear", "paused")
    wait_let_go(rig, "dear")
    rig.finished("next", rig.submit("next", [("next.parquet", 10)], engine=SHOUT))
    assert rig.charges() == (0, 0), rig.standing()
    assert rig.value("SELECT count(*) FROM workers") == 1, rig.standing()


@pytest.mark.slow
def test_a_budget_is_passed_by_no_more_than_a_beat_costs(rig: Rig) -> None:
    """One batch has all rows, so that nothing is committed before the money is spent. The server has
    answers for the money, and then waits until the job is paused.
    """
    rows, answers_paid, at_once = 3000, 150, 8
    rig.environment |= {"NIGHTSHIFT_HEARTBEAT_SECONDS": "1", "NIGHTSHIFT_LEASE_SECONDS": "60"}
    answers, paused = itertools.count(1), threading.Event()

    def pay(call: Call) -> Reply:
        if next(answers) > answers_paid:
            paused.wait(300)
        return answered(call)

    with Remote().running() as remote:
        remote.behave = pay
        ids = rig.submit(
            "dear",
            rows,
            engine={
                "backend": "openai",
                "model": "m",
                "base_url": remote.url,
                "concurrency": at_once,
                "price_per_million_output_tokens": 1e6 / TOKENS_AN_ANSWER,
            },
            task={"kind": "generate", "prompt": "{{ text }}"},
            batch={"rows": rows},
            output={"uri": str(rig.folder / "dear")},
            limits={"budget": answers_paid},
        )
        rig.reaper()
        rig.worker()
        wait_state(rig, "dear", "paused")
        wait_let_go(rig, "dear")
        called = len(remote.calls)
        paused.set()
        assert answers_paid <= called <= answers_paid + 2 * at_once
        query = "SELECT rows_run, cost FROM job_costs WHERE name = 'dear'"
        ((rows_run, cost),) = rig.ask(query)
        assert rows_run == float(cost) <= called
        # Answers that came after the stop are paid and not kept.
        assert 0 <= rows_run - rig.rows_done("dear") <= at_once
        assert str(rig.value("SELECT reason FROM jobs")).endswith(
            "a larger one lets the job continue"
        )
        remote.behave = answered
        with rig.ledger.transaction() as connection:
            job_id = jobs.find(connection, "dear").id
            spending.set_budget(connection, job_id, 2 * rows)
            jobs.resume(connection, job_id)
        assert rig.wait_closed("dear") == "completed"
    assert output_ids(rig.folder / "dear") == ids
