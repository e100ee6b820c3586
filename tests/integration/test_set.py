"""`nightshift set`: what waits follows within a round of the reaper, what runs ends where it is."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.errors import BadInput
from nightshift.common.ledger import audit_log
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import pool_plans
from nightshift.common.ledger.jobs import job_changes, jobs, spending
from nightshift.producer.cli.app import app
from tests.support.fleet import Fleet, function_spec, output_ids, wait_until, write_rows
from tests.support.world import World, child_of, make_ready

MODEL = {"backend": "vllm", "model": "org/model", "revision": "main", "price_per_hour": 2}
GENERATE = {"task": {"kind": "generate", "prompt": "{{ text }}"}, "engine": MODEL}


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def queued(world: World, job_id: int) -> list[tuple[str, int]]:
    """Pool and priority of each queued batch."""
    query = "SELECT queue, priority FROM batches WHERE job_id = %s AND state = 'queued'"
    return [(row.queue.split(".")[0], row.priority) for row in world.ask(query, job_id)]


def settle(world: World) -> int:
    """What a round of the reaper does; how many batches went back."""
    return sum(iter(lambda: int(world.run(job_changes.take_back, 2)), 0))


def test_one_line_says_what_changed_and_the_log_who_did_it(
    world: World, nightshift: Callable[..., Result]
) -> None:
    job_id = world.job(1, 1, **GENERATE)
    said = nightshift("set", "shout", "--priority", "7", "--weight", "2.5", "--budget", "40")
    assert said.stdout == (
        f"job {job_id} (shout): priority 0 -> 7, weight 1 -> 2.5, budget none -> 40\n"
    )
    again = nightshift("set", "shout", "--priority", "7")
    assert again.stdout == f"job {job_id} (shout): nothing changed, the job has these values\n"
    machine = json.loads(nightshift("set", "shout", "--max-parallel", "3", "--json").stdout)
    assert machine["changed"] == {"max_parallel": {"old": None, "new": 3}}
    assert [row["detail"] for row in world.run(audit_log.of_job, job_id)] == [
        {"priority": [0, 7], "weight": [1, 2.5], "budget": [None, 40]},
        {"max_parallel": [None, 3]},
    ]
    job = world.run(jobs.get, job_id)
    assert (job.spec.priority, job.spec.weight, job.spec.limits.budget) == (7, 2.5, 40)
    assert job.spec.limits.max_parallel == 3


def test_a_budget_that_is_spent_already_says_what_follows(
    world: World, nightshift: Callable[..., Result]
) -> None:
    job_id = world.job(1, 1, **GENERATE)
    hours = spending.Spent(job_id, 10 * 3600 * 10**6, 10, 0, 0)
    world.run(spending.report, "w-1", [hours])
    said = nightshift("set", "shout", "--budget", "5").stdout
    reached = "20.00 is spent, which reaches limits.budget 5.00: a larger one lets the job continue"
    assert f"budget none -> 5; the job pauses within a second, {reached}" in said
    assert "is spent" not in nightshift("set", "shout", "--budget", "50").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say what changes, such as --priority 10"),
        (["--priority", "high"], "the job cannot be changed: priority"),
        (["--budget", "4"], "the job cannot be changed: limits.budget needs a price"),
        (["--revision", "v2"], "--revision is for models; the engine is function"),
    ],
)
def test_what_cannot_be_set_is_one_sentence(
    world: World, nightshift: Callable[..., Result], arguments: list[str], sentence: str
) -> None:
    world.job(1)
    said = nightshift("set", "shout", *arguments)
    assert (said.exit_code, said.stderr.startswith(f"nightshift: {sentence}")) == (2, True)


def test_nothing_of_a_cancelled_job_changes(
    world: World, nightshift: Callable[..., Result]
) -> None:
    job_id = world.job(1)
    world.run(jobs.cancel, job_id)
    said = nightshift("set", "shout", "--priority", "3")
    assert (said.exit_code, "is cancelled, which is final" in said.stderr) == (2, True)


def test_queued_batches_follow_in_pieces_and_leased_ones_end_where_they_are(
    world: World, nightshift: Callable[..., Result]
) -> None:
    job_id = world.job(*[1] * 9)
    other = world.job(1, 1, name="other")
    world.admit(job_id)
    world.admit(other)
    [lease] = world.claim(job_id, most=1)
    assert nightshift("set", "shout", "--pool", "big", "--priority", "5").exit_code == 0
    assert settle(world) == 8
    assert queued(world, job_id) == []
    assert queued(world, other) == [("default", 0)] * 2, "another job's batches stay"
    assert world.admit(job_id) == 8
    assert queued(world, job_id) == [("big", 5)] * 8
    assert settle(world) == 0, "what was queued since is as it should be"
    world.commit(lease)
    assert world.rows(job_id) == (1, 0)


def test_an_admission_that_read_the_old_pool_is_taken_back(world: World) -> None:
    """The admission began before the change and commits after it."""
    job_id = world.job(1, 1, 1)

    def move(connection: Connection) -> None:
        job_changes.change(connection, job_id, {"pool": "big"})

    world.run(move)
    world.ask(
        "UPDATE batches SET state = 'queued', priority = 0, rank = %s,"
        " queue = 'default.' || (SELECT engine_key FROM jobs) WHERE job_id = %s RETURNING id",
        world.run(dispatch.next_rank) + 1000,
        job_id,
    )
    assert settle(world) == 3
    assert world.states(job_id) == ["pending"] * 3


def test_a_job_that_changes_again_while_a_reaper_settles_it_is_settled_again(
    world: World, frozen: Connection
) -> None:
    """Else its queued batches would stay in the queue of a pool without workers, for ever."""
    job_id = world.job(1, 1, 1)
    world.run(job_changes.change, job_id, {"priority": "5"})
    world.admit(job_id)
    job_changes.change(frozen, job_id, {"pool": "big"})
    assert world.run(job_changes.take_back, 10) == 0, "it waits for no change"
    frozen.commit()
    assert settle(world) == 3
    assert world.states(job_id) == ["pending"] * 3
    assert world.ask("SELECT requeue_below FROM jobs")[0].requeue_below is None


def test_a_job_that_changed_after_a_reaper_read_it_is_settled_again(world: World) -> None:
    job_id = world.job(1, 1, 1)
    world.run(job_changes.change, job_id, {"priority": "5"})
    world.admit(job_id)
    [read] = world.run(lambda connection: connection.execute(job_changes.UNSETTLED).all())
    world.run(job_changes.change, job_id, {"pool": "big"})
    world.run(
        lambda connection: connection.execute(
            job_changes.SETTLE, {"id": read.id, "below": read.requeue_below}
        )
    )
    assert settle(world) == 3
    assert world.states(job_id) == ["pending"] * 3


def test_a_batch_that_a_claim_holds_is_left_to_the_claim_and_looked_at_again(
    world: World, frozen: Connection
) -> None:
    job_id = world.job(1, 1, 1)
    world.admit(job_id)
    frozen.exec_driver_sql(
        "SELECT id FROM batches WHERE id = (SELECT min(id) FROM batches) FOR UPDATE"
    )
    world.run(job_changes.change, job_id, {"priority": "5"})
    assert world.run(job_changes.take_back, 10) == 2
    assert world.run(job_changes.take_back, 10) == 0
    assert world.ask("SELECT requeue_below FROM jobs")[0].requeue_below is not None
    frozen.rollback()
    assert settle(world) == 1
    assert world.ask("SELECT requeue_below FROM jobs")[0].requeue_below is None


def test_a_lower_max_parallel_takes_back_what_is_queued_above_it(world: World) -> None:
    job_id = world.job(*[1] * 6)
    world.admit(job_id)
    world.run(job_changes.change, job_id, {"max_parallel": "2"})
    assert settle(world) == 6
    [job] = world.run(dispatch.open_jobs)
    assert (job.pending, job.max_parallel) == (6, 2)


def test_weight_reaches_the_plan_and_the_admission(world: World) -> None:
    job_id = world.job(4, 4)
    world.run(job_changes.change, job_id, {"weight": "3"})
    assert [each.weight for each in world.run(pool_plans.demand, "default")] == [3]
    assert [each.weight for each in world.run(dispatch.open_jobs)] == [3]
    assert world.job(1, name="heavy", weight=4)
    assert sorted(each.weight for each in world.run(dispatch.open_jobs)) == [3, 4]


def test_a_job_in_another_pool_keeps_the_revision_of_its_rows(world: World) -> None:
    job_id = world.job(1, 1, **GENERATE)
    make_ready(world, child_of(world.specs[job_id]), "abc")
    world.run(job_changes.change, job_id, {"pool": "big"})
    held = "SELECT pool, revision FROM engines ORDER BY pool"
    assert [tuple(row) for row in world.ask(held)] == [("big", "abc"), ("default", "abc")]
    # Another revision is another engine, with no first load yet.
    world.run(job_changes.change, job_id, {"revision": "v2"})
    job = world.run(jobs.get, job_id)
    assert job.spec.engine_key == world.ask("SELECT engine_key FROM jobs")[0].engine_key
    assert world.ask("SELECT 1 FROM engines WHERE engine_key = %s", job.spec.engine_key) == []


@pytest.mark.slow
def test_a_job_moves_to_the_worker_of_another_pool_and_loses_no_row(fleet: Fleet) -> None:
    ids = write_rows(fleet.folder / "in", [("rows.parquet", 60)])
    spec = function_spec("moved", fleet.folder / "in", fleet.folder / "out", batch={"rows": 5})
    fleet.reaper()
    fleet.worker("--pool", "big")
    assert fleet.command("submit", str(fleet.spec(spec))).returncode == 0
    wait_until(lambda: fleet.status("moved")["batches_queued"], what="admission to a dead pool")
    said = fleet.command("set", "moved", "--pool", "big")
    assert said.stdout == "job 1 (moved): pool default -> big\n"
    # The same spec still finds the job, which stays where it was moved to.
    assert "known, " in fleet.command("submit", str(fleet.spec(spec))).stdout
    assert fleet.command("wait", "moved").returncode == 0
    assert fleet.status("moved")["pool"] == "big"
    assert output_ids(fleet.folder / "out") == ids
    assert fleet.command("verify", "moved").returncode == 0


GUIDANCE = {"structured_outputs_config": {"backend": "guidance"}}


def needs_guidance(world: World, job_id: int) -> bool:
    """A worker of the engine that the job had at its submit finds that it runs none of its rows."""
    key = world.specs[job_id].engine_key
    return bool(world.run(job_changes.change_engine, job_id, key, GUIDANCE, "not by xgrammar"))


def test_a_job_whose_engine_runs_none_of_its_rows_goes_to_another_and_its_batches_follow(
    world: World,
) -> None:
    job_id = world.job(*[1] * 4, **GENERATE)
    other = world.job(1, name="other", **GENERATE)
    world.admit(job_id)
    world.admit(other)
    world.claim(job_id, most=1)
    assert needs_guidance(world, job_id)
    job = world.run(jobs.get, job_id)
    assert job.spec.engine.args == GUIDANCE
    [moved] = world.ask("SELECT engine_key, identity, remark FROM jobs WHERE id = %s", job_id)
    assert moved.engine_key == job.spec.engine_key != world.specs[job_id].engine_key
    assert moved.remark == "not by xgrammar"
    assert settle(world) == 3
    world.admit(job_id)
    queues = {row.queue for row in world.ask("SELECT queue FROM batches WHERE state = 'queued'")}
    assert queues == {f"default.{job.spec.engine_key}", f"default.{world.specs[other].engine_key}"}
    [change] = world.run(audit_log.of_job, job_id)
    assert change["who"] == "nightshift-worker"
    assert change["detail"] == {
        "engine.args.structured_outputs_config": [None, GUIDANCE["structured_outputs_config"]]
    }


def test_only_the_first_worker_that_finds_so_changes_the_job(world: World) -> None:
    job_id = world.job(1, **GENERATE)
    assert needs_guidance(world, job_id)
    assert not needs_guidance(world, job_id)
    assert len(world.run(audit_log.of_job, job_id)) == 1
    over = world.job(1, name="over", **GENERATE)
    world.run(jobs.cancel, over)
    assert not needs_guidance(world, over)


def test_rows_of_one_job_never_come_from_two_revisions_by_a_change_of_its_engine(
    world: World,
) -> None:
    job_id = world.job(1, 1, **GENERATE)
    lease = world.lease(job_id)
    first = child_of(world.specs[job_id])
    assert make_ready(world, first, "r1") == "r1"
    world.commit(lease)
    twin = world.job(1, name="twin", **GENERATE)
    assert needs_guidance(world, twin), "none of its rows has run: any revision will do"
    key = world.run(jobs.get, twin).spec.engine_key
    make_ready(world, replace(child_of(world.specs[job_id], 2), engine_key=key), "r2")
    with pytest.raises(BadInput, match="loaded at revision r1"):
        needs_guidance(world, job_id)
