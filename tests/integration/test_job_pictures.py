"""What reapers note of a job's life: whose turn it is, what a look finds, and what becomes of it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nightshift.common.ledger.jobs import jobs, pictures
from nightshift.common.states import JobState
from nightshift.producer.pictures import record
from nightshift.producer.pictures.lanes import Lanes
from nightshift.producer.pictures.series import MOST_POINTS, Point
from tests.support.reaper import OneReaper
from tests.support.world import World, child_of, make_ready


@pytest.fixture(autouse=True)
def no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are seen as soon as they have ended, and a turn rests for no time."""
    monkeypatch.setattr(record, "LAG_SECONDS", 0.0)
    monkeypatch.setattr(record, "REST_TIMES", 0)


def due(world: World) -> None:
    """The pause of every open picture is over."""
    world.do("UPDATE job_pictures SET next_at = now() WHERE next_at IS NOT NULL")


def look(world: World) -> int:
    """Every look that is due; how many there were."""
    looks = 0
    while record.record(world.ledger, threading.Event()):
        looks += 1
    return looks


def picture(world: World, job: int) -> Any:
    return world.ask("SELECT * FROM job_pictures WHERE job_id = %s", job)[0]


def points(world: World, job: int) -> list[Point]:
    return [Point(*each) for each in picture(world, job).series]


def cells(world: World, job: int) -> list[list[int]]:
    found: list[list[int]] = picture(world, job).map["cells"]
    return found


def bars(world: World, job: int) -> list[tuple[str, int, int]]:
    """Kind, batches and rows of each bar."""
    kept = Lanes.of_json(picture(world, job).lanes)
    return [(bar.kind, bar.batches, bar.rows) for found in kept.bars.values() for bar in found]


def test_commits_write_nothing_and_a_round_writes_one_point(world: World) -> None:
    job = world.job(10, 10)
    before = picture(world, job)
    world.commit(world.lease(job), errors=[2, 3])
    assert picture(world, job) == before
    assert before.series == []
    assert look(world) == 1
    [point] = points(world, job)
    assert point[1:] == (20, 8, 2, 7, 0, 5, 0)
    assert look(world) == 0, "the pause between two looks is not over"
    assert picture(world, job).told_at is not None


def test_tokens_of_caches_and_thoughts_are_those_that_children_spent(world: World) -> None:
    job = world.job(10)
    world.do(
        "INSERT INTO job_spending (job_id, worker_id, engine_microseconds, rows_run, prompt_tokens, "
        "output_tokens, cached_tokens, reasoning_tokens) "
        "SELECT %s, 'w-' || n, 0, 1, 100, 50, 40, 20 FROM generate_series(1, 2) n",
        job,
    )
    look(world)
    assert points(world, job)[-1][4:] == (200, 80, 100, 40)


def test_a_lease_becomes_a_bar_once(world: World) -> None:
    job = world.job(10, 20, 30)
    child = child_of(world.specs[job])
    make_ready(world, child)
    world.commit(world.lease(job, owner=child.id))
    look(world)
    assert bars(world, job) == [("d", 1, 10), ("o", 0, 0)]
    world.fail(world.lease(job, owner=child.id))
    due(world)
    look(world)
    due(world)
    look(world)
    assert sorted(bars(world, job)) == [("d", 1, 10), ("f", 1, 0), ("o", 0, 0)]
    kept = Lanes.of_json(picture(world, job).lanes)
    assert list(kept.bars) == [("host", 1)]


def test_leases_beyond_what_one_look_reads_come_with_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job(*[1] * 7)
    for lease in [world.lease(job) for _ in range(7)]:
        world.commit(lease)
    world.finish(job)
    monkeypatch.setattr(record, "MOST_LEASES", 3)
    look(world)
    assert picture(world, job).next_at is not None, "the last look is not whole"
    for _ in range(5):
        due(world)
        look(world)
    assert bars(world, job) == [("d", 1, 1)] * 7
    assert picture(world, job).next_at is None


def test_the_map_says_what_became_of_each_piece_of_the_dataset(world: World) -> None:
    job = world.job(10, 10, 10, 10)
    done, dead, _ = world.lease(job), world.lease(job), world.lease(job)
    world.commit(done, errors=[0, 1])
    world.fail(dead, permanent=True, most=1)
    look(world)
    found = {cell: counts for cell, *counts in cells(world, job)}
    # Rows, done, failed, at work.
    assert found == {0: [10, 8, 2, 0], 1: [10, 0, 10, 0], 2: [10, 0, 0, 10], 3: [10, 0, 0, 0]}


@pytest.mark.parametrize("batches", [1, 399, 400, 401, 1000])
def test_a_map_has_no_more_cells_than_the_most(world: World, batches: int) -> None:
    job = world.job(*[2] * batches)
    look(world)
    found = cells(world, job)
    assert len(found) <= pictures.MOST_CELLS
    assert sum(counts[1] for counts in found) == 2 * batches
    assert batches / picture(world, job).map["width"] <= pictures.MOST_CELLS


def test_a_job_without_a_row_has_a_point_and_nothing_else(world: World) -> None:
    job = world.job()
    look(world)
    assert points(world, job)[0][1:] == (0,) * 7
    assert cells(world, job) == []
    assert bars(world, job) == []


def test_a_job_that_closes_has_a_last_point_and_is_left_alone(world: World) -> None:
    job = world.job(10)
    look(world)
    world.commit(world.lease(job))
    assert world.finish(job) is JobState.COMPLETED
    assert look(world) == 1, "at once, however long its pause was"
    assert points(world, job)[-1].done == 10
    due(world)
    assert look(world) == 0


