"""What a job has spent, counted once, and the budget that stops it."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import commits, leasing
from nightshift.common.ledger.batches.records import Lease, Part, Tokens
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.ledger.jobs.spending import Spent
from nightshift.common.spec import STORED, parse_spec
from nightshift.common.states import JobState
from nightshift.producer.cli.app import app
from tests.integration.test_retry import Site, moody
from tests.support.fleet import commit_one
from tests.support.world import World, part_of

PRICED = {
    "backend": "openai",
    "model": "M",
    "price_per_hour": 3.6,
    "price_per_million_prompt_tokens": 100.0,
    "price_per_million_output_tokens": 1000.0,
}
"""A second is 0.001, as is a prompt of ten tokens, and an answer of one."""


def priced(world: World, *sizes: int, budget: float | None = None, name: str = "priced") -> int:
    limits = {} if budget is None else {"budget": budget}
    task = {"kind": "generate", "prompt": "{{ text }}"}
    return world.job(*sizes, name=name, engine=PRICED, task=task, limits=limits)


def commit(
    world: World, lease: Lease, *, seconds: float, tokens: tuple[int, int] = (7, 5), **more: Any
) -> None:
    """Commits with part_of's tokens in the part, and these for the rows that ran."""
    part = dataclasses.replace(
        part_of(lease, **more),
        engine_microseconds=round(seconds * 1e6),
        spent=Tokens(*tokens),
    )
    with world.ledger.transaction() as connection:
        commit_one(connection, lease, part)
    compute(world, lease, len(lease.todo), seconds=seconds, tokens=tokens)


def compute(
    world: World,
    lease: Lease,
    rows: int,
    *,
    seconds: float,
    tokens: tuple[int, int],
    opened: int = 0,
) -> None:
    """A child reports that it has run more rows of a job; `opened` of all are still leased."""
    own = text("SELECT * FROM job_spending WHERE job_id = :job AND worker_id = :owner")
    with world.ledger.transaction() as connection:
        found = connection.execute(own, {"job": lease.job_id, "owner": lease.owner}).one_or_none()
        old = found or Spent(lease.job_id, 0, 0, 0, 0)
        spent = Spent(
            lease.job_id,
            old.engine_microseconds + round(seconds * 1e6),
            old.rows_run + rows,
            old.prompt_tokens + tokens[0],
            old.output_tokens + tokens[1],
            opened,
        )
        spending.report(connection, lease.owner, [spent])


def cost(world: World, job_id: int) -> Any:
    return world.run(spending.cost, job_id)


def test_a_job_costs_its_engine_time_and_its_tokens(world: World) -> None:
    job_id = priced(world, 4, 4)
    assert cost(world, job_id)["cost"] == 0
    first, second = world.lease(job_id), world.lease(job_id, owner="worker-2")
    commit(world, first, seconds=2)
    commit(world, second, seconds=3.5)
    found = cost(world, job_id)
    assert found["engine_seconds"] == 5.5
    assert (found["rows_run"], found["prompt_tokens_spent"], found["output_tokens_spent"]) == (
        8,
        14,
        10,
    )
    assert float(found["cost"]) == pytest.approx(0.0055 + 0.0014 + 0.010)
    progress = world.run(jobs.progress, job_id)
    assert (progress["engine_seconds"], progress["cost"]) == (5.5, found["cost"])


def test_without_a_price_there_is_time_and_no_cost(world: World) -> None:
    job_id = world.job(4)
    commit(world, world.lease(job_id), seconds=1)
    assert (cost(world, job_id)["engine_seconds"], cost(world, job_id)["cost"]) == (1, None)


def test_rows_that_run_again_are_paid_again(world: World) -> None:
    job_id = priced(world, 4)
    commit(world, world.lease(job_id), seconds=2, errors=[1, 2])
    world.finish(job_id)
    assert world.retry(job_id).rows == 2
    # Two of the four rows run: the part has the tokens of all.
    commit(world, world.lease(job_id), seconds=1, tokens=(4, 2))
    found = cost(world, job_id)
    assert (found["engine_seconds"], found["rows_run"]) == (3, 6)
    assert (found["prompt_tokens_spent"], found["output_tokens_spent"]) == (11, 7)
    progress = world.run(jobs.progress, job_id)
    assert (progress["prompt_tokens"], progress["output_tokens"]) == (7, 5)


