"""The view job_pace: the pace of a job with its bounds, its end, and when a stalled job has none."""

from dataclasses import astuple

import pytest

from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.fleet.outages import Kind, Teller, Wait
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.ledger.queries.job_pace import Pace
from nightshift.common.ranges import Range
from nightshift.producer.advice.here import FLEET
from nightshift.producer.views import progress
from tests.support.world import World, child_of, make_ready


def commits(world: World, job: int, done: list[tuple[str, float, float]]) -> None:
    """Commit the first batches of a job, each by a worker: claimed and ended so many seconds ago."""
    longest = max(claimed for _, claimed, _ in done)
    world.do("UPDATE jobs SET started_at = now() - make_interval(secs => %s)", longest)
    for seq, (worker, claimed, ended) in enumerate(done):
        world.do(
            """
            WITH taken AS (
                UPDATE batches SET state = 'done', attempt = 1, owner = 'w', part_name = 'p',
                       part_bytes = 1, part_checksum = 'c'
                WHERE job_id = %s AND seq = %s RETURNING id, job_id, row_count)
            INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version,
                woken, claimed_at, ended_at, outcome, row_count, rows_failed, output_tokens)
            SELECT id, 1, job_id, %s, 'function', '1', 'poll',
                   now() - make_interval(secs => %s), now() - make_interval(secs => %s),
                   'done', row_count, 0, row_count FROM taken
            """,
            *(job, seq, worker, claimed, ended),
        )


def pace(
    world: World, done: list[tuple[str, float, float]], batches: int, *, has_worker: bool = True
) -> Pace | None:
    """The pace of a job with `batches` batches of 10 rows, some of them `done`."""
    job = world.job(*[10] * batches)
    commits(world, job, done)
    if has_worker:
        make_ready(world, child_of(world.specs[job]))
    return job_pace.pace(world.run(job_pace.of, job))


def serial(steps: list[float]) -> list[tuple[str, float, float]]:
    """Batches of one worker that took so many seconds each, one after the other up to now."""
    ends = [sum(steps[place + 1 :]) for place in range(len(steps))]
    return [("w", end + step, end) for end, step in zip(ends, steps, strict=True)]


def test_a_steady_job_has_the_same_bounds(world: World) -> None:
    found = pace(world, serial([2.0] * 40), 100)
    assert found is not None
    assert astuple(found.rows_per_second) == pytest.approx((5, 5, 5), rel=0.02)
    assert found.eta is not None
    assert astuple(found.eta) == pytest.approx((120, 120, 120), rel=0.02)


def test_a_job_whose_commits_vary_has_bounds_around_its_pace(world: World) -> None:
    found = pace(world, serial([4.0] * 20 + [1.0] * 20), 100)
    assert found is not None
    low, likely, high = astuple(found.rows_per_second)
    assert low == pytest.approx(2.5, rel=0.1)
    assert high == pytest.approx(10, rel=0.1)
    assert 2.5 < likely < 10
    assert found.eta is not None
    # The high pace ends first.
    assert astuple(found.eta) == pytest.approx((600 / high, 600 / likely, 600 / low), rel=0.01)


def test_workers_that_commit_together_are_one_step(world: World) -> None:
    waves = [
        (f"w{lane}", 8.0 * (12 - wave) + 0.01 * lane, 8.0 * (11 - wave) + 0.01 * lane)
        for wave in range(12)
        for lane in range(4)
    ]
    found = pace(world, waves, 96)
    assert found is not None
    assert astuple(found.rows_per_second) == pytest.approx((5, 5, 5), rel=0.05)


def test_a_pause_within_the_window_is_no_slow_block(world: World) -> None:
    before = [(w, c + 600, e + 600) for w, c, e in serial([2.0] * 20)]
    found = pace(world, [*before, *serial([2.0] * 20)], 100)
    assert found is not None
    assert astuple(found.rows_per_second) == pytest.approx((5, 5, 5), rel=0.1)


def test_a_pause_is_no_time_at_work_of_the_block_in_which_its_first_lease_ends(
    world: World,
) -> None:
    """The lease that ends the pause outlives the ones of another worker."""
    before = [(w, c + 600, e + 600) for w, c, e in serial([2.0] * 20)]
    found = pace(world, [*before, *serial([2.0] * 20), ("a", 40.5, 0.5)], 100)
    assert found is not None
    assert astuple(found.rows_per_second) == pytest.approx((5, 5.25, 6), rel=0.1)


