"""An estimate over a ledger, and what is asked after a pilot."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ranges import Range
from nightshift.common.row_errors import Failure
from nightshift.common.settings import Settings
from nightshift.common.spec import GenerateTask, JobSpec, parse_spec
from nightshift.common.states import JobState, RowErrorKind
from nightshift.producer.estimate import estimate_report, pilot
from nightshift.producer.estimate.estimate import Estimate, MeasuredSpeed, _estimate, estimate
from nightshift.producer.estimate.pilot import FinishedPilot
from nightshift.producer.results.sample import Sample
from nightshift.producer.submit.submit import survey
from tests.integration.test_spending import compute
from tests.support.fleet import commit_one, write_rows
from tests.support.world import World, part_of

ENGINE = {"backend": "openai", "model": "M", "price_per_hour": 36.0}

FUNCTION = {"backend": "function", "callable": "rules:loud"}


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., JobSpec]:
    """A spec over 1,000 rows whose prompts have 3 or 4 characters."""
    write_rows(tmp_path / "in", [("a.parquet", 1000)])

    def of(engine: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
        data = {
            "name": "asked",
            "input": {"uri": str(tmp_path / "in"), "id": "id"},
            "task": {"kind": "generate", "prompt": "{{ id }}", "sampling": {"max_tokens": 100}},
            "engine": FUNCTION if engine is FUNCTION else {**ENGINE, **(engine or {})},
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
    compute(world, lease, len(lease.todo), seconds=seconds, tokens=(7, 5))


def rendered(made: Estimate) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(estimate_report.render(made))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_ledger_it_says_what_is_not_known(spec: Callable[..., JobSpec]) -> None:
    made = estimate(spec(), Settings(), None)
    assert (made.rows, made.batches, made.prompts.is_guess) == (1000, 10, True)
    assert made.measured is made.cost is made.seconds is None
    assert "anything up to max_tokens" in made.output_source
    report = rendered(made)
    assert "unknown: run `estimate --pilot 200`" in report
    assert "0 to 100 tokens a row" in report
    assert max(map(len, report.splitlines())) <= 80


def test_speed_answers_and_workers_come_from_the_ledger(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    """Ten rows take 2 s of an engine and 5 output tokens, the first ones half a second less; two children live."""
    wanted = spec()
    ran(world, wanted, "before")
    for slot in range(2):
        child = workers.Child(f"w{slot}", "s", "default", slot, "h", 1, wanted.engine_key)
        world.run(workers.register, child)
    made = estimate(wanted, Settings(), world.ledger)
    assert made.measured is not None
    assert made.measured.pace is not None
    assert made.measured.pace.likely == pytest.approx(5, rel=0.05)
    assert made.output_tokens is not None
    assert made.output_tokens.likely == pytest.approx(0.5)
    assert made.engine_seconds is not None
    assert made.engine_seconds.likely == pytest.approx(200, rel=0.05)
    assert made.engine_seconds.low < 200 < made.engine_seconds.high
    assert made.seconds is not None
    assert made.seconds.likely == pytest.approx(100, rel=0.05)
    assert made.cost is not None
    assert made.cost.likely == pytest.approx(2, rel=0.05)
    report = rendered(made)
    assert "2, living in the pool default" in report
    assert "job 1 with this engine and task" in report
    assert estimate(wanted, Settings(), world.ledger, workers=10).seconds == made.seconds.times(0.2)


def test_another_task_of_the_engine_tells_nothing(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    ran(world, spec(), "before")
    other = spec(task={"kind": "generate", "prompt": "other {{ id }}"})
    made = estimate(other, Settings(), world.ledger)
    assert made.measured is made.seconds is None
    assert made.output_tokens is not None
    assert (made.output_tokens.low, made.output_tokens.likely) == (0, None)
    assert any("run `estimate --pilot 200`" in note for note in made.notes)


@pytest.mark.parametrize(
    ("seconds", "pilot", "pace"),
    [
        # The start of the process, 3 s, is in the first commit, which is left out.
        ([3.0, 1.0, 1.0, 1.0, 1.0], 100, (10, 10, 10)),
        ([3.0, 1.0, 1.0, 2.0, 2.0], 100, (5, 6.67, 10)),
        # With fewer commits the first one counts, too, and nobody knows the bounds.
        ([3.0, 1.0, 1.0], 100, (6, 6, 6)),
    ],
)
def test_a_function_has_one_range_from_its_warm_batches(
    world: World,
    spec: Callable[..., JobSpec],
    seconds: list[float],
    pilot: int,
    pace: tuple[float, float, float],
) -> None:
    wanted = spec(FUNCTION, task={"kind": "function"}, batch={"rows": pilot})
    given = wanted.model_dump(mode="json", exclude={"name", "input", "output", "batch"})
    job_id = world.job(
        *[10] * len(seconds), name="before", engine=given["engine"], task=given["task"]
    )
    world.admit(job_id)
    for lease, each in zip(world.claim(job_id), seconds, strict=True):
        commit(world, lease, each)
    made = estimate(wanted, Settings(), world.ledger)
    assert made.measured is not None
    assert made.measured.pace is not None
    assert dataclasses.astuple(made.measured.pace) == pytest.approx(pace, rel=0.05)
    assert any("`--pilot 500` has such batches" in note for note in made.notes)


def test_another_pool_another_model_and_too_few_commits_tell_nothing_or_say_so(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    ran(world, spec(), "before", batches=2)
    assert estimate(spec(pool="large"), Settings(), world.ledger).measured is None
    assert estimate(spec({"model": "N"}), Settings(), world.ledger).measured is None
    made = estimate(spec(), Settings(), world.ledger)
    assert any("too few commits" in note for note in made.notes)
    assert made.seconds is not None
    assert made.seconds.low == made.seconds.high


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
    bounded = estimate(
        spec(limits, task=other.task.model_dump(mode="json")), Settings(), world.ledger, workers=100
    )
    assert bounded.seconds is not None
    assert bounded.seconds.low == pytest.approx(10)
    assert set(estimate_report.as_json(bounded)["finished_at"]) == {"low", "likely", "high"}
    assert any("rate limits alone take 0:16:40" in note for note in made.notes)
    assert any("limits.budget 1.00 is not enough" in note for note in made.notes)


class Terminal(io.StringIO):
    """A terminal with nobody in front of it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "runs"), [("y", True), ("n", False)])