def test_a_commit_that_comes_too_late_spends_nothing(world: World) -> None:
    job_id = priced(world, 4)
    lost = world.lease(job_id, seconds=-1)
    world.reap()
    commit(world, world.lease(job_id, owner="worker-2"), seconds=2)
    late = dataclasses.replace(part_of(lost), engine_microseconds=5_000_000)
    with world.ledger.transaction() as connection:
        assert not commits.commit(connection, [(lost, late)])
    assert cost(world, job_id)["engine_seconds"] == 2


def test_what_was_computed_is_paid_whatever_becomes_of_it(world: World) -> None:
    job_id = priced(world, 4)
    lease = world.lease(job_id)
    compute(world, lease, 3, seconds=1, tokens=(30, 2))
    world.run(leasing.release, [lease])
    found = cost(world, job_id)
    assert (found["engine_seconds"], found["rows_run"]) == (1, 3)
    assert float(found["cost"]) == pytest.approx(0.001 + 0.003 + 0.002)


def test_a_report_that_comes_late_takes_nothing_back(world: World) -> None:
    job_id = priced(world, 4)
    lease = world.lease(job_id)
    early, late = Spent(job_id, 10, 1, 7, 5), Spent(job_id, 20, 2, 14, 10)
    for each in (late, early, late):
        world.run(spending.report, lease.owner, [each])
    found = cost(world, job_id)
    assert (found["rows_run"], found["prompt_tokens_spent"], found["output_tokens_spent"]) == (
        2,
        14,
        10,
    )


