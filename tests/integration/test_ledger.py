"""What the ledger promises, one behaviour a test, against a real Postgres."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import psycopg
import pytest
import sqlalchemy

from nightshift.common.allocation.load_errors import UNEXPLAINED
from nightshift.common.broker import ping
from nightshift.common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from nightshift.common.errors import (
    BadInput,
    LeaseLost,
    LedgerUnavailable,
    Retryable,
    SchemaMismatch,
)
from nightshift.common.ledger import Ledger, holds, schema
from nightshift.common.ledger.batches import (
    claims,
    commits,
    dispatch,
    failures,
    leasing,
    retries,
    splits,
)
from nightshift.common.ledger.batches.claims import fair_share
from nightshift.common.ledger.batches.records import Claimant, Lease
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.engines.loads import LoadPolicy
from nightshift.common.ledger.fleet import slots, workers
from nightshift.common.ledger.fleet.slots import Machine, SlotReport
from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.ledger.jobs import job_end, job_submit, jobs
from nightshift.common.ledger.queries import audit, live_parts
from nightshift.common.states import JobState, RowErrorKind
from nightshift.producer.advice import advice
from nightshift.producer.views import progress as progress_views
from tests.support.fleet import commit_one
from tests.support.world import (
    WHO,
    World,
    child_of,
    close,
    finishable,
    live,
    make_ready,
    part_of,
    spec_of,
)

TRUNCATED, REFUSED = RowErrorKind.TRUNCATED, RowErrorKind.REFUSED


def pause_without_patience(connection: Connection, job_id: int) -> None:
    connection.exec_driver_sql("SET LOCAL lock_timeout = '20ms'")
    jobs.pause(connection, job_id)


# Submit.


def test_a_second_submit_of_the_same_work_waits_for_the_first_and_is_refused(
    ledger: Ledger, second_ledger: Callable[[], Ledger]
) -> None:
    new = job_submit.NewJob(spec_of(), "identity", "same", "out", b"", None)
    file = SourceFile("rows.parquet", "parquet", 1, "1", 1, 0)
    late = second_ledger()

    def submit_late() -> None:
        with late.transaction() as connection:
            job_submit.insert(connection, new, [file])

    with ThreadPoolExecutor(1) as pool:
        with ledger.transaction() as connection:
            job_id = job_submit.insert(connection, new, [file])
            second = pool.submit(submit_late)
            wait_until_somebody_waits(connection)
            assert not second.done()
        with pytest.raises(BadInput, match="at the same time"):
            second.result(timeout=100)
    with ledger.transaction() as connection:
        found = jobs.by_output(connection, "out")
    assert found is not None
    assert found.id == job_id


def test_a_second_submit_goes_ahead_when_the_first_rolls_back(
    ledger: Ledger, second_ledger: Callable[[], Ledger]
) -> None:
    new = job_submit.NewJob(spec_of(), "identity", "same", "out", b"", None)
    file = SourceFile("rows.parquet", "parquet", 1, "1", 1, 0)
    late = second_ledger()

    def submit_late() -> int:
        with late.transaction() as connection:
            return job_submit.insert(connection, new, [file])

    with ThreadPoolExecutor(1) as pool:
        with ledger.transaction() as connection:
            job_submit.insert(connection, new, [file])
            second = pool.submit(submit_late)
            wait_until_somebody_waits(connection)
            connection.rollback()
        assert second.result(timeout=100) > 0


def wait_until_somebody_waits(connection: Connection) -> None:
    """Returns once another session waits for a lock of this one."""
    for _ in range(1000):
        waiting = connection.exec_driver_sql(
            "SELECT count(*), pg_sleep(0.01) FROM pg_locks"
            " WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        )
        if waiting.one()[0]:
            return
    raise AssertionError("nobody waits")


def test_a_job_comes_back_as_it_was_submitted(world: World) -> None:
    job_id = world.job(3, name="kept", batch={"rows": 3})
    job = world.run(jobs.get, job_id)
    assert (job.spec, job.state) == (world.specs[job_id], JobState.RUNNING)
    assert world.run(jobs.find, "kept").id == world.run(jobs.find, str(job_id)).id == job_id
    assert world.run(jobs.files, job_id)[0].rows == 3
    with pytest.raises(BadInput, match="there is no job 'lost'"):
        world.run(jobs.find, "lost")


def test_a_batch_keeps_where_its_bytes_are(world: World) -> None:
    file = SourceFile("rows.jsonl", "jsonl", 100, "1", 4, 10)
    place = Descriptor(file, RowRanges.of((10, 14)), Locator(10, 5, 95))
    with world.ledger.transaction() as connection:
        new = job_submit.NewJob(spec_of(), "lines", "same", "out", b"", None)
        job_id = job_submit.insert(connection, new, [file])
        job_submit.insert_batches(connection, job_id, [file], [place])
    world.specs[job_id] = new.spec
    assert world.lease(job_id).descriptor == place


# Claim.


def test_urgent_jobs_are_claimed_first_and_then_by_rank(world: World) -> None:
    slow = world.job(1, 1, name="slow")
    urgent = world.job(1, name="urgent", priority=5)
    other = world.job(1, name="other")
    for job_id in (other, slow, urgent):
        world.admit(job_id)
    claimed = [lease.job_id for lease in world.claim(slow)]
    assert claimed == [urgent, other, slow, slow]


def test_a_claim_stops_when_the_room_is_filled_and_its_first_batch_always_fits(
    world: World,
) -> None:
    job_id = world.job(50, 50, 50, 50)
    world.admit(job_id)
    assert [len(lease.todo) for lease in world.claim(job_id, room=1)] == [50]
    assert [len(lease.todo) for lease in world.claim(job_id, room=51)] == [50, 50]
    assert world.claim(job_id, room=50, most=0) == []


def test_a_claim_counts_only_the_rows_that_run_again(world: World) -> None:
    job_id = world.job(10, 10)
    world.admit(job_id)
    for lease in world.claim(job_id):
        world.commit(lease, errors=[lease.seq * 10])
    world.retry(job_id)
    world.admit(job_id)
    assert [len(lease.todo) for lease in world.claim(job_id, room=2)] == [1, 1]


READ = """
    SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'batches'
