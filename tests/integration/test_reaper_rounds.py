"""A round of the reaper beside jobs whose rows somebody else holds, and with much to admit."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import redis as client
from sqlalchemy import event

from nightshift.common.broker import queue_name
from nightshift.common.ledger.batches import dispatch, leasing
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.reaper import admission, reap, silence
from nightshift.producer.reaper.admission import MOST_ADMITTED
from nightshift.producer.reaper.reap import MOST_REAPED
from nightshift.producer.reaper.silence import Silence
from tests.integration.test_ledger import READ
from tests.support.reaper import OneReaper
from tests.support.world import World, child_of, make_ready


def test_a_round_waits_for_no_job_that_somebody_else_holds(
    world: World, frozen: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = world.job(1, 1, name="held")
    world.admit(held, 1)
    [expired] = world.claim(held, seconds=-1)
    others = [world.job(1, name=name, pool=name) for name in ("east", "west")]
    jobs.lock(frozen, held)
    # Nothing is reaped within a lease of the start of Postgres.
    reaper = OneReaper(world.ledger, lease_seconds=0.01, heartbeat_seconds=0.001)
    reaper.round()
    assert reaper.failed == []
    assert [world.states(job) for job in others] == [["queued"], ["queued"]]
    assert world.batch(expired.batch_id).state == "pending"


def test_workers_have_a_whole_lease_from_the_end_of_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not from the last duty that failed, since its question may have come just before the end."""
    clock = {"now": 0.0}
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    heard = Silence(Settings(lease_seconds=60))
    heard.reap_from = 0.0
    for moment, works, reaps_from in (
        (10.0, True, 0.0),
        (20.0, False, 80.0),
        (45.0, True, 105.0),
        (50.0, True, 105.0),
    ):
        clock["now"] = moment
        heard.heard(worked=works)
        assert heard.reap_from == reaps_from


def test_a_round_goes_on_while_a_queue_has_room(world: World) -> None:
    large = world.job(*[1] * (3 * MOST_ADMITTED), batch={"rows": 1})
    child = child_of(world.specs[large])
    make_ready(world, child)
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE workers SET window_rows = {MOST_ADMITTED}")
    small = world.job(*[1] * 3, name="small", pool="other")
    OneReaper(world.ledger).round()
    assert world.states(large).count("queued") == 2 * MOST_ADMITTED
    assert world.states(small) == ["queued"] * 3


def test_a_worker_that_was_killed_is_not_ready_after_a_lease(world: World) -> None:
    job = world.job(1)
    make_ready(world, child_of(world.specs[job]))
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE workers SET seen_at = now() - interval '29 s'")
    reaper = OneReaper(world.ledger, lease_seconds=30)
    reaper.round()
    assert [row.state for row in world.ask("SELECT state FROM worker_status")] == ["ready"]
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE workers SET seen_at = now() - interval '31 s'")
    reaper.round()
    assert world.ask("SELECT state FROM worker_status") == []
    with world.ledger.transaction() as connection:
        workers.beat(connection, child_of(world.specs[job]).id, "ready")
    assert [row.state for row in world.ask("SELECT state FROM worker_status")] == ["ready"]


def test_what_a_paused_and_an_ended_job_left_in_the_queue_is_pending_after_a_round(
    world: World,
) -> None:
    held = [world.job(1, 1, name=name) for name in ("paused", "cancelled")]
    runs = world.job(1, name="runs")
    for job in (*held, runs):
        world.admit(job)
    world.run(jobs.pause, held[0])
    world.run(jobs.cancel, held[1])
    OneReaper(world.ledger).round()
    assert [world.states(job) for job in held] == [["pending", "pending"]] * 2
    assert world.states(runs) == ["queued"]


