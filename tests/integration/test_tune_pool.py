"""A whole tuning on a real ledger with an engine whose speed is known."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, VllmEngineSpec, parse_spec
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.pilot_place import PilotPlace
from nightshift.producer.local.known_job import open_job
from nightshift.producer.reaper import finish
from nightshift.producer.submit.submit import submit
from nightshift.producer.tune import table
from nightshift.producer.tune import tune as tuning
from nightshift.producer.tune.tune import Tuned
from nightshift.worker.engines.protocol import Answer
from nightshift.worker.runner import Runner
from tests.integration.test_tunings import H100, auto_spec
from tests.support.child import child_of
from tests.support.scripted import Scripted

ROWS = 40

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 64}


@dataclass
class Numbering(Scripted):
    """Answers each row with its number."""

    name: str = "vllm"
    at_once: bool = True

    def answer(self, at: int, most_rows: int | None = None, error: Exception | None = None) -> None:
        work, future = self.taken[at]
        for position, request in enumerate(work.requests):
            work.emit(position, Answer({"output": str(request.row_index)}, "stop", 3, 2))
        future.set_result(None)


def rate_of(args: Mapping[str, Any]) -> float:
    return 150.0 if "max_num_seqs" in args else 100.0


@dataclass
class Pool:
    """A pool of one engine that runs a trial at once, at the rate of its arguments."""

    ledger: Ledger
    ran: list[Job] = field(default_factory=list)

    def start(self, spec: JobSpec, rows: int, batches: int) -> tuple[Job, pilot.Unreadable]:
        made, bad = pilot.submit_pilot(self.ledger, spec, Settings(), rows, batches=batches)
        return open_job(self.ledger, made, spec, Console(quiet=True)), bad

    def work_on(self, job: Job, _: Callable[[], bool]) -> Job:
        if job.state.over:
            return job
        self.ran.append(job)
        engine = job.spec.engine
        assert isinstance(engine, VllmEngineSpec)
        child = workers.Child(f"w{job.id}", "s", "default", 0, "here", 1, job.spec.engine_key)
        with self.ledger.transaction() as connection:
            workers.register(connection, child)
            dispatch.admit(connection, job.id, 1000, dispatch.next_rank(connection))
        who = Claimant(child.id, "default", child.engine_key, "vllm", "1")
        runner = Runner(child_of(who, self.ledger, Numbering()))
        runner.draining.set()
        runner.work("poll", wait=False)
        assert runner.window.wait_empty(60)
        finish.finish(self.ledger, job.id)
        with self.ledger.transaction() as connection:
            spent = "UPDATE job_spending SET engine_microseconds = 1e6 * rows_run / {} WHERE job_id = {}"
            connection.exec_driver_sql(spent.format(rate_of(engine.args), job.id))
            found = jobs.get(connection, job.id)
        assert found is not None
        return found


@pytest.fixture
def pool(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool(ledger)

    @contextmanager
    def pilots(*_: object) -> Iterator[PilotPlace]:
        yield PilotPlace(ledger, {H100: 1}, False, made.start, made.work_on)

    monkeypatch.setattr(tuning, "pilots", pilots)
    return made


def spec_of(folder: Path, args: Mapping[str, Any] | None = None) -> JobSpec:
    data = auto_spec(folder).model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["engine"] = {"backend": "vllm", "model": "org/model", "args": dict(args or {})}
    return parse_spec(data, "test")


def tuned(spec: JobSpec, **named: list[Any]) -> tuple[Tuned, str]:
    console = Console(width=400)
    with console.capture() as output:
        sizes = {name: [value] for name, value in SIZES.items()}
        made = tuning.tune(spec, Settings(), {**sizes, **named}, console, rows=ROWS)
        table.show(made, console)
    return made, output.get()


def kept(ledger: Ledger) -> Tuning:
    with ledger.transaction() as connection:
        [found] = tunings.of_model(connection, "org/model", "generate")
    return found


def auto_args(ledger: Ledger, folder: Path) -> Mapping[str, Any]:
    """The arguments of a new job with args: auto."""
    done = submit(ledger, auto_spec(folder, "auto"), Settings())
    with ledger.transaction() as connection:
        job = jobs.get(connection, done.job_id)
    assert job is not None
    assert isinstance(job.spec.engine, VllmEngineSpec)
    return job.spec.engine.args


@pytest.mark.slow
def test_the_fastest_is_kept_and_a_second_tuning_runs_its_trials_anew(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    made, output = tuned(spec_of(tmp_path))
    assert made.best is not None
    assert (made.best.args, kept(ledger).args) == (SIZES, SIZES)
    assert "1.50 times the rows/s of the spec's own" in output
    assert auto_args(ledger, tmp_path) == SIZES
    trials = len(pool.ran)
    made, _ = tuned(auto_spec(tmp_path, "again"), gpu_memory_utilization=[0.5])
    assert made.candidates[0].args == SIZES
    assert len(pool.ran) > trials
    assert kept(ledger).rounds == 2


def test_no_trial_runs_for_an_argument_that_may_change_answers(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--try quantization: this argument may change answers"):
        tuned(spec_of(tmp_path), quantization=["fp8"])
    assert pool.ran == []


@pytest.mark.slow
def test_auto_does_not_stand_for_what_of_the_spec_may_change_answers(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    own = {"max_model_len": 128, "kv_cache_dtype": "fp8", "dtype": "float32"}
    stays = {"max_model_len": 128, "dtype": "float32"}
    made, output = tuned(spec_of(tmp_path, own))
    assert made.best is not None
    assert made.best.args == {**SIZES, **own}, "the rates are of these"
    assert kept(ledger).args == {**SIZES, **stays}
    assert "uses them, without kv_cache_dtype=fp8 of the spec, which may change answers" in output
    facts = table.as_json(made)
    assert (facts["kept"], facts["left_out"]) == ({**SIZES, **stays}, {"kv_cache_dtype": "fp8"})
    assert auto_args(ledger, tmp_path) == {**SIZES, **stays}