"""


def test_a_claim_reads_few_batches_however_many_are_queued(world: World) -> None:
    for name in ("shout", "louder"):
        job_id = world.job(*[1] * 1000, name=name)
        world.admit(job_id)
    who = Claimant(WHO, "default", world.specs[job_id].engine_key, "function", "1")
    with world.ledger.transaction() as connection:
        before = connection.exec_driver_sql(READ).scalar_one()
        found = claims.claim(
            connection,
            who,
            room_rows=4,
            max_batches=5,
            idle=False,
            woken="poll",
            lease_seconds=30,
        )
        read = connection.exec_driver_sql(READ).scalar_one() - before
    assert len(found) == 4
    assert read < 50


def test_only_workers_of_the_pool_and_engine_claim_a_job(world: World) -> None:
    shout = world.job(1, name="shout")
    whisper = world.job(1, name="whisper", callable="rules:whisper")
    for job_id in (shout, whisper):
        world.admit(job_id)
    assert [lease.job_id for lease in world.claim(whisper)] == [whisper]


def test_only_admitted_batches_are_claimed(world: World) -> None:
    job_id = world.job(1, 1, 1)
    assert world.claim(job_id) == []
    assert world.admit(job_id, 2) == 2
    assert len(world.claim(job_id)) == 2


def share(world: World, job_id: int) -> int | None:
    who = Claimant(WHO, "default", world.specs[job_id].engine_key, "function", "1")
    found: int | None = world.run(fair_share, who, 30)
    return found


def ready(world: World, job_id: int, name: str) -> None:
    child = Child(name, "s", "default", 0, "here", 1, world.specs[job_id].engine_key)
    world.run(workers.register, child)
    with world.ledger.transaction() as connection:
        workers.ready(connection, child, workers.LoadedEngine("function", "1", 128))


def test_what_is_left_is_shared_by_the_ready_children_of_its_queue(world: World) -> None:
    job_id = world.job(4, 4, 4)
    other = world.job(50, name="other", callable="rules:other")
    world.admit(other)
    assert share(world, job_id) == 0  # nothing is admitted: nothing to share
    world.admit(job_id, 2)
    assert share(world, job_id) is None  # and more to come
    world.admit(job_id)
    assert share(world, job_id) == 12
    ready(world, job_id, "one")
    ready(world, other, "another")
    assert share(world, job_id) == 12
    ready(world, job_id, "two")
    assert share(world, job_id) == 6
    first, _ = world.claim(job_id, most=2)
    assert share(world, job_id) == 6  # what is leased is still open
    world.commit(first)
    assert share(world, job_id) == 4
    with world.ledger.transaction() as connection:
        workers.end(connection, "one", died=None)
    assert share(world, job_id) == 8
    world.ask("UPDATE workers SET seen_at = now() - interval '1 hour' RETURNING 1")
    assert share(world, job_id) == 8  # never less than one child
    world.claim(job_id)
    assert share(world, job_id) == 0


def test_two_children_never_claim_the_same_batch_and_never_wait(
    world: World, frozen: Connection
) -> None:
    job_id = world.job(1, 1, 1, 1)
    world.admit(job_id)
    world.ask("UPDATE jobs SET started_at = now() RETURNING id")
    who = Claimant("frozen", "default", world.specs[job_id].engine_key, "function", "1")
    held = claims.claim(
        frozen, who, room_rows=9, max_batches=2, idle=True, woken="poll", lease_seconds=30
    )
    claimed = world.claim(job_id)
    assert len(held) == len(claimed) == 2
    assert not {lease.batch_id for lease in held} & {lease.batch_id for lease in claimed}


def test_a_claim_starts_the_clock_of_its_job_and_notes_how_it_was_woken(world: World) -> None:
    job_id = world.job(1)
    lease = world.lease(job_id)
    assert world.run(jobs.progress, job_id)["started_at"] is not None
    [attempt] = world.ask("SELECT * FROM attempts")
    assert (attempt.batch_id, attempt.attempt) == (lease.batch_id, lease.attempt)
    assert (attempt.worker_id, attempt.woken, attempt.outcome) == (WHO, "message", None)


# Renew, commit, release.


def test_a_renewed_lease_outlives_its_first_expiry(world: World) -> None:
    lease = world.lease(world.job(1), seconds=-1)
    world.run(leasing.renew, WHO, [(lease.batch_id, lease.attempt)], 30)
    assert world.reap() == 0


def test_a_renewal_brings_back_only_what_is_still_held(world: World) -> None:
    job_id = world.job(1, 1)
    world.admit(job_id)
    kept, lost = world.claim(job_id)
    world.run(leasing.release, [lost])
    renewal = world.run(
        leasing.renew,
        WHO,
        [(kept.batch_id, kept.attempt), (lost.batch_id, lost.attempt), (99, 1)],
        30,
    )
    assert renewal.held == {(kept.batch_id, kept.attempt)}
    assert renewal.unwanted == frozenset()
    assert world.run(leasing.renew, "another", list(renewal.held), 30).held == frozenset()


def test_a_renewal_says_which_leases_a_cancelled_job_no_longer_wants(world: World) -> None:
    """For as long as a lease it wants what is finished, and then nothing."""
    job_id = world.job(1)
    lease = world.lease(job_id)
    world.run(jobs.cancel, job_id)
    renewal = world.run(leasing.renew, WHO, [(lease.batch_id, lease.attempt)], 30)
    assert renewal.held == renewal.ended == {(lease.batch_id, lease.attempt)}
    assert renewal.unwanted == frozenset()
    world.ask("UPDATE jobs SET finished_at = now() - interval '31 s' RETURNING id")
    renewal = world.run(leasing.renew, WHO, [(lease.batch_id, lease.attempt)], 30)
    assert renewal.held == renewal.unwanted == {(lease.batch_id, lease.attempt)}
    assert renewal.ended == frozenset()


def test_a_commit_names_the_part_counts_its_rows_and_lists_its_failed_ones(world: World) -> None:
    job_id = world.job(4)
    world.commit(world.lease(job_id), errors=[1, 3])
    assert world.rows(job_id) == (2, 2)
    assert world.failed_rows(job_id) == [1, 3]
    [part] = world.run(live_parts.parts_between, job_id, 0, 1_000_000)
    assert (part["part_name"], part["rows_failed"]) == ("part-1-a1", 2)
    [attempt] = world.ask("SELECT * FROM attempts")
    assert (attempt.outcome, attempt.row_count, attempt.rows_failed) == ("done", 4, 2)


def test_a_late_commit_counts_while_nobody_else_has_claimed(world: World) -> None:
    job_id = world.job(2)
    lease = world.lease(job_id, seconds=-1)
    assert world.reap() == 1
    world.admit(job_id)
    assert world.states(job_id) == ["queued"]
    world.commit(lease)
    assert world.states(job_id) == ["done"]
    assert world.run(commits.is_committed, lease)


def test_a_commit_after_somebody_else_claimed_is_refused_and_changes_nothing(
    world: World,
) -> None:
    job_id = world.job(2)
    stale = world.lease(job_id, seconds=-1)
    world.reap()
    fresh = world.lease(job_id, owner="worker-2")
    before = world.batch(fresh.batch_id)
    with pytest.raises(LeaseLost):
        world.commit(stale, errors=[0])
    assert world.batch(fresh.batch_id) == before
    assert world.failed_rows(job_id) == []
    assert not world.run(commits.is_committed, stale)
    world.commit(fresh)


def test_a_second_commit_of_the_same_lease_is_refused(world: World) -> None:
    lease = world.lease(world.job(2))
    world.commit(lease)
    with pytest.raises(LeaseLost):
        world.commit(lease, name="again")
    assert world.run(commits.is_committed, lease)


def test_in_a_group_each_batch_is_fenced_by_itself(world: World) -> None:
    job_id, over = world.job(2, 3, 4), world.job(1, name="over")
    world.admit(job_id)
    mine, stale, other = world.claim(job_id, seconds=-1)
    unwanted = world.lease(over)
    world.reap()
    world.run(leasing.release, [unwanted])
    world.admit(job_id)
    [_, fresh, _] = world.claim(job_id, owner="worker-2")
    world.run(leasing.release, [mine, other])
    world.run(jobs.cancel, over)
    group = [
        (lease, part_of(lease, [lease.descriptor.rows.ranges[0][0]], f"{lease.owner}-{place}"))
        for place, lease in enumerate([stale, fresh, unwanted])
    ]
    with world.ledger.transaction() as connection:
        held = commits.commit(connection, group)
    assert held == {(fresh.batch_id, 2)}
    assert world.batch(fresh.batch_id).part_name == "worker-2-1"
    assert world.failed_rows(job_id) == [2]
    assert world.rows(job_id) == (2, 1)
    assert world.rows(over) == (0, 0)
    outcomes = world.ask("SELECT attempt, outcome FROM attempts WHERE batch_id = 2 ORDER BY 1")
    assert [tuple(row) for row in outcomes] == [(1, "lost"), (2, "done")]


def test_a_group_takes_batches_of_several_jobs_with_their_errors(world: World) -> None:
    ones, others = world.job(2, 2), world.job(3, name="others")
    leases = []
    for job_id in (others, ones):
        world.admit(job_id)
        leases += world.claim(job_id)
    group = [(lease, part_of(lease, [lease.descriptor.rows.ranges[0][0]])) for lease in leases]
    with world.ledger.transaction() as connection:
        held = commits.commit(connection, group)
    assert held == {(lease.batch_id, 1) for lease in leases}
    assert world.failed_rows(ones) == [0, 2]
    assert world.failed_rows(others) == [0]
    assert (world.rows(ones), world.rows(others)) == ((2, 2), (2, 1))


def test_a_commit_repeated_after_a_retry_does_not_undo_the_retry(world: World) -> None:
    job_id = world.job(2)
    lease = world.lease(job_id)
    world.commit(lease, errors=[0])
    world.retry(job_id)
    with pytest.raises(LeaseLost):
        world.commit(lease)


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_job_that_is_over_takes_the_commit_of_what_was_leased(world: World, end: str) -> None:
    job_id = world.job(2, 3)
    world.admit(job_id)
    whole, some = world.claim(job_id)
    world.run(jobs.cancel, job_id) if end == "cancel" else world.run(jobs.fail, job_id, "gone")
    assert world.run(finishable) == [], "the leases are open"
    world.commit(whole)
    world.run(splits.split, some, RowRanges.of((2, 3)), part_of(some), RowRanges.of((4, 5)))
    assert world.rows(job_id) == (3, 0)
    assert sorted(world.states(job_id)) == ["done", "done", "pending", "split"]
    attempts = world.ask("SELECT outcome, unsent FROM attempts ORDER BY batch_id")
    assert [tuple(row) for row in attempts] == [
        ("done", None),
        ("split", RowRanges.of((4, 5))),
    ]


@pytest.mark.parametrize("how", ["released", "reaped", "finished", "closed"])
def test_a_job_that_is_over_takes_no_late_commit(world: World, how: str) -> None:
    """The lease is gone, or a reaper has begun to finish the job."""
    job_id = world.job(2)
    lease = world.lease(job_id, seconds=-1)
    world.run(jobs.cancel, job_id)
    if how == "released":
        world.run(leasing.release, [lease])
    elif how == "reaped":
        world.reap()
    elif how == "finished":
        world.run(job_end.take, job_id, "reaper")
    else:
        world.ask("UPDATE jobs SET closed_at = now() RETURNING id")
    with pytest.raises(LeaseLost):
        world.commit(lease)
    with pytest.raises(LeaseLost):
        world.run(splits.split, lease, RowRanges.of((0, 1)), part_of(lease))
    assert world.rows(job_id) == (0, 0)


def test_a_hold_from_before_the_end_of_a_job_keeps_no_commit_out(world: World) -> None:
    """A reaper tried to finish the job once, and then rows were added."""
    job_id = world.job(2)
    hold = world.run(job_end.take, job_id, "reaper")
    world.run(holds.postpone, hold, 0)
    lease = world.lease(job_id)
    world.run(jobs.cancel, job_id)
    world.commit(lease)
    assert world.rows(job_id) == (2, 0)


def test_a_paused_job_still_takes_the_commit_of_what_was_leased(world: World) -> None:
    job_id = world.job(2)
    lease = world.lease(job_id)
    world.run(jobs.pause, job_id)
    world.commit(lease)
    assert world.rows(job_id) == (2, 0)


def test_a_released_batch_is_free_at_once_and_nothing_is_charged(world: World) -> None:
    job_id = world.job(2)
    lease = world.lease(job_id)
    world.run(leasing.release, [lease])
    batch = world.batch(lease.batch_id)
    assert (batch.state, batch.failures, batch.losses) == ("pending", 0, 0)
    assert world.lease(job_id).attempt == lease.attempt + 1
    world.run(leasing.release, [lease])
    assert world.states(job_id) == ["leased"]


# Losses, halves, failures.


def lose(world: World, job_id: int, **how: Any) -> Lease:
    """Claims one batch and loses it to an expired lease."""
    lease = world.lease(job_id, seconds=-1, **how)
    assert world.reap() == 1
    return lease


def test_after_two_losses_a_batch_runs_alone_and_only_in_an_idle_child(world: World) -> None:
    job_id = world.job(4)
    assert lose(world, job_id).alone is False
    assert lose(world, job_id).alone is False
    world.admit(job_id)
    assert world.claim(job_id, idle=False) == []
    [lease] = world.claim(job_id, idle=True)
    assert (lease.alone, lease.isolated) == (True, False)


def test_a_batch_that_must_run_alone_is_never_claimed_beside_others(world: World) -> None:
    job_id = world.job(4, 4, 4)
    world.ask("UPDATE batches SET losses = 2 WHERE seq = 1 RETURNING id")
    world.admit(job_id)
    assert [lease.seq for lease in world.claim(job_id)] == [0]
    assert [lease.seq for lease in world.claim(job_id)] == [1]
    assert [lease.seq for lease in world.claim(job_id)] == [2]


def test_a_batch_lost_alone_is_halved_and_keeps_every_row(world: World) -> None:
    job_id = world.job(5)
    for _ in range(3):
        lose(world, job_id)
    assert world.states(job_id) == ["split", "pending", "pending"]
    halves = world.run(live, job_id)
    assert [row["row_count"] for row in halves] == [2, 3]
    assert world.run(jobs.progress, job_id)["rows_total"] == 5


def test_the_neighbour_of_a_killer_row_runs_alone_before_anybody_calls_it_a_killer(
    world: World,
) -> None:
    job_id = world.job(2)
    for _ in range(3):
        lose(world, job_id)
    first = world.lease(job_id)
    assert (len(first.todo), first.alone, first.isolated) == (1, True, False)
    world.commit(first)
    lose(world, job_id)
    killer = world.lease(job_id)
    assert (list(killer.todo), killer.isolated) == ([1], True)


def test_a_batch_of_many_rows_never_dies_of_losses(world: World) -> None:
    job_id = world.job(8)
    for _ in range(20):
        lose(world, job_id)
    assert "dead" not in world.states(job_id)
    assert sum(len(batch["rows"]) for batch in world.run(live, job_id)) == 8


def test_who_lost_a_batch_that_was_halved_does_not_read_it_back_as_its_commit(
    world: World,
) -> None:
    job_id = world.job(2)
    for _ in range(3):
        lease = lose(world, job_id)
    assert world.states(job_id)[0] == "split"
    assert not world.run(commits.is_committed, lease)
    with pytest.raises(LeaseLost):
        world.commit(lease)


def test_a_batch_that_somebody_holds_is_not_halved(world: World) -> None:
    lease = world.lease(world.job(4))
    assert world.run(splits.halve, lease.batch_id) is False


def test_the_death_of_an_engine_makes_every_batch_it_held_a_suspect(world: World) -> None:
    job_id = world.job(1, 1)
    world.admit(job_id)
    world.claim(job_id)
    assert world.run(leasing.lose_owner, WHO, "killed by signal 9") == 2
    found = world.ask("SELECT state, losses, failures, last_error FROM batches")
    assert {tuple(row) for row in found} == {("pending", 1, 0, "killed by signal 9")}


def test_a_failed_batch_waits_and_is_dead_after_its_last_attempt(world: World) -> None:
    job_id = world.job(2)
    lease = world.lease(job_id)
    with world.ledger.transaction() as connection:
        failures.fail(
            connection, lease, "disk full", permanent=False, max_attempts=2, backoff_seconds=60
        )
    assert world.admit(job_id) == 0
    world.ask("UPDATE batches SET not_before = now() RETURNING id")
    world.fail(world.lease(job_id), most=2)
    batch = world.batch(lease.batch_id)
    assert (batch.state, batch.failures, batch.losses) == ("dead", 2, 0)
    assert world.rows(job_id) == (0, 2)


def test_a_permanent_failure_is_dead_at_once(world: World) -> None:
    job_id = world.job(2)
    world.fail(world.lease(job_id), permanent=True)
    assert world.states(job_id) == ["dead"]


def test_who_lost_the_lease_cannot_fail_the_batch(world: World) -> None:
    job_id = world.job(2)
    lease = lose(world, job_id)
    with pytest.raises(LeaseLost):
        world.fail(lease)
    world.lease(job_id, owner="worker-2")
    with pytest.raises(LeaseLost):
        world.fail(lease)
    batch = world.batch(lease.batch_id)
    assert (batch.state, batch.failures) == ("leased", 0)


def test_a_frozen_transaction_does_not_stop_the_reaping_of_other_leases(
    world: World, frozen: Connection
) -> None:
    job_id = world.job(2, 2, 2)
    world.admit(job_id)
    stuck, *rest = world.claim(job_id, seconds=-1)
    commit_one(frozen, stuck, part_of(stuck))
    assert world.reap() == len(rest)


def test_a_frozen_transaction_on_the_job_does_not_stop_the_reaping_of_its_leases(
    world: World, frozen: Connection
) -> None:
    job_id = world.job(2)
    world.lease(job_id, seconds=-1)
    jobs.lock(frozen, job_id)
    assert world.reap() == 1


def test_waiting_for_a_frozen_transaction_ends_in_an_error_that_may_be_tried_again(
    world: World, frozen: Connection
) -> None:
    job_id = world.job(2)
    jobs.lock(frozen, job_id)
    with pytest.raises(Retryable, match="lock timeout"):
        world.run(pause_without_patience, job_id)


# Split.


def test_a_draining_owner_keeps_its_finished_rows_and_the_rest_waits(world: World) -> None:
    job_id = world.job(6)
    lease = world.lease(job_id)
    finished = RowRanges.from_indices([0, 2, 3])
    world.run(splits.split, lease, finished, part_of(lease, errors=[2], name="drained"))
    assert world.states(job_id) == ["split", "done", "pending"]
    assert world.run(commits.is_committed, lease)
    assert world.rows(job_id) == (2, 1)
    assert world.failed_rows(job_id) == [2]
    rest = world.lease(job_id)
    assert list(rest.todo) == [1, 4, 5]
    assert (rest.seq, rest.attempt) == (0, lease.attempt + 1)
    world.commit(rest)
    assert world.rows(job_id) == (5, 1)
    assert (
        next(
            part["part_name"] for part in world.run(live_parts.parts_between, job_id, 0, 1_000_000)
        )
        == "drained"
    )


def test_who_lost_the_lease_cannot_split_the_batch(world: World) -> None:
    job_id = world.job(4)
    lease = lose(world, job_id)
    with pytest.raises(LeaseLost):
        world.run(splits.split, lease, RowRanges.of((0, 2)), part_of(lease))
    assert world.states(job_id) == ["pending"]


# Pause, resume, cancel.


def test_a_paused_job_has_nothing_to_claim(world: World) -> None:
    job_id = world.job(1, 1)
    world.admit(job_id)
    world.run(jobs.pause, job_id, "lunch")
    assert world.claim(job_id) == []
    assert world.run(dispatch.unqueue, 1) == 1
    assert world.run(dispatch.unqueue, 9) == 1
    assert world.states(job_id) == ["pending", "pending"]
    assert world.admit(job_id) == 0
    assert world.run(jobs.progress, job_id)["reason"] == "lunch"
    world.run(jobs.resume, job_id)
    assert world.admit(job_id) == 2


def test_a_cancelled_job_is_final(world: World) -> None:
    job_id = world.job(1)
    world.admit(job_id)
    world.run(jobs.cancel, job_id)
    assert world.claim(job_id) == []
    assert world.run(dispatch.unqueue, 9) == 1
    assert world.states(job_id) == ["pending"]
    for act in (jobs.resume, jobs.pause, jobs.reopen):
        with pytest.raises(BadInput, match=f"job {job_id} is cancelled"):
            world.run(act, job_id)


def test_a_job_that_fails_too_many_rows_pauses_once_200_are_over(world: World) -> None:
    job_id = world.job(199, 1)
    world.commit(world.lease(job_id), errors=range(150))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id))
    assert world.run(jobs.judge_failures, job_id) is True
    progress = world.run(jobs.progress, job_id)
    assert progress["status"] == "paused"
    assert progress["reason"].startswith("150 of the last 200 rows failed")


def test_a_resumed_job_is_judged_by_the_rows_that_follow(world: World) -> None:
    job_id = world.job(200, 200, 200)
    world.commit(world.lease(job_id), errors=range(200))
    assert world.run(jobs.judge_failures, job_id) is True
    world.run(jobs.resume, job_id)
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=range(200, 290))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=range(400, 600))
    assert world.run(jobs.judge_failures, job_id) is True


def refusals(rows: range) -> dict[int, RowErrorKind]:
    """Refusals of rows in the same words."""
    return dict.fromkeys(rows, RowErrorKind.REFUSED)


GENERATE = {
    "task": {"kind": "generate", "prompt": "{{ text }}"},
    "engine": {"backend": "vllm", "model": "m"},
}
REQUESTS = {
    "task": {"kind": "requests"},
    "input": {"uri": "rows.jsonl"},
    "engine": {"backend": "vllm", "model": "m"},
}


def test_a_job_whose_first_20_rows_are_all_refused_in_the_same_words_pauses_with_them(
    world: World,
) -> None:
    job_id = world.job(19, 1, 500, **GENERATE)
    world.commit(world.lease(job_id), errors=refusals(range(19)))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=refusals(range(19, 20)))
    assert world.run(jobs.judge_failures, job_id) is True
    progress = world.run(jobs.progress, job_id)
    assert progress["status"] == "paused"
    assert progress["reason"].startswith(
        "the engine refused all 20 rows that ran, in the same words: "
    )
    assert world.run(jobs.failed_too_often, job_id), "the same `run` tries its rows again"


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param(range(30), id="of another kind"),
        pytest.param({**refusals(range(29)), 29: RowErrorKind.TIMEOUT}, id="one of another kind"),
        pytest.param(refusals(range(29)), id="one answer"),
    ],
)
def test_rows_that_are_not_all_refused_alike_pause_no_job(world: World, errors: Any) -> None:
    job_id = world.job(30, 10, **GENERATE)
    world.commit(world.lease(job_id), errors=errors)
    assert world.run(jobs.judge_failures, job_id) is False


def test_refusals_in_several_words_pause_no_job(world: World) -> None:
    job_id = world.job(30, 10, **GENERATE)
    world.commit(world.lease(job_id), errors=refusals(range(30)))
    world.do("UPDATE row_errors SET message = 'in other words' WHERE row_index = 17")
    assert world.run(jobs.judge_failures, job_id) is False


def test_a_resume_counts_refusals_in_the_same_words_anew(world: World) -> None:
    job_id = world.job(20, 19, 1, 19, 1, 9, **GENERATE)
    world.commit(world.lease(job_id), errors=refusals(range(20)))
    assert world.run(jobs.judge_failures, job_id) is True
    world.do("UPDATE row_errors SET message = 'in the words of before'")
    world.run(jobs.resume, job_id)
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=refusals(range(20, 39)))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=refusals(range(39, 40)))
    assert world.run(jobs.judge_failures, job_id) is True
    world.run(jobs.resume, job_id)
    world.commit(world.lease(job_id), errors=refusals(range(40, 59)))
    world.commit(world.lease(job_id))
    assert world.run(jobs.judge_failures, job_id) is False, "a row has an answer"


def test_a_small_job_that_is_refused_whole_waits_for_a_person_and_is_not_completed(
    world: World,
) -> None:
    job_id = world.job(2, 1, **GENERATE)
    world.commit(world.lease(job_id), errors=refusals(range(2)))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=refusals(range(2, 3)))
    assert world.run(finishable) == [job_id]
    assert world.run(job_end.hold_refused, job_id), "no worker has judged the last commit yet"
    assert world.run(jobs.progress, job_id)["status"] == "paused"
    assert world.run(finishable) == []
    assert world.run(job_end.hold_refused, job_id)
    world.run(jobs.resume, job_id)
    assert world.run(finishable) == [job_id]
    assert not world.run(job_end.hold_refused, job_id)
    assert world.finish(job_id) is JobState.COMPLETED


def test_a_job_with_answers_is_completed_again_where_its_last_row_is_refused_again(
    world: World,
) -> None:
    """Also after a retry, since when every row that ran was refused."""
    job_id = world.job(3, 1, **GENERATE)
    world.commit(world.lease(job_id))
    world.commit(world.lease(job_id), errors=refusals(range(3, 4)))
    assert world.finish(job_id) is JobState.COMPLETED
    world.retry(job_id)
    world.commit(world.lease(job_id), errors=refusals(range(3, 4)))
    assert world.run(jobs.judge_failures, job_id) is False
    assert not world.run(job_end.hold_refused, job_id)
    assert world.finish(job_id) is JobState.COMPLETED


def test_an_api_batch_that_is_refused_whole_ends_with_its_lines_of_error(world: World) -> None:
    job_id = world.job(25, **REQUESTS)
    world.commit(world.lease(job_id), errors=refusals(range(25)))
    assert world.run(jobs.judge_failures, job_id) is False
    assert world.run(finishable) == [job_id]
    assert not world.run(job_end.hold_refused, job_id)
    assert world.finish(job_id) is JobState.COMPLETED


def test_an_arranged_job_is_judged_once_a_tenth_of_its_rows_are_over(world: World) -> None:
    """Rows that fail alike stand side by side there."""
    job_id = world.job(400, 99, 1, 4500)
    world.do("UPDATE input_files SET arranged = 'copy.arranged'")
    world.commit(world.lease(job_id), errors=range(400))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id))
    assert world.run(jobs.judge_failures, job_id) is True
    world.run(jobs.resume, job_id)
    assert world.run(jobs.judge_failures, job_id) is False


def test_a_small_arranged_job_is_judged_after_200_rows(world: World) -> None:
    job_id = world.job(199, 1, 100)
    world.do("UPDATE input_files SET arranged = 'copy.arranged'")
    world.commit(world.lease(job_id), errors=range(199))
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id))
    assert world.run(jobs.judge_failures, job_id) is True


def test_a_retried_job_is_judged_by_the_rows_that_run_again(world: World) -> None:
    job_id = world.job(300)
    first = world.lease(job_id)
    world.commit(first, errors=range(300))
    world.finish(job_id)
    world.retry(job_id)
    assert world.run(jobs.judge_failures, job_id) is False
    world.commit(world.lease(job_id), errors=range(300))
    assert world.run(jobs.judge_failures, job_id) is True


def test_the_first_output_schema_holds_whoever_comes_second(
    world: World, second_ledger: Callable[[], Ledger]
) -> None:
    job_id = world.job(1)
    other = World(second_ledger())

    with ThreadPoolExecutor(1) as pool:
        with world.ledger.transaction() as connection:
            assert jobs.fix_output_schema(connection, job_id, b"first") == b"first"
            late = pool.submit(other.run, jobs.fix_output_schema, job_id, b"second")
            wait_until_somebody_waits(connection)
        assert late.result(timeout=100) == b"first"


def test_what_the_first_load_fixes_for_a_job_holds_whoever_comes_second(
    world: World, second_ledger: Callable[[], Ledger]
) -> None:
    job_id = world.job(1)
    other = World(second_ledger())
    first = {"thinking": "qwen3", "max_tokens": 8192}

    with ThreadPoolExecutor(1) as pool:
        with world.ledger.transaction() as connection:
            assert jobs.fix_resolved(connection, job_id, first) == first
            late = pool.submit(other.run, jobs.fix_resolved, job_id, {"thinking": None})
            wait_until_somebody_waits(connection)
        assert late.result(timeout=100) == first
    job = world.run(jobs.get, job_id)
    assert job is not None
    assert job.resolved == first


# Retry.


def test_a_retry_of_one_kind_keeps_the_lines_of_the_other_rows(world: World) -> None:
    job_id = world.job(6)
    first = world.lease(job_id)
    world.commit(first, errors={1: REFUSED, 2: REFUSED, 3: TRUNCATED})
    assert world.finish(job_id) is JobState.COMPLETED
    assert world.rows(job_id) == (3, 3)
    assert world.retry(job_id, kind=REFUSED) == Retried(2, 1, 0, True, JobState.RUNNING)
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((3, 1), [3])
    again = world.lease(job_id)
    assert (list(again.todo), again.kept_part) == ([1, 2], f"part-{first.batch_id}-a1")
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((3, 1), [3])
    world.commit(again, errors=[2, 3])
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((4, 2), [2, 3])
    assert [
        part["part_name"] for part in world.run(live_parts.parts_between, job_id, 0, 1_000_000)
    ] == [f"part-{first.batch_id}-a2"]


def test_only_rows_of_a_batch_that_is_over_run_again(world: World) -> None:
    job_id = world.job(2, 2)
    world.commit(world.lease(job_id), errors=[0])
    held = world.lease(job_id)
    assert world.retry(job_id) == Retried(1, 1, 0, False, JobState.RUNNING)
    assert world.batch(held.batch_id).state == "leased"
    assert world.retry(job_id).rows == 0


def test_a_dead_batch_that_was_never_answered_runs_as_if_it_were_new(world: World) -> None:
    job_id = world.job(2)
    world.fail(world.lease(job_id), permanent=True)
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((0, 2), [0, 1])
    assert world.retry(job_id, failed=False, dead=True).rows == 2
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((0, 0), [])
    again = world.lease(job_id)
    assert (list(again.todo), again.redo, again.kept_part) == ([0, 1], None, None)


def test_a_retry_that_dies_keeps_the_answers_it_did_not_touch(world: World) -> None:
    job_id = world.job(4)
    first = world.lease(job_id)
    world.commit(first, errors={0: REFUSED, 1: TRUNCATED})
    world.retry(job_id, kind=REFUSED)
    world.fail(world.lease(job_id), permanent=True)
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((2, 2), [0, 1])
    assert world.run(close, job_id) is None
    [row] = world.run(failures.missing_error_parts, job_id, 10)
    assert row["part_name"] == f"part-{first.batch_id}-a1"
    merged = part_of(first, errors={0: RowErrorKind.BATCH_DEAD, 1: TRUNCATED}, name="merged")
    assert world.run(failures.name_error_part, row, merged) is True
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((2, 2), [0, 1])
    assert world.run(close, job_id) is JobState.FAILED
    assert world.retry(job_id, kind=TRUNCATED).reopened is False
    assert world.run(jobs.get, job_id).state is JobState.FAILED
    assert world.retry(job_id, failed=False, dead=True).rows == 2
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((2, 0), [])


def test_a_batch_that_died_in_a_retry_can_be_retried_before_its_burial(world: World) -> None:
    job_id = world.job(4)
    world.commit(world.lease(job_id), errors={0: REFUSED, 1: TRUNCATED})
    world.retry(job_id, kind=REFUSED)
    world.fail(world.lease(job_id), permanent=True)
    assert world.retry(job_id).rows == 2
    again = world.lease(job_id)
    assert (list(again.todo), world.rows(job_id)) == ([0, 1], (2, 0))
    world.commit(again)
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((4, 0), [])


def test_a_single_row_that_kills_the_engine_again_in_a_retry_is_doomed(world: World) -> None:
    job_id = world.job(4)
    world.commit(world.lease(job_id), errors=[2])
    world.retry(job_id)
    for _ in range(3):
        lose(world, job_id)
    again = world.lease(job_id)
    assert (list(again.todo), again.isolated) == ([2], True)


@pytest.mark.parametrize("rows", [2, 3, 8, 100])
@pytest.mark.parametrize("place", [0.0, 0.4, 0.99])
def test_a_retry_finds_the_row_that_kills_the_engine_and_answers_all_others(
    world: World, rows: int, place: float
) -> None:
    job_id, killer = world.job(rows + 3), int(place * rows)
    world.commit(world.lease(job_id), errors=range(rows))
    assert world.retry(job_id).rows == rows
    deaths, found = 0, []
    while world.states(job_id) != ["done"]:
        lease = world.lease(job_id)
        if killer in set(lease.todo) and not lease.isolated:
            world.run(leasing.lose_owner, WHO, "killed")
            deaths += 1
            continue
        if lease.isolated:
            found += lease.todo
        world.commit(lease, errors=[*lease.later, *found])
        left = set(lease.later)
        assert world.rows(job_id)[0] + world.rows(job_id)[1] == rows + 3 - len(left)
        assert not left & set(world.failed_rows(job_id))
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((rows + 2, 1), [killer])
    assert deaths <= (rows - 1).bit_length() + 4


def test_a_commit_of_some_rows_of_a_retry_is_read_back_as_done(world: World) -> None:
    job_id = world.job(4)
    world.commit(world.lease(job_id), errors=range(3))
    world.retry(job_id)
    some = world.lease(job_id).narrowed(RowRanges.of((1, 2)))
    world.commit(some, errors=[0, 2])
    assert world.run(commits.is_committed, some) is True
    with pytest.raises(LeaseLost):
        world.commit(some, errors=[0, 2])
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((2, 0), [])
    assert list(world.lease(job_id).todo) == [0, 2]


def test_rows_of_a_retry_that_was_cancelled_keep_their_old_errors(world: World) -> None:
    job_id = world.job(3, 3, 3)
    world.commit(world.lease(job_id), errors=[1])
    dead = world.lease(job_id)
    world.fail(dead, permanent=True)
    world.commit(world.lease(job_id), errors=[7, 8])
    world.finish(job_id)
    before = world.ask("SELECT * FROM failed_rows ORDER BY row_index")
    assert world.retry(job_id).rows == 6
    world.commit(world.lease(job_id))
    world.run(leasing.release, [world.lease(job_id)])
    world.run(jobs.cancel, job_id)
    assert (world.rows(job_id), world.failed_rows(job_id)) == ((4, 0), [])
    assert world.run(retries.undo, job_id) == 2
    assert world.run(retries.undo, job_id) == 0
    assert world.states(job_id) == ["done", "dead", "done"]
    assert world.ask("SELECT * FROM failed_rows ORDER BY row_index") == before[1:]
    assert world.rows(job_id) == (4, 5)
    assert world.run(audit.broken_attempts, job_id) == []
    assert world.run(close, job_id) is JobState.CANCELLED
    with pytest.raises(BadInput, match="is final"):
        world.retry(job_id)


def test_undo_leaves_a_job_that_runs_alone(world: World) -> None:
    job_id = world.job(2)
    world.commit(world.lease(job_id), errors=[1])
    world.retry(job_id)
    assert world.run(retries.undo, job_id) == 0
    assert list(world.lease(job_id).todo) == [1]


def test_a_job_whose_engine_could_not_be_loaded_goes_on_with_fresh_tries(world: World) -> None:
    job_id = world.job(1, 1)
    fail_load(world, job_id)
    assert world.run(close, job_id) is JobState.FAILED
    assert world.retry(job_id) == Retried(0, 0, 2, True, JobState.RUNNING)
    assert [engine.load_failures for engine in world.ask("SELECT * FROM engines")] == [0]
    assert world.lease(job_id).seq == 0


def test_errors_of_a_drained_batch_name_the_child_that_has_them(world: World) -> None:
    job_id = world.job(4)
    lease = world.lease(job_id)
    with world.ledger.transaction() as connection:
        splits.split(connection, lease, RowRanges.of((0, 2)), part_of(lease, errors=[1]))
    [error] = world.ask("SELECT batch_id FROM failed_rows")
    assert world.batch(error.batch_id).part_name == f"part-{lease.batch_id}-a1"
    assert world.retry(job_id).rows == 1


@pytest.mark.slow
def test_a_hundred_thousand_failed_rows_in_ten_thousand_batches_are_one_short_statement(
    world: World,
) -> None:
    job_id = world.job(*[20] * 10_000)
    with world.ledger.transaction() as connection:
        # As in a short job: what Postgres knows of the states is older than the work.
        connection.exec_driver_sql("ANALYZE batches, row_errors")
        connection.exec_driver_sql(
            """
            UPDATE batches SET state = 'done', attempt = 1, owner = 'w', part_name = 'p' || id,
                   part_bytes = 1, part_checksum = 's', rows_failed = 10
            """
        )
        connection.exec_driver_sql(
            """
            INSERT INTO row_errors (job_id, row_index, batch_id, kind, message)
            SELECT job_id, lower(rows) + n * 2, id, 'refused', 'no'
            FROM batches, generate_series(0, 9) AS n
            """
        )
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = '15s'")
        found = retries.retry(connection, job_id, failed=True, dead=False)
        assert (found.rows, found.batches) == (100_000, 10_000)
    assert world.rows(job_id) == (100_000, 0)
    world.run(jobs.cancel, job_id)
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = '15s'")
        assert retries.undo(connection, job_id) == 10_000
    assert world.rows(job_id) == (100_000, 100_000)


def test_a_retry_in_pieces_takes_each_failed_row_once(world: World) -> None:
    job_id = world.job(4, 4, 4, 4, 4)
    for errors in ([0], [4, 5, 6], [], [12, 13], [16]):
        world.commit(world.lease(job_id), errors=errors)
    world.finish(job_id)
    pieces: list[Retried] = []
    last: int | None = -1
    while last is not None:
        with world.ledger.transaction() as connection:
            piece = retries.retry(
                connection, job_id, failed=True, dead=False, after=last, most_rows=2
            )
        pieces.append(piece)
        last = piece.last
        if piece.batches:
            # What fails again in the meantime is left to the next retry.
            lease = world.lease(job_id)
            world.commit(lease, errors=lease.todo)
    assert [(piece.rows, piece.last) for piece in pieces] == [(4, 1), (2, 3), (1, 4), (0, None)]
    assert [piece.reopened for piece in pieces] == [True, False, False, False]
    whole = reduce(Retried.then, pieces)
    assert (whole.rows, whole.batches, whole.reopened, whole.waiting) == (7, 4, True, 0)
    assert world.rows(job_id)[1] + sum(len(lease.todo) for lease in world.claim(job_id)) == 7


def test_a_retry_and_a_failed_load_lock_in_one_order(
    world: World, second_ledger: Callable[[], Ledger]
) -> None:
    """The engine first: else each would hold what the other waits for."""
    job_id = world.job(1)
    fail_load(world, job_id)
    other = World(second_ledger())
    with ThreadPoolExecutor(1) as pool:
        with world.ledger.transaction() as connection:
            fail_load_on(connection, world, job_id, "c")
            retrying = pool.submit(other.retry, job_id)
            wait_until_somebody_waits(connection)
            assert jobs.lock(connection, job_id) is JobState.FAILED
        assert retrying.result(timeout=100).reopened


# Finish.


def test_a_job_is_finishable_once_its_last_batch_is_over(world: World) -> None:
    job_id = world.job(1, 1)
    world.commit(world.lease(job_id))
    last = world.lease(job_id)
    assert world.run(finishable) == []
    assert world.run(close, job_id) is None
    world.commit(last)
    assert world.run(finishable) == [job_id]
    assert world.run(job_end.take_finishable, "reaper-1") is not None
    assert world.run(job_end.take_finishable, "reaper-2") is None
    assert world.run(close, job_id) is JobState.COMPLETED
    assert world.run(finishable) == []


def test_what_nobody_has_tried_to_finish_comes_before_what_was_tried_in_vain(world: World) -> None:
    first, second, third = (world.job(1, name=name) for name in ("one", "two", "three"))
    for job_id in (first, second, third):
        world.commit(world.lease(job_id))
    for job_id in (first, second):
        hold = world.run(job_end.take_finishable, "reaper")
        assert hold.subject == str(job_id)
        assert world.run(holds.postpone, hold, -1)
    assert world.run(finishable) == [third, first, second]


def test_who_was_too_slow_closes_no_job(world: World) -> None:
    """Neither as finished nor as given up, while another reaper finishes it."""
    job_id = world.job(1)
    world.commit(world.lease(job_id))
    slow = world.run(job_end.take_finishable, "reaper-1")
    assert world.run(holds.postpone, slow, -1)
    hold = world.run(job_end.take_finishable, "reaper-2")
    assert hold.token != slow.token
    assert not world.run(holds.renew, slow)
    assert world.run(job_end.close, slow) is None
    assert not world.run(job_end.abandon, slow, "its folder is gone")
    assert world.run(jobs.get, job_id).closed_at is None
    assert world.run(job_end.close, hold) is JobState.COMPLETED
    assert not world.run(holds.renew, hold), "nobody has what is closed"


def test_a_job_with_a_dead_batch_fails_after_its_burial(world: World) -> None:
    job_id = world.job(2, 2)
    world.commit(world.lease(job_id))
    world.fail(world.lease(job_id), permanent=True)
    assert world.run(finishable) == [job_id]
    assert world.run(close, job_id) is None
    assert world.finish(job_id) is JobState.FAILED
    job = world.run(jobs.get, job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "1 batch is dead: no")
    assert world.rows(job_id) == (2, 2)
    assert world.failed_rows(job_id) == [2, 3]
    assert len(world.run(live_parts.parts_between, job_id, 0, 1_000_000)) == 2


def test_a_dead_batch_is_buried_once(world: World) -> None:
    job_id = world.job(2)
    lease = world.lease(job_id)
    world.fail(lease, permanent=True)
    [row] = world.run(failures.missing_error_parts, job_id, 10)
    assert (
        world.run(failures.name_error_part, row, part_of(lease, errors=[0, 1], name="one")) is True
    )
    assert (
        world.run(failures.name_error_part, row, part_of(lease, errors=[0, 1], name="two")) is False
    )
    assert world.batch(lease.batch_id).part_name == "one"


def test_a_cancelled_job_is_finished_once_nobody_holds_a_lease_of_it(world: World) -> None:
    job_id = world.job(1, 1)
    lease = world.lease(job_id)
    world.run(jobs.cancel, job_id)
    assert world.run(finishable) == []
    assert world.run(close, job_id) is None
    world.run(leasing.release, [lease])
    assert world.run(finishable) == [job_id]
    assert world.run(close, job_id) is None, "its owner may still commit it"
    assert world.run(job_end.take_owners, job_id, 10) == 1
    assert world.run(close, job_id) is JobState.CANCELLED


def test_a_retried_job_runs_and_closes_again(world: World) -> None:
    job_id = world.job(2)
    world.fail(world.lease(job_id), permanent=True)
    assert world.finish(job_id) is JobState.FAILED
    world.retry(job_id)
    job = world.run(jobs.get, job_id)
    assert (job.state, job.reason, job.closed_at) == (JobState.RUNNING, None, None)
    assert world.run(close, job_id) is None
    world.commit(world.lease(job_id))
    assert world.finish(job_id) is JobState.COMPLETED
    assert world.rows(job_id) == (2, 0)


# Workers and engines.


def fail_load(world: World, job_id: int) -> None:
    """Two machines fail to load a job's engine, for a reason of the job's own."""
    for host in ("a", "b"):
        world.run(fail_load_on, world, job_id, host)


def fail_load_on(connection: Connection, world: World, job_id: int, host: str) -> None:
    who, policy = Machine(f"super-{host}", "default", host), LoadPolicy(2, 30)
    key = world.specs[job_id].engine_key
    slot = SlotReport(0, "", None, None, leaves=False)
    slots.report(connection, who, [slot], idle_seconds=0, seen_every_seconds=0)
    loads.failed(connection, who, key, UNEXPLAINED, "no such module", policy)


def test_a_child_that_is_gone_frees_its_leases_at_once(world: World) -> None:
    job_id = world.job(1)
    make_ready(world, child_of(world.specs[job_id]))
    lease = world.lease(job_id, owner="child-1")
    assert world.run(lambda c: workers.end(c, "child-1", died=None)) == 1
    assert (world.batch(lease.batch_id).state, world.batch(lease.batch_id).losses) == ("pending", 0)


def test_the_children_of_a_dead_supervisor_are_released_together(world: World) -> None:
    job_id = world.job(1, 1)
    for number in (1, 2):
        make_ready(world, child_of(world.specs[job_id], number))
        world.lease(job_id, owner=f"child-{number}")
    assert world.run(workers.end_supervisor, "super") == 2
    assert world.states(job_id) == ["pending", "pending"]


# Admission and counters.


def test_admission_takes_dataset_order_and_stops_at_its_limit(world: World) -> None:
    job_id = world.job(1, 1, 1, 1, limits={"max_parallel": 1})
    assert world.admit(job_id, 3) == 3
    assert world.states(job_id) == ["queued", "queued", "queued", "pending"]
    assert [lease.seq for lease in world.claim(job_id)] == [0, 1, 2]
    assert world.admit(job_id, 3) == 1


def test_what_is_admitted_beside_a_pause_is_claimed_by_nobody_and_taken_back(
    world: World, second_ledger: Callable[[], Ledger]
) -> None:
    job_id = world.job(1, 1)
    other = World(second_ledger())
    with world.ledger.transaction() as connection:
        jobs.pause(connection, job_id)
        assert other.admit(job_id) == 2, "an admission waits for nobody"
    assert world.claim(job_id) == []
    assert world.run(dispatch.unqueue, 10) == 2
    assert world.states(job_id) == ["pending", "pending"]


def test_the_dispatcher_sees_what_is_open_and_what_children_can_hold(world: World) -> None:
    job_id = world.job(2, 2, 2, 2, limits={"max_parallel": 3}, batch={"rows": 2})
    make_ready(world, child_of(world.specs[job_id]))
    world.admit(job_id, 2)
    world.claim(job_id, most=1)
    [job] = world.run(dispatch.open_jobs)
    assert (job.pending, job.queued, job.leased) == (2, 1, 1)
    assert (job.rows_queued, job.rows_leased, job.batch_rows, job.max_parallel) == (2, 2, 2, 3)
    [capacity] = world.run(dispatch.capacities, 30)
    assert (capacity.children, capacity.window_rows) == (1, 64)


def test_one_reaper_at_a_time_has_a_duty(world: World, frozen: Connection) -> None:
    assert dispatch.try_duty(frozen, dispatch.DISPATCH_LOCK) is True
    assert world.run(dispatch.try_duty, dispatch.DISPATCH_LOCK) is False


def test_folding_counters_keeps_their_sums(world: World) -> None:
    job_id = world.job(*[1] * 40)
    small = world.job(1, name="small")
    for number in range(40):
        world.commit(world.lease(job_id), errors=[number] if number % 4 == 0 else [])
    # In one transaction, so that now() and what is derived from it are the same in both reads.
    with world.ledger.transaction() as connection:
        before = dict(jobs.progress(connection, job_id))
        assert dispatch.fold_counters(connection) > 50
        assert dict(jobs.progress(connection, job_id)) == before
    assert (before["rows_done"], before["rows_failed"]) == (30, 10)
    assert world.ask("SELECT count(*) AS n FROM job_counters WHERE job_id = %s", job_id)[0].n == 1
    assert world.run(jobs.progress, small)["rows_total"] == 1
    assert world.run(dispatch.fold_counters) == 0


def test_folding_passes_over_what_another_reaper_is_folding(
    world: World, frozen: Connection
) -> None:
    job_id = world.job(*[1] * 40)
    for _ in range(40):
        world.commit(world.lease(job_id))
    assert dispatch.fold_counters(frozen) > 50
    assert world.run(dispatch.fold_counters) == 0
    assert world.rows(job_id) == (40, 0)


# Views, rate and ETA.


@pytest.mark.parametrize("view", ["job_progress", "failed_rows", "worker_status", "pool_demand"])
def test_people_can_query_every_view(world: World, view: str) -> None:
    job_id = world.job(2, 2)
    make_ready(world, child_of(world.specs[job_id]))
    world.commit(world.lease(job_id, owner="child-1"), errors=[0])
    world.lease(job_id, owner="child-1")
    assert len(world.ask(f"SELECT * FROM {view}")) == 1
    described = world.ask("SELECT obj_description(%s::regclass) AS said", view)
    assert described[0].said


def test_pool_demand_asks_for_workers_only_while_work_is_open(world: World) -> None:
    job_id = world.job(500, 500)
    [demand] = world.ask("SELECT * FROM pool_demand")
    assert (demand.batches_waiting, demand.rows_open, demand.desired_workers) == (2, 1000, 2)
    world.admit(job_id)
    for lease in world.claim(job_id):
        world.commit(lease)
    assert world.ask("SELECT desired_workers FROM pool_demand")[0].desired_workers == 0


def test_pool_demand_never_falls_below_the_workers_that_hold_leases(world: World) -> None:
    """Else an autoscaler would take busy ones away at the end of a job."""
    job_id = world.job(1, 1, 1)
    demand = "SELECT workers, rows_open, desired_workers FROM pool_demand"
    for number in (1, 2, 3):
        make_ready(world, child_of(world.specs[job_id], number))
    assert tuple(world.ask(demand)[0]) == (3, 3, 1)
    for name in ("child-1", "child-2"):
        lease = world.lease(job_id, owner=name)
    assert tuple(world.ask(demand)[0]) == (3, 3, 2)
    world.commit(lease)
    assert tuple(world.ask(demand)[0]) == (3, 2, 1)


def test_there_is_no_eta_before_the_first_commit(world: World) -> None:
    job_id = world.job(2, 2)
    world.lease(job_id)
    progress = world.run(jobs.progress, job_id)
    assert (progress["rows_per_second"], progress["eta_seconds"]) == (None, None)


def steady(
    world: World, done: list[tuple[float, float]], total: int, rows: int = 10
) -> tuple[float, float]:
    """Rate and ETA when `done` batches (claimed, committed: seconds ago) of `total` are over."""
    job_id = world.job(*[rows] * total)
    make_ready(world, child_of(world.specs[job_id]))
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE jobs SET started_at = now() - make_interval(secs => %s)",
            (max(claimed for claimed, _ in done),),
        )
        for number, (claimed, committed) in enumerate(done):
            connection.exec_driver_sql(
                """
                WITH taken AS (
                    UPDATE batches SET state = 'done', attempt = 1, owner = 'w', part_name = 'p',
                           part_bytes = 1, part_checksum = 'c'
                    WHERE job_id = %s AND seq = %s RETURNING id, job_id, row_count)
                INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version,
                    woken, claimed_at, ended_at, outcome, row_count, rows_failed, output_tokens)
                SELECT id, 1, job_id, 'w', 'function', '1', 'poll',
                       now() - make_interval(secs => %s), now() - make_interval(secs => %s),
                       'done', row_count, 0, 0 FROM taken
                """,
                (job_id, number, claimed, committed),
            )
        progress = jobs.progress(connection, job_id)
    return float(progress["rows_per_second"]), float(progress["eta_seconds"])


@pytest.mark.parametrize("total", [4, 8, 20, 100])
def test_at_half_way_of_serial_batches_the_eta_is_the_time_it_took(
    world: World, total: int
) -> None:
    half = total // 2
    done = [(5.0 * (half - place), 5.0 * (half - place - 1)) for place in range(half)]
    rate, eta = steady(world, done, total)
    assert rate == pytest.approx(2, rel=0.25)
    assert eta == pytest.approx(5 * half, rel=0.25)


@pytest.mark.parametrize("waves", [1, 2, 5, 20])
def test_at_half_way_of_four_lanes_in_lockstep_the_eta_is_the_time_it_took(
    world: World, waves: int
) -> None:
    done = [
        (8.0 * (waves - wave) + 0.01 * lane, 8.0 * (waves - wave - 1) + 0.01 * lane)
        for wave in range(waves)
        for lane in range(4)
    ]
    rate, eta = steady(world, done, 8 * waves)
    assert rate == pytest.approx(5, rel=0.25)
    assert eta == pytest.approx(8 * waves, rel=0.25)


@pytest.mark.parametrize("total", [20, 50, 200])
def test_at_half_way_of_a_pipeline_the_time_to_fill_it_does_not_count(
    world: World, total: int
) -> None:
    # One commit a second; each batch was claimed a fifth of the whole time before its commit.
    half, latency = total // 2, total / 5
    done = [
        (half - place - 1 + min(latency, latency + place), float(half - place - 1))
        for place in range(half)
    ]
    rate, eta = steady(world, done, total)
    assert rate == pytest.approx(10, rel=0.25)
    assert eta == pytest.approx(half, rel=0.25)


def test_a_job_that_stands_still_says_so(world: World) -> None:
    done = [(600 + 5.0 * (10 - place), 600 + 5.0 * (9 - place)) for place in range(10)]
    assert steady(world, done, 20)[0] == pytest.approx(2, rel=0.25), "nothing is leased"
    (job_id,) = world.specs
    child = child_of(world.specs[job_id])
    world.lease(job_id, owner=child.id)
    since = "UPDATE attempts SET claimed_at = now() - interval '600 s' WHERE outcome IS NULL RETURNING 1"
    world.ask(since)
    assert float(world.run(jobs.progress, job_id)["rows_per_second"]) < 0.3


def test_a_job_keeps_the_engine_key_of_its_row_whatever_this_release_would_compute(
    world: World,
) -> None:
    """Its queue, its children and what they are started for have that key."""
    job_id = world.job(2)
    world.ask("UPDATE jobs SET engine_key = 'of-before' RETURNING 1")
    job = world.run(jobs.get, job_id)
    assert job.engine_key == "of-before" != job.spec.engine_key
    assert progress_views.snapshot(world.ledger, job_id).served_by == (job.spec.pool, "of-before")
    assert advice.subject(job).engine_key == "of-before"


def test_a_paused_job_has_no_rate(world: World) -> None:
    job_id = world.job(2, 2)
    world.commit(world.lease(job_id))
    world.run(jobs.pause, job_id)
    progress = world.run(jobs.progress, job_id)
    assert (progress["rows_per_second"], progress["eta_seconds"]) == (None, None)


# The schema.


def test_the_code_knows_the_newest_migration() -> None:
    assert int(schema.head()) == schema.SCHEMA


def test_a_migrated_database_fits_and_migrating_again_is_harmless(ledger: Ledger) -> None:
    schema.migrate(ledger)
    schema.check(ledger)


def test_a_database_without_tables_is_refused(fresh_database: Callable[..., str]) -> None:
    ledger = Ledger(fresh_database(migrated=False))
    try:
        with pytest.raises(SchemaMismatch, match="no Nightshift tables: run `nightshift migrate`"):
            schema.check(ledger)
    finally:
        ledger.close()


def test_a_database_behind_the_code_is_refused(world: World) -> None:
    world.ask("UPDATE schema_version SET version_num = '0000' RETURNING 1")
    with pytest.raises(SchemaMismatch, match="at migration 0000 and this code needs"):
        schema.check(world.ledger)


def test_a_newer_database_is_used_while_it_says_so_and_left_as_it_is(world: World) -> None:
    world.ask("UPDATE schema_version SET version_num = '9999' RETURNING 1")
    schema.check(world.ledger)
    schema.migrate(world.ledger)
    world.ask("UPDATE ledger_meta SET compatible_from = 9999 RETURNING 1")
    with pytest.raises(SchemaMismatch, match=r"knows migration 9999.*upgrade nightshift-fleet"):
        schema.check(world.ledger)


# Connections.


def test_a_postgres_that_is_away_is_an_error_that_may_be_tried_again() -> None:
    ledger = Ledger("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(Retryable, match="cannot be reached"), ledger.transaction():
        pass
    ledger.close()


def test_a_connection_in_use_while_the_ledger_closes_is_closed_once_it_is_given_back(
    database_url: str,
) -> None:
    ledger = Ledger(database_url)
    with ledger.transaction() as connection:
        driver = connection.connection.driver_connection
        ledger.close()
        assert connection.scalar(sqlalchemy.text("SELECT 1")) == 1
    assert driver is not None
    assert driver.closed

    with ledger.transaction() as connection:
        driver = connection.connection.driver_connection
        assert connection.scalar(sqlalchemy.text("SELECT 2")) == 2
    assert driver is not None
    assert driver.closed
    ledger.close()


def test_a_url_may_say_how_long_to_wait_for_a_connection(database_url: str) -> None:
    ledger = Ledger(f"{database_url}&connect_timeout=10")
    with ledger.transaction() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.info.get_parameters()["connect_timeout"] == "10"
    ledger.close()


def test_a_connection_that_is_refused_says_why(database_url: str) -> None:
    ledger = Ledger(database_url.replace("nightshift_test_", "nightshift_missing_"))
    with pytest.raises(Retryable, match="does not exist"), ledger.transaction():
        pass
    ledger.close()


def test_a_url_of_something_else_is_refused_without_showing_it() -> None:
    for url in ("mysql://user:secret@host/db", "not a url"):
        with pytest.raises(BadInput, match="no postgresql:// URL") as refused:
            Ledger(url)
        assert "secret" not in str(refused.value)


def test_a_socket_without_a_server_is_named_in_the_error() -> None:
    ledger = Ledger("postgresql://postgres:secret@/ns?host=/nowhere&port=54399")
    with pytest.raises(LedgerUnavailable) as error, ledger.transaction():
        pass
    assert "Postgres at /nowhere/.s.PGSQL.54399 (ns) cannot be reached" in str(error.value)
    assert "secret" not in str(error.value)
    assert "localhost" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://:secret@127.0.0.1:1/0", "127.0.0.1:1"),
        ("redis+socket:///nowhere/redis.sock", "/nowhere/redis.sock"),
    ],
)
def test_a_broker_that_is_away_is_named_without_its_password(url: str, named: str) -> None:
    with pytest.raises(Retryable, match="the broker cannot be reached") as error:
        ping(url)
    assert named in str(error.value)
    assert "secret" not in str(error.value)


def test_every_transaction_has_its_time_limits(world: World) -> None:
    with world.ledger.transaction() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        ]
    assert shown == ["5s", "30s", "10s"]


def test_no_transaction_is_ever_open_without_its_limits(world: World) -> None:
    """BEGIN and the limits are one message: nobody can be frozen between the two."""
    query = "SELECT query FROM pg_stat_activity WHERE pid = %s"
    with world.ledger.engine.connect() as connection, connection.begin():
        pid = connection.connection.driver_connection.info.backend_pid
        with psycopg.connect(world.ledger.url, autocommit=True) as other:
            [found] = other.execute(query, [pid])
    assert found[0].startswith("BEGIN; SET LOCAL"), found


def test_a_broken_connection_is_an_error_that_may_be_tried_again(
    world: World, database_url: str
) -> None:
    def cut_off(connection: Connection) -> None:
        me = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with psycopg.connect(database_url, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", (me,))
        connection.exec_driver_sql("SELECT 1")

    with pytest.raises(Retryable):
        world.run(cut_off)
    assert world.ask("SELECT 1 AS one")[0].one == 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain, \u00fcber, \U0001f600", "plain, \u00fcber, \U0001f600"),
        ("a NUL \0 here", "a NUL \\x00 here"),
        ("half \ud800 here", "half \\ud800 here"),
    ],
    ids=["plain", "NUL", "half of a character"],
)
def test_no_text_fails_a_transaction_alone_in_an_array_or_in_copy(
    world: World, text: str, kept: str
) -> None:
    ask = sqlalchemy.text("SELECT CAST(:text AS text), CAST(:texts AS text[])")
    with world.ledger.transaction() as connection:
        found = connection.execute(ask, {"text": text, "texts": [text, "b"]}).one()
        assert tuple(found) == (kept, [kept, "b"])
        connection.exec_driver_sql("CREATE TEMPORARY TABLE texts (text text)")
        driver = connection.connection.dbapi_connection
        with driver.cursor() as cursor, cursor.copy("COPY texts FROM STDIN") as copy:  # type: ignore[union-attr]
            copy.write_row([text])
        assert connection.exec_driver_sql("SELECT text FROM texts").scalar() == kept


def test_a_load_error_is_stored_whatever_text_it_holds_and_cut(world: World) -> None:
    job_id = world.job(1)
    key = world.specs[job_id].engine_key
    here = Machine("super", "default", "here")
    policy = LoadPolicy(2, 30, one_machine=True)
    for _ in range(3):
        world.ask("WITH due AS (UPDATE refusals SET retry_at = now()) SELECT 1")
        world.run(loads.failed, here, key, UNEXPLAINED, "no \0 \ud800 " + "x" * 10_000, policy)
    job = world.run(jobs.get, job_id)
    assert job.state is JobState.FAILED
    assert job.reason.startswith("the engine could not be loaded: no \\x00 \\ud800 xxx")
    assert len(job.reason) < 600
