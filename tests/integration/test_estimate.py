"""An estimate over a ledger, and what is asked after a pilot."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.ledger import Ledger, jobs, workers
from common.ledger.batches import Lease
from common.settings import Settings
from common.spec import JobSpec, parse_spec
from common.states import JobState
from producer import estimate_picture, pilot
from producer.estimate import Estimate, as_json, estimate
from producer.pilot import Pilot
from tests.integration.fleet import commit_one, write_rows
from tests.integration.test_ledger import World, part_of

ENGINE = {"backend": "openai", "model": "M", "price_per_hour": 36.0}


@pytest.fixture
def world(ledger: Ledger) -> World:
    return World(ledger)


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., JobSpec]:
    """A spec over 1,000 rows whose prompts have 3 or 4 characters."""
    write_rows(tmp_path / "in", [("a.parquet", 1000)])

    def of(engine: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
        data = {
            "name": "asked",
            "input": {"uri": str(tmp_path / "in"), "id": "id"},
            "task": {"kind": "generate", "prompt": "{{ id }}", "sampling": {"max_tokens": 100}},
            "engine": {**ENGINE, **(engine or {})},
            "output": {"uri": str(tmp_path / "out")},
            "batch": {"rows": 100},
            **sections,
        }
        return parse_spec(data, "here")

    return of


def ran(world: World, spec: JobSpec, name: str, *, batches: int = 20, seconds: float = 2.0) -> int:
    """A job of this engine and task that took so long for each 10 rows."""
    said = spec.model_dump(mode="json", exclude={"name", "input", "output", "batch"})
    job_id = world.job(*[10] * batches, name=name, engine=said["engine"], task=said["task"])
    world.admit(job_id)
    for place, lease in enumerate(world.claim(job_id)):
        commit(world, lease, seconds * (0.5 if place % 2 else 1.5))
    return job_id


def commit(world: World, lease: Lease, seconds: float) -> None:
    part = dataclasses.replace(part_of(lease), engine_microseconds=round(seconds * 1e6))
    with world.ledger.transaction() as connection:
        commit_one(connection, lease, part)


def said(made: Estimate) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(estimate_picture.picture(made))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_ledger_it_says_what_is_not_known(spec: Callable[..., JobSpec]) -> None:
    made = estimate(spec(), Settings(), None)
    assert (made.rows, made.batches, made.prompts.is_guess) == (1000, 10, True)
    assert made.measured is made.cost is made.seconds is None
    assert "anything up to max_tokens" in made.output_source
    shown = said(made)
    assert "not measured" in shown
    assert "0 to 100 tokens a row" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_speed_answers_and_workers_come_from_the_ledger(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    """Ten rows take 2 s of an engine and 5 output tokens; two children live."""
    wanted = spec()
    ran(world, wanted, "before")
    for slot in range(2):
        child = workers.Child(f"w{slot}", "s", "default", slot, "h", 1, wanted.engine_key)
        world.run(workers.register, child)
    made = estimate(wanted, Settings(), world.ledger)
    assert made.measured is not None
    assert made.measured.pace is not None
    assert made.measured.pace.middle == pytest.approx(5)
    assert made.output_tokens is not None
    assert made.output_tokens.middle == pytest.approx(0.5)
    assert made.engine_seconds is not None
    assert made.engine_seconds.middle == pytest.approx(200)
    assert made.engine_seconds.low < 200 < made.engine_seconds.high
    assert made.seconds is not None
    assert made.seconds.middle == pytest.approx(100)
    assert made.cost is not None
    assert made.cost.middle == pytest.approx(2)
    shown = said(made)
    assert "2, living in the pool default" in shown
    assert "job 1 with this engine" in shown
    assert estimate(wanted, Settings(), world.ledger, workers=10).seconds == made.seconds.times(0.2)


def test_another_task_of_the_engine_tells_its_speed_and_not_its_answers(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    ran(world, spec(), "before")
    other = spec(task={"kind": "generate", "prompt": "other {{ id }}"})
    made = estimate(other, Settings(), world.ledger)
    assert made.measured is not None
    assert made.measured.source == "job 1 with this engine, of another task"
    assert made.output_tokens is not None
    assert (made.output_tokens.low, made.output_tokens.middle) == (0, None)


def test_another_pool_another_model_and_too_few_commits_tell_nothing_or_say_so(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    ran(world, spec(), "before", batches=2)
    assert estimate(spec(pool="large"), Settings(), world.ledger).measured is None
    assert estimate(spec({"model": "N"}), Settings(), world.ledger).measured is None
    made = estimate(spec(), Settings(), world.ledger)
    assert any("too few commits" in note for note in made.notes)


def test_rate_limits_bound_the_time_and_a_budget_that_is_too_small_is_said(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    ran(world, spec({"requests_per_minute": 60}), "before")
    made = estimate(
        spec({"requests_per_minute": 60}, limits={"budget": 1}),
        Settings(),
        world.ledger,
        workers=100,
    )
    assert made.seconds is not None
    assert made.seconds.low == made.seconds.high == 1000
    limits = {"requests_per_minute": 6_000, "tokens_per_minute": 60_000}
    unknown = estimate(spec(limits), Settings(), world.ledger)
    assert unknown.measured is None
    other = spec(limits, task={"kind": "generate", "prompt": "{{ text }}"})
    ran(world, other, "limited")
    task = {"kind": "generate", "prompt": "other {{ id }}", "sampling": {"max_tokens": 900}}
    bounded = estimate(spec(limits, task=task), Settings(), world.ledger, workers=100)
    assert bounded.seconds is not None
    assert bounded.seconds.middle is None
    assert bounded.seconds.high > 900
    assert set(as_json(bounded)["finished_at"]) == {"low", "high"}
    assert any("rate limits alone take 0:16:40" in note for note in made.notes)
    assert any("limits.budget 1 is not enough" in note for note in made.notes)


@pytest.mark.parametrize(("answer", "code"), [("y", None), ("n", 3)])
def test_after_a_pilot_somebody_is_asked(
    world: World,
    spec: Callable[..., JobSpec],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int | None,
) -> None:
    job = finished(world, spec(), failing=0)
    monkeypatch.setattr("builtins.input", lambda *_: answer)
    assert decided(world, spec(), job, Pilot(10, agreed=False), interactive=True) == code


def test_a_pilot_that_fails_too_often_ends_it_whatever_was_agreed(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    good, bad = (finished(world, spec(), failing=failing) for failing in (5, 6))
    assert decided(world, spec(), good, Pilot(10, agreed=True)) is None
    assert decided(world, spec(), bad, Pilot(10, agreed=True)) == 3
    assert decided(world, spec(), good, Pilot(10, agreed=False)) == 3


def finished(world: World, spec: JobSpec, failing: int) -> jobs.Job:
    """A completed job of ten rows."""
    job_id = world.job(10, name=f"pilot-{failing}")
    world.commit(world.lease(job_id), errors=range(failing))
    assert world.finish(job_id) is JobState.COMPLETED
    found = world.run(jobs.get, job_id)
    assert found is not None
    return found


def decided(
    world: World, spec: JobSpec, job: jobs.Job, first: Pilot, *, interactive: bool = False
) -> int | None:
    made = estimate(spec, Settings(), world.ledger)
    console = Console(file=io.StringIO(), force_interactive=interactive)
    return pilot._decided(world.ledger, spec, job, made, console, first)