def test_a_child_counts_the_time_in_which_it_held_batches_once(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A real worker with many batches at once, twice, and idle in between."""
    site = Site(ledger, tmp_path)
    site.submit(rows=40, batch=4)

    def slow(rows: Any) -> Any:
        time.sleep(0.01 * len(rows))
        return moody()(rows)

    began = time.monotonic()
    site.run(slow, most=5)
    busy = time.monotonic() - began
    time.sleep(0.5)
    began = time.monotonic()
    site.run(slow)
    busy += time.monotonic() - began
    with ledger.transaction() as connection:
        found = spending.cost(connection, site.job_id)
    assert found["rows_run"] == 40
    [row] = site.ask(
        "SELECT sum(engine_microseconds) / 1e6 AS seconds, sum(row_count) AS rows FROM attempts"
    )
    # What is reported is looked up a moment after what the attempts account for.
    assert 0.4 <= float(row.seconds) <= float(found["engine_seconds"]) <= busy
    assert row.rows == 40


# ---------------------------------------------------------------- the budget


def test_a_budget_without_a_price_is_refused() -> None:
    with pytest.raises(BadInput, match=r"limits.budget needs a price: give engine.price_per_hour"):
        parse_spec(
            {
                "name": "free",
                "input": {"uri": "rows.parquet"},
                "task": {"kind": "function"},
                "engine": {"backend": "function", "callable": "rules:shout"},
                "output": {"uri": "out"},
                "limits": {"budget": 1},
            },
            "here",
        )


def held(world: World) -> list[int]:
    """The jobs that a round of the reaper pauses."""
    return [
        job_id
        for job_id, why in world.run(spending.over_budget)
        if world.run(spending.hold, job_id, why)
    ]


def test_a_job_pauses_when_what_is_under_way_would_pass_its_budget(world: World) -> None:
    """A batch costs 0.0037 + 0.001 a second: 0.0067 with 1 s. Two under way and one done: 0.0201."""
    job_id = priced(world, 4, 4, 4, 4, budget=0.02)
    other = priced(world, 4, budget=0.02, name="other")
    leases = [world.lease(job_id) for _ in range(2)]
    assert held(world) == [], "before the first outcome nothing is known"
    commit(world, leases[0], seconds=1)
    leases = [leases[1], world.lease(job_id)]
    assert held(world) == [job_id]
    job = world.run(jobs.get, job_id)
    assert job.state is JobState.PAUSED
    assert job.reason == (
        "0.0067 is spent and about 0.013 under way, which reaches limits.budget 0.020: "
        "a larger one lets the job continue"
    )
    assert world.run(jobs.get, other).state is JobState.RUNNING
    assert world.claim(job_id) == []
    for lease in leases:
        commit(world, lease, seconds=1)
    assert float(cost(world, job_id)["cost"]) == pytest.approx(0.0201)


def test_rows_with_an_outcome_are_not_under_way(world: World) -> None:
    """Ten rows cost 0.01: all that a job will cost, though all of them are leased still."""
    job_id = priced(world, 10, budget=0.011)
    lease = world.lease(job_id)
    compute(world, lease, 9, seconds=0, tokens=(90, 0), opened=9)
    assert held(world) == []
    compute(world, lease, 0, seconds=0, tokens=(0, 0), opened=5)
    assert held(world) == [job_id], "five more rows are to run, and would cost 0.005"


def test_rows_of_a_child_that_ended_run_again(world: World) -> None:
    job_id = priced(world, 10, budget=0.011)
    lease = world.lease(job_id)
    child = workers.Child(lease.owner, "s", "default", 0, "here", 1, world.specs[job_id].engine_key)
    world.run(workers.register, child)
    compute(world, lease, 9, seconds=0, tokens=(90, 0), opened=9)
    assert held(world) == []
    world.run(partial(workers.end, died="killed"), lease.owner)
    world.lease(job_id, owner="worker-2")
    assert held(world) == [job_id]


def test_a_job_without_money_is_told_by_what_was_computed(world: World) -> None:
    job_id, other = priced(world, 10, budget=0.005), priced(world, 10, name="other")
    lease = world.lease(job_id)
    compute(world, lease, 4, seconds=0, tokens=(40, 0))
    assert world.run(spending.spent_out, [job_id, other]) == []
    compute(world, lease, 1, seconds=0, tokens=(10, 0))
    ((found, why),) = world.run(spending.spent_out, [job_id, other])
    assert found == job_id
    assert why.startswith("0.0050 is spent, which reaches limits.budget 0.0050")
    assert world.run(spending.hold_spent_out, found) == why
    assert world.run(jobs.get, job_id).state is JobState.PAUSED
    assert world.run(spending.hold_spent_out, found) is None, "a job is paused once"
    world.run(spending.set_budget, job_id, 1.0)
    world.run(jobs.resume, job_id)
    assert world.run(spending.hold_spent_out, found) is None, "there is money again"


def test_of_two_reapers_one_pauses_a_job(world: World) -> None:
    job_id = priced(world, 4, 4, budget=0.005)
    commit(world, world.lease(job_id), seconds=1)
    ((over, why),) = world.run(spending.over_budget)
    assert [world.run(spending.hold, over, why) for _ in range(2)] == [True, False]


def test_rows_that_run_again_are_not_taken_for_dear_ones(world: World) -> None:
    """After a retry of every row none is done; what one costs is known all the same."""
    job_id = priced(world, 4, budget=0.03)
    commit(world, world.lease(job_id), seconds=1, errors=[0, 1, 2, 3])
    world.finish(job_id)
    world.retry(job_id)
    world.lease(job_id)
    assert held(world) == []


@pytest.fixture
def nightshift(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_resume_wants_a_larger_budget_and_keeps_it(
    world: World, nightshift: Callable[..., Result]
) -> None:
    job_id = priced(world, 4, 4, budget=0.005)
    commit(world, world.lease(job_id), seconds=1)
    assert held(world) == [job_id]
    refused = nightshift("resume", str(job_id))
    assert refused.exit_code == 2
    assert (
        f"job {job_id} has spent 0.0067 of limits.budget 0.0050: a larger one lets the job continue: "
        f"`nightshift resume {job_id} --budget MORE`"
    ) in refused.stderr
    for too_little in ("0.006", "0", "nan"):
        assert nightshift("resume", str(job_id), "--budget", too_little).exit_code == 2
    assert nightshift("resume", str(job_id), "--budget", "0.5").exit_code == 0
    job = world.run(jobs.get, job_id)
    assert (job.state, job.spec.limits.budget) == (JobState.RUNNING, 0.5)
    assert job.spec.identity == world.specs[job_id].identity
    assert held(world) == []


def test_status_shows_cost_where_there_is_a_price(
    world: World, nightshift: Callable[..., Result]
) -> None:
    job_id = priced(world, 4, 4)
    free = world.job(4, name="free")
    commit(world, world.lease(job_id), seconds=1)
    assert "cost 0.0067" in nightshift("status", str(job_id)).stdout
    assert "cost" not in nightshift("status", str(free)).stdout
    assert "0.0067" in nightshift("jobs").stdout
    said = nightshift("status", str(job_id), "--json").stdout
    assert '"cost": 0.0067' in said
    assert '"engine_seconds": 1.0' in said


def test_a_price_that_changes_is_no_other_job_and_no_other_engine() -> None:
    def spec(price: float) -> Any:
        engine = {**PRICED, "price_per_hour": price}
        task = {"kind": "generate", "prompt": "{{ text }}"}
        return parse_spec(
            {
                "name": "x",
                "input": {"uri": "rows.parquet"},
                "task": task,
                "engine": engine,
                "output": {"uri": "out"},
                "limits": {"budget": price},
            },
            "here",
        )

    assert spec(1).identity == spec(2).identity
    assert spec(1).engine_key == spec(2).engine_key


# ---------------------------------------------------------------- what engines have done


def test_jobs_with_the_same_engine_tell_what_they_did(world: World) -> None:
    job_id, other = priced(world, 4, 4), priced(world, 4, name="newer")
    unlike = world.job(4, name="unlike")
    for lease in (world.lease(job_id), world.lease(job_id), world.lease(other)):
        commit(world, lease, seconds=2)
    commit(world, world.lease(unlike), seconds=2)
    spec = world.specs[job_id]
    task = spec.task.model_dump_json(by_alias=True, context=STORED)
    found = world.run(spending.similar_jobs, "default", spec.engine_key, task)
    assert [(job.job, job.rows_run, job.engine_seconds) for job in found] == [
        (other, 4, 2.0),
        (job_id, 8, 4.0),
    ]
    assert world.run(spending.similar_jobs, "elsewhere", spec.engine_key, task) == []
    other_task = spec.task.model_copy(update={"prompt": "{{ other }}"}).model_dump_json(
        context=STORED
    )
    assert world.run(spending.similar_jobs, "default", spec.engine_key, other_task) == []
    with world.ledger.transaction() as connection:
        [only] = spending.similar_jobs(
            connection, "default", spec.engine_key, other_task, only=job_id
        )
    assert only.job == job_id
    assert world.run(spending.commits_of, [job_id]) == [(4, 2.0, 5, 1, True), (4, 2.0, 5, 1, False)]


def test_batches_of_one_transaction_are_one_commit(world: World) -> None:
    job_id = priced(world, 4, 4)
    world.admit(job_id)
    leases = world.claim(job_id)
    parts = [
        dataclasses.replace(part_of(lease), engine_microseconds=spent)
        for lease, spent in zip(leases, (3_000_000, 0), strict=True)
    ]
    with world.ledger.transaction() as connection:
        commits.commit(connection, list(zip(leases, parts, strict=True)))
    assert world.run(spending.commits_of, [job_id]) == [(8, 3.0, 10, 2, True)]


def test_a_part_spends_its_own_tokens_unless_told_otherwise() -> None:
    part = Part("p", 1, "s", 7, 5, [])
    assert part.tokens_spent == Tokens(7, 5)
    assert dataclasses.replace(part, spent=Tokens(1, 2)).tokens_spent == Tokens(1, 2)