def test_a_clock_that_was_set_back_makes_no_negative_pace(world: World) -> None:
    job = world.job(*[10] * 40)
    commits(world, job, [("w", 10, 60)])
    world.do("UPDATE jobs SET started_at = now() - interval '100 s'")
    make_ready(world, child_of(world.specs[job]))
    assert job_pace.pace(world.run(job_pace.of, job)) is None


def test_few_commits_have_no_bounds(world: World) -> None:
    found = pace(world, serial([2.0] * 4), 10)
    assert found is not None
    assert found.rows_per_second == Range.exactly(pytest.approx(5, rel=0.02))
    assert found.eta == Range.exactly(pytest.approx(12, rel=0.02))


def test_without_a_worker_the_pace_is_known_and_the_end_is_not(world: World) -> None:
    found = pace(world, serial([2.0] * 40), 100, has_worker=False)
    assert found is not None
    assert found.rows_per_second.likely == pytest.approx(5, rel=0.02)
    assert found.eta is None


def test_a_job_without_an_open_batch_has_no_pace(world: World) -> None:
    assert pace(world, serial([2.0] * 40), 40) is None


def test_a_slow_job_has_an_end(world: World) -> None:
    """Its rate is 0.000 rows/s in three decimals."""
    job = world.job(*[1] * 8)
    commits(world, job, serial([300.0] * 5))
    world.do("UPDATE attempts SET row_count = 1")
    make_ready(world, child_of(world.specs[job]))
    row = world.run(job_pace.of, job)
    assert float(row["eta_seconds"]) == pytest.approx(900, rel=0.01)


@pytest.mark.parametrize(
    ("children", "reaper", "workers", "is_over", "stalled"),
    [
        ((1,), False, 1, False, True),
        ((1, 1), False, 2, False, True),
        ((2,), False, 2, False, False),  # one child waits for two things, the other one works
        ((1, 1), False, 3, False, False),
        ((1,), False, 0, False, True),  # a child that loads or leaves is none of its workers
        ((), True, 1, False, False),
        ((), True, 1, True, True),  # only the end of the job is left, and waits
        ((), False, 0, False, False),
        ((), False, 0, True, False),
    ],
)
def test_a_job_is_stalled_if_all_of_its_workers_or_its_end_waits(
    world: World,
    children: tuple[int, ...],
    reaper: bool,
    workers: int,
    is_over: bool,
    stalled: bool,
) -> None:
    job = world.job(10, 10)
    spec = world.specs[job]
    commits(world, job, serial([1.0, 1.0] if is_over else [1.0]))
    for number in range(workers):
        make_ready(world, child_of(spec, number + 1))
    kinds = (Kind.STORAGE, Kind.RATE)
    for number, waits in enumerate(children):
        teller = Teller(f"child-{number}", "host", spec.pool, spec.engine_key)
        world.run(outages.tell, teller, [Wait(kind, job, 9, "away") for kind in kinds[:waits]])
    if reaper:
        world.run(outages.tell, Teller("reaper", "host"), [Wait(Kind.STORAGE, job, 9, "away")])
    row = world.run(job_pace.of, job)
    assert row["stalled"] is stalled
    assert (row["rows_per_second"] is None) is (stalled or is_over)


def test_sql_commands_and_deadlines_have_the_same_numbers(world: World) -> None:
    job = world.job(*[10] * 100)
    commits(world, job, serial([4.0] * 20 + [1.0] * 20))
    world.do(
        "UPDATE attempts SET engine_microseconds = 1e6 * extract(epoch FROM ended_at - claimed_at)"
    )
    world.do("UPDATE jobs SET finish_by = now() + interval '60 s'")
    child = child_of(world.specs[job])
    make_ready(world, child)
    world.lease(job, owner=child.id)
    with world.ledger.transaction() as connection:  # now() is the same for all
        raw = jobs.progress(connection, job)
        shown = progress.job_as_json(connection, job, FLEET)
        [known] = job_pace.paces(connection, [job]).values()
    figures = [
        f"{figure}{bound}"
        for figure in ("rows_per_second", "eta_seconds")
        for bound in ("", "_low", "_high")
    ]
    assert {name: float(raw[name]) for name in figures} == {name: shown[name] for name in figures}
    assert known.eta is not None
    assert known.eta.likely == shown["eta_seconds"]
    late = shown["deadline"]["late_seconds"]
    assert late == pytest.approx(shown["eta_seconds"] - 60, abs=0.2)