def test_after_a_pilot_somebody_is_asked(
    world: World,
    spec: Callable[..., JobSpec],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    runs: bool,
) -> None:
    job = finished(world, spec(), failing=0)
    monkeypatch.setattr("builtins.input", lambda *_: answer)
    monkeypatch.setattr("sys.stdin", Terminal())
    assert decided(world, spec(), job, agreed=False, interactive=True) is runs


def test_a_pilot_that_fails_too_often_ends_it_whatever_was_agreed(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    good, bad = (finished(world, spec(), failing=failing) for failing in (5, 6))
    assert decided(world, spec(), good, agreed=True)
    assert not decided(world, spec(), bad, agreed=True)
    assert not decided(world, spec(), good, agreed=False)
    # Eleven were drawn, and six of them are of no use.
    assert not decided(world, spec(), good, agreed=True, bad=1)


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), Terminal()], ids=["no terminal", "its end"])
def test_where_nobody_answers_the_whole_job_is_not_run(
    world: World, spec: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO
) -> None:
    job = finished(world, spec(), failing=0)
    monkeypatch.setattr("sys.stdin", stdin)
    assert not decided(world, spec(), job, agreed=False, interactive=True)


def test_a_pilot_is_what_is_measured_however_many_jobs_came_after(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    first = ran(world, spec(), "pilot", batches=4)
    for later in range(20):
        ran(world, spec(), f"later-{later}", batches=1)
    made = estimate(spec(), Settings(), world.ledger, pilot=first)
    assert made.measured is not None
    assert (made.measured.source, made.measured.rows) == (f"the pilot (job {first})", 40)


def test_a_speed_that_may_be_0_gives_no_time(world: World, spec: Callable[..., JobSpec]) -> None:
    made = estimate(spec(), Settings(), None)
    measured = MeasuredSpeed("here", 10, Range(0.0, 5.0, 9.0), None, 0)
    found = _estimate(spec(), survey(spec(), Settings())[1], made.prompts, measured, (1, "here"))
    assert found.engine_seconds is found.seconds is found.cost is None
    assert "varies too much" in rendered(found)


def test_an_end_after_the_last_year_of_the_calendar_is_not_a_date(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    ran(world, spec(), "before")
    world.do("UPDATE attempts SET engine_microseconds = 6e15")
    made = estimate(spec(), Settings(), world.ledger)
    assert made.seconds is not None
    assert "finished" not in rendered(made)
    assert estimate_report.as_json(made)["finished_at"] is None


def test_an_estimate_leaves_no_copies_and_asks_nothing_of_the_output(
    tmp_path: Path, spec: Callable[..., JobSpec]
) -> None:
    source = tmp_path / "in" / "b.csv"
    (tmp_path / "in" / "a.parquet").unlink()
    source.write_text("id\n" + "abcd\n" * 30)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-000000-a1.parquet").write_bytes(b"of another job")
    settings = Settings(allowed_roots=(str(tmp_path / "in"),))
    assert estimate(spec(), settings, None).rows == 30
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["part-000000-a1.parquet"]


REQUEST = (
    b"""{"custom_id": "%d", "method": "POST", "url": "/v1/embeddings", "body": {"input": 1.0}}\n"""
)


def test_a_pilot_of_requests_is_a_batch_file_whose_job_can_be_read(
    world: World, tmp_path: Path
) -> None:
    source = tmp_path / "b.jsonl"
    source.write_bytes(b"".join(REQUEST % at for at in range(40)) + b"{no json\n")
    data = {
        "name": "asked",
        "input": {"uri": str(source), "format": "openai"},
        "engine": {"backend": "vllm", "model": "M"},
        "output": {"uri": str(tmp_path / "out")},
    }
    wanted = parse_spec(data, "here")
    submitted, unreadable = pilot.submit_pilot(world.ledger, wanted, Settings(), 41)
    job = world.run(jobs.get, submitted.job_id)
    assert job is not None
    assert (job.spec.input.format, job.spec.task.kind) == ("openai", "requests")
    assert job.spec.engine_key == survey(wanted, Settings())[0].engine_key
    [lines] = job.spec.input.uris
    assert Path(lines).read_bytes() == b"".join(REQUEST % at for at in range(40))
    assert [(at, bad.kind) for at, bad in unreadable.items()] == [(40, "bad_record")]
    again = pilot.submit_pilot(world.ledger, wanted, Settings(), 41)
    assert (again[0].job_id, again[1]) == (job.id, unreadable)
    world.run(jobs.cancel, job.id)


def test_a_pilot_of_a_model_that_thinks_has_as_much_room_as_its_job(
    world: World, spec: Callable[..., JobSpec]
) -> None:
    for sampling in ({}, {"max_tokens": 100}):
        wanted = spec(task={"kind": "generate", "prompt": "{{ id }}", "sampling": sampling})
        submitted, _ = pilot.submit_pilot(world.ledger, wanted, Settings(), 5)
        job = world.run(jobs.get, submitted.job_id)
        assert job is not None
        assert isinstance(job.spec.task, GenerateTask)
        assert job.spec.task.sampling.has_max_tokens is bool(sampling)
        world.run(jobs.cancel, job.id)


def test_a_pilot_whose_rows_the_job_would_read_is_refused(
    world: World, tmp_path: Path, spec: Callable[..., JobSpec]
) -> None:
    for uri in ("in/*/*/*.parquet", "in/*/*", "in/**/*.parquet"):
        (tmp_path / "in" / "a" / "b").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "a" / "b" / "c.parquet").write_bytes(
            (tmp_path / "in" / "a.parquet").read_bytes()
        )
        wanted = spec(
            input={"uri": str(tmp_path / uri)}, output={"uri": str(tmp_path / "in" / "out")}
        )
        with pytest.raises(BadInput, match="would be read as input"):
            pilot.submit_pilot(world.ledger, wanted, Settings(), 5)
    assert not list((tmp_path / "in").glob("out*"))


def test_rows_that_were_drawn_and_cannot_be_read_are_shown(
    world: World, spec: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished(world, spec(), failing=0)
    monkeypatch.setattr("nightshift.producer.estimate.pilot.sample", lambda *_: Sample(10, 0))
    console = Console(file=io.StringIO(), width=200)
    bad = {7: Failure(RowErrorKind.BAD_RECORD, "a.jsonl line 8 is no JSON")}
    assert pilot.show(world.ledger, FinishedPilot(job, bad), console)
    report = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 of the rows that were drawn cannot be read" in report
    assert "a.jsonl line 8 is no JSON" in report
    assert "in all: 1 bad_record" in report
    assert "no row has failed" not in report


def finished(world: World, spec: JobSpec, failing: int) -> jobs.Job:
    """A completed job of ten rows."""
    job_id = world.job(10, name=f"pilot-{failing}")
    world.commit(world.lease(job_id), errors=range(failing))
    assert world.finish(job_id) is JobState.COMPLETED
    found = world.run(jobs.get, job_id)
    assert found is not None
    return found


def decided(
    world: World,
    spec: JobSpec,
    job: jobs.Job,
    *,
    agreed: bool,
    interactive: bool = False,
    bad: int = 0,
) -> bool:
    made = estimate(spec, Settings(), world.ledger)
    console = Console(file=io.StringIO(), force_interactive=interactive)
    unread = dict.fromkeys(range(bad), Failure(RowErrorKind.BAD_RECORD, "no JSON"))
    return pilot.goes_on(
        world.ledger, spec, FinishedPilot(job, unread), made, console, agreed=agreed
    )