def test_a_job_that_came_and_went_between_two_turns_has_its_picture(world: World) -> None:
    job = world.job(10)
    world.commit(world.lease(job))
    world.finish(job)
    assert look(world) == 1
    assert points(world, job)[0].done == 10
    assert bars(world, job) == [("d", 1, 10)]


def test_a_retry_goes_on_in_the_same_picture_and_no_rate_is_negative(world: World) -> None:
    job = world.job(10)
    world.commit(world.lease(job), errors=range(5))
    world.finish(job)
    look(world)
    world.retry(job)
    assert look(world) == 1
    assert points(world, job)[-1].failed == 0, "they run again"
    world.commit(world.lease(job))
    world.finish(job)
    look(world)
    found = points(world, job)
    assert (found[0].failed, found[-1].failed, found[-1].done) == (5, 0, 10)
    assert picture(world, job).next_at is None


def test_a_job_that_is_opened_again_during_its_last_look_is_due_at_once(world: World) -> None:
    job = world.job(10)
    world.commit(world.lease(job), errors=[1])
    world.finish(job)
    turn = world.run(pictures.take)
    with world.ledger.transaction() as connection:
        facts = pictures.facts(connection, job)
        assert facts is not None
        assert facts["is_closed"]
        world.retry(job)
        assert not pictures.write(
            connection, turn, series=[], lanes=None, cells={}, seen_until=0, pause=None
        )
    assert look(world) == 1
    assert picture(world, job).next_at is not None


def test_reapers_share_the_jobs_and_each_look_is_made_once(world: World) -> None:
    made = [world.job(5, name=f"job-{number}") for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        looks = list(pool.map(lambda _: look(world), range(4)))
    assert sum(looks) == len(made)
    assert all(len(points(world, job)) == 1 for job in made)


def test_the_job_that_has_waited_for_longest_comes_first(world: World) -> None:
    first, second = world.job(5, name="a"), world.job(5, name="b")
    world.do("UPDATE job_pictures SET next_at = now() - interval '1 s' WHERE job_id = %s", second)
    assert [world.run(pictures.take).job_id for _ in range(2)] == [second, first]
    assert world.run(pictures.take) is None


def test_a_look_that_was_cut_off_is_made_again_and_writes_nothing_late(world: World) -> None:
    job = world.job(5)
    late = world.run(pictures.take)
    assert world.run(pictures.take) is None
    due(world)
    assert look(world) == 1
    with world.ledger.transaction() as connection:
        assert not record.look(connection, late, 0.0)
    assert len(points(world, job)) == 1


def test_a_long_life_has_no_more_points_than_the_most(world: World) -> None:
    job = world.job(10)
    world.do(
        "UPDATE job_pictures SET series = (SELECT jsonb_agg(jsonb_build_array("
        "n, 10, n / 100, 0, 0, 0, 0, 0) ORDER BY n) FROM generate_series(1, %s) n)",
        MOST_POINTS,
    )
    look(world)
    found = points(world, job)
    assert len(found) == MOST_POINTS
    assert (found[0].at, found[-1].done) == (1, 0)


def test_a_clock_that_was_set_back_stops_no_picture(world: World) -> None:
    job = world.job(10)
    look(world)
    world.do(
        "UPDATE job_pictures SET told_at = now() + interval '1 day', next_at = now() + interval '1 day', "
        "seen_until = now() + interval '1 day', series = jsonb_set(series, '{0,0}', "
        "to_jsonb(extract(epoch FROM now()) + 86400))"
    )
    world.commit(world.lease(job))
    assert look(world) == 1
    [point] = points(world, job)
    assert point.done == 10
    assert point.at < world.ask("SELECT extract(epoch FROM now())::float8 AS now")[0].now
    due(world)
    world.do("UPDATE attempts SET ended_at = now()")
    look(world)
    assert bars(world, job) == [("d", 1, 10)]


def test_a_job_that_grows_has_its_new_rows_in_points_and_map(world: World) -> None:
    job = world.job(10)
    look(world)
    world.do(
        "INSERT INTO batches (job_id, seq, file_index, rows, row_count) "
        "SELECT %s, n, 0, int8multirange(int8range(n * 10, n * 10 + 10)), 10 "
        "FROM generate_series(1, 900) n",
        job,
    )
    due(world)
    look(world)
    assert [point.total for point in points(world, job)] == [10, 9010]
    assert len(cells(world, job)) <= pictures.MOST_CELLS


def test_the_duty_is_beside_the_rounds(world: World) -> None:
    reaper = OneReaper(world.ledger)
    job = world.job(10)
    reaper.round()
    assert points(world, job) == []
    assert reaper.failed == []
    reaper.close()


def test_a_job_that_is_gone_or_being_deleted_is_left_alone(world: World) -> None:
    job = world.job(10)
    turn = world.run(pictures.take)
    world.do("INSERT INTO deletions (job_id, output) VALUES (%s, false)", job)
    due(world)
    assert look(world) == 0
    world.do("DELETE FROM job_pictures WHERE job_id = %s", job)
    with world.ledger.transaction() as connection:
        assert not record.look(connection, turn, 0.0)


def test_the_version_of_a_picture_changes_with_each_look(world: World) -> None:
    job = world.job(10)
    seen = [world.run(pictures.version, job)]
    for _ in range(2):
        due(world)
        look(world)
        seen.append(world.run(pictures.version, job))
    assert len(set(seen)) == 3
    assert seen[0] == ""
    assert world.run(pictures.version, 99) == ""
    assert world.run(jobs.get, job) is not None