def test_a_job_whose_row_is_held_keeps_no_round_from_holding_other_budgets(
    world: World, frozen: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other = (world.job(1, name=name) for name in ("held", "other"))
    monkeypatch.setattr(spending, "over_budget", lambda _: [(held, "spent"), (other, "spent")])
    jobs.lock(frozen, held)
    reaper = OneReaper(world.ledger)
    reaper.round()
    assert reaper.failed == []
    assert world.run(jobs.get, other).state is JobState.PAUSED
    assert world.run(jobs.get, held).state is JobState.RUNNING


def test_expired_leases_are_taken_back_in_pieces_until_none_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = MOST_REAPED + 200
    job = world.job(*[1] * leases, batch={"rows": 1})
    world.admit(job, leases)
    assert len(world.claim(job, most=leases, seconds=-1)) == leases
    reaper = OneReaper(world.ledger, lease_seconds=0.01, heartbeat_seconds=0.001)
    pieces: list[int] = []
    monkeypatch.setattr(reaper.rounds, "reaped", pieces.append)
    monkeypatch.setattr(Silence, "is_long", False)
    reap.reap(reaper)
    assert pieces == [MOST_REAPED, 200]
    assert world.states(job).count("pending") == leases


def test_a_queue_gets_a_hint_for_each_child_and_not_for_each_batch(
    world: World, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HINT_SECONDS", 60)  # however busy the machine is
    job = world.job(*[1] * 40, batch={"rows": 1})
    spec = world.specs[job]
    with client.Redis.from_url(redis_url) as redis:
        hints = partial(redis.llen, queue_name("default", spec.engine_key))
        redis.flushall()
        reaper = OneReaper(world.ledger, broker_url=redis_url)
        reaper.round()
        assert (world.states(job).count("queued"), hints()) == (16, 1)
        for number in (1, 2, 3):
            make_ready(world, child_of(spec, number))
        reaper.round()
        assert (world.states(job).count("queued"), hints()) == (40, 3)
        redis.flushall()
        reaper.round()
        assert hints() == 3, "the hints of an emptied broker come again"
        reaper.close()


def test_a_round_sends_hints_for_a_short_time_however_slow_they_are(
    world: World, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job(1, 1)
    monkeypatch.setattr(admission, "HINT_SECONDS", 0)
    with client.Redis.from_url(redis_url) as redis:
        redis.flushall()
        reaper = OneReaper(world.ledger, broker_url=redis_url)
        reaper.round()
        reaper.close()
        assert world.states(job) == ["queued", "queued"]
        assert redis.llen(queue_name("default", world.specs[job].engine_key)) == 0


def test_one_statement_admits_batches_of_all_jobs(world: World) -> None:
    opened = [world.job(1, 1, name=f"job-{number}") for number in range(5)]
    admitting: list[str] = []

    @event.listens_for(world.ledger.engine, "before_cursor_execute")
    def note(*execution: object) -> None:
        if "SET state = 'queued'" in str(execution[2]):
            admitting.append(str(execution[2]))

    OneReaper(world.ledger).round()
    assert [world.states(job) for job in opened] == [["queued", "queued"]] * 5
    assert len(admitting) == 1


@pytest.fixture
def many(world: World) -> World:
    """A hundred jobs with a hundred batches each, and statistics of them."""
    for number in range(100):
        world.job(*[1] * 100, name=f"job-{number}", batch={"rows": 1})
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql("ANALYZE batches, jobs")
    return world


def batches_read(world: World, duty: Callable[[Connection], object]) -> tuple[object, int]:
    """What a duty of the reaper returns, and how many rows of `batches` it reads."""
    with world.ledger.transaction() as connection:
        assert dispatch.try_duty(connection, dispatch.DISPATCH_LOCK)
        before = connection.exec_driver_sql(READ).scalar_one()
        done = duty(connection)
        return done, connection.exec_driver_sql(READ).scalar_one() - before


def test_an_admission_reads_what_it_admits_and_not_the_whole_table(many: World) -> None:
    most = dict.fromkeys(many.specs, 2)
    admitted, read = batches_read(many, partial(dispatch.admit_many, most=most, rank=1))
    assert admitted == most
    assert read < 4 * sum(most.values())


def test_batches_of_jobs_that_run_are_not_read_to_unqueue_those_of_a_paused_one(
    many: World,
) -> None:
    assert batches_read(many, partial(dispatch.unqueue, limit=9))[0] == 0
    many.run(dispatch.admit_many, dict.fromkeys(many.specs, 100), 1)
    unqueued, read = batches_read(many, partial(dispatch.unqueue, limit=2000))
    assert (unqueued, read) == (0, 0)
    paused = next(iter(many.specs))
    many.run(jobs.pause, paused)
    assert many.run(dispatch.unqueue, 60) == 60
    assert many.run(dispatch.unqueue, 60) == 40
    assert many.states(paused) == ["pending"] * 100


def test_expired_leases_are_found_without_those_that_were_taken_back_before(many: World) -> None:
    most = dict.fromkeys(many.specs, 100)
    many.run(dispatch.admit_many, most, 1)
    assert len(many.claim(next(iter(most)), most=10_000, seconds=-1)) == 10_000
    with many.ledger.transaction() as connection:
        connection.exec_driver_sql("ANALYZE batches, attempts")
    pieces = [batches_read(many, partial(leasing.reap, limit=200)) for _ in range(8)]
    assert [taken for taken, _ in pieces] == [200] * 8
    assert pieces[-1][1] < 4 * 200
