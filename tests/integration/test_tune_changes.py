"""A whole tuning on a real ledger with an engine that is known: what may change answers is compared, and kept
by the user's word alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import EmbedTask, GenerateTask, JobSpec, VllmEngineSpec, parse_spec
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
from tests.integration.test_plan import empty, report
from tests.integration.test_tunings import H100, auto_spec
from tests.support.child import child_of
from tests.support.scripted import Scripted
from tests.support.world import World

ROWS = 40

KV = {"kv_cache_dtype": "fp8"}

KV_ALONE = {"kv_cache_dtype": ["fp8"], "quantization": [None]}

ONE_SIZE = {"max_num_seqs": [8], "max_num_batched_tokens": [64]}


@dataclass
class Answering(Scripted):
    """Answers each row with its number. The answers to the first rows tell the arguments: to two rows with an
    fp8 cache, to 20 with fp8 weights, to all where samples are drawn.
    """

    name: str = "vllm"
    at_once: bool = True
    args: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, at: int, most_rows: int | None = None, error: Exception | None = None) -> None:
        work, future = self.taken[at]
        if isinstance(work.task, EmbedTask):
            turned = [0.5, 0.75**0.5] if "kv_cache_dtype" in self.args else [1.0, 0.0]
            for position, request in enumerate(work.requests):
                vector = turned if request.row_index < 2 else [0.0, 2.0]
                work.emit(position, Answer({"embedding": vector}, None, 3))
            future.set_result(None)
            return
        assert isinstance(work.task, GenerateTask)
        sampling = work.task.sampling
        changed = {"kv_cache_dtype": 2, "speculative_config": 0, "quantization": 20}
        other = (
            ROWS if sampling.temperature > 0 else sum(changed.get(name, 0) for name in self.args)
        )
        for position, request in enumerate(work.requests):
            how = f" by {sorted(self.args)}" if request.row_index < other else ""
            answer = {"output": f"{request.row_index}{how}"}
            several = {"outputs": [answer] * sampling.n}
            work.emit(position, Answer(several if sampling.n > 1 else answer, "stop", 3, 2))
        future.set_result(None)


SPEEDS = {"max_num_seqs": 1.5, "kv_cache_dtype": 1.3, "float16": 1.2, "quantization": 1.6}
"""How much faster an argument or a value makes 100 rows/s; speculation is slower."""


def rate_of(args: Mapping[str, Any]) -> float:
    rate = 100.0
    for name, value in args.items():
        slower = 0.5 if name == "speculative_config" else 1
        rate *= slower * SPEEDS.get(name, 1) * SPEEDS.get(str(value), 1)
    return rate


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
        runner = Runner(child_of(who, self.ledger, Answering(args=engine.args)))
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


def spec_of(
    folder: Path,
    args: Mapping[str, Any] | None = None,
    budget: float | None = None,
    **sampling: Any,
) -> JobSpec:
    data = auto_spec(folder).model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["engine"] = {"backend": "vllm", "model": "org/model", "args": dict(args or {})}
    data["task"]["sampling"] = {"max_tokens": 4, **sampling}
    if budget is not None:
        data["engine"]["price_per_hour"] = 3600
        data["limits"] = {"budget": budget}
    return parse_spec(data, "test")


def auto_job(ledger: Ledger, folder: Path, out: str) -> tuple[Mapping[str, Any], str]:
    """The arguments of a new job with args: auto, and what its submit says of them."""
    done = submit(ledger, auto_spec(folder, out), Settings())
    with ledger.transaction() as connection:
        job = jobs.get(connection, done.job_id)
    assert job is not None
    assert isinstance(job.spec.engine, VllmEngineSpec)
    [remark] = [each for each in done.remarks if "auto stands for" in each]
    return job.spec.engine.args, remark


def tuned(spec: JobSpec, least: float | None = None, **named: list[Any]) -> tuple[Tuned, str]:
    console = Console(width=400)
    with console.capture() as said:
        made = tuning.tune(
            spec,
            Settings(),
            {**ONE_SIZE, "quantization": ["fp8"], **named},
            console,
            rows=ROWS,
            min_agreement=least,
        )
        table.show(made, console)
    return made, said.get()


def kept(ledger: Ledger) -> Tuning:
    with ledger.transaction() as connection:
        [found] = tunings.of_model(connection, "org/model", "generate")
    return found


SAFE = {"max_num_seqs": 8, "max_num_batched_tokens": 64}


@pytest.mark.slow
def test_what_may_change_answers_is_measured_and_left_until_the_user_allows_it(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path)
    made, said = tuned(spec)
    measured = [each for each in made.candidates if each.agreement is not None]
    assert {"".join(each.changed): each.agreement.equal for each in measured if each.agreement} == {
        "": 1.0,
        "kv_cache_dtype": 0.95,
        "quantization": 0.5,
        "speculative_config": 1.0,
    }
    assert made.best is not None
    assert (made.best.args, kept(ledger).args) == (SAFE, SAFE)
    assert (kept(ledger).changed, kept(ledger).detail) == ({}, {"offered": 0})
    assert "quantization=fp8 it would be 1.60 times as fast as what is kept" in said
    assert "(50.0 % of 40 equal): the same command with --min-agreement 0.49" in said
    trials = len(pool.ran)

    # As it was printed: nothing runs again but what is new, and the share decides.
    made, said = tuned(spec, 0.9)
    assert len(pool.ran) == trials
    assert kept(ledger).args == kept(ledger).changed | SAFE == {**SAFE, **KV}
    assert (
        "1.95 times the rows/s of the spec's own; kv_cache_dtype=fp8 may change answers, 95.0 %"
        in said
    )
    assert "quantization=fp8 it would be 1.23 times" in said

    made, said = tuned(spec, 0.4)
    assert [each.spec.engine.args for each in pool.ran[trials:]] == [  # type: ignore[union-attr]
        {**SAFE, "quantization": "fp8", **KV}
    ]
    assert kept(ledger).args == {**SAFE, "quantization": "fp8", **KV}
    assert kept(ledger).detail["agreement"] == {"rows": 40, "equal": 0.45, "by": "answers"}
    assert made.offered is None

    _, remark = auto_job(ledger, tmp_path, "auto")
    assert (
        "quantization=fp8 kv_cache_dtype=fp8 may change answers: 45.0 % of 40 equal to those of the "
        "arguments that were tuned, measured on the rows of auto, free text"
    ) in remark

    # A round that left nothing is over: its trials run again.
    trials = len(pool.ran)
    tuned(spec)
    assert len(pool.ran) > trials + 3
    assert kept(ledger).args == SAFE


def test_a_value_that_somebody_names_is_kept_by_the_same_rule(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    _, said = tuned(spec_of(tmp_path), **KV_ALONE)
    assert kept(ledger).args == SAFE
    assert "--min-agreement 0.94" in said
    tuned(spec_of(tmp_path), 0.94, **KV_ALONE)
    assert kept(ledger).args == {**SAFE, **KV}


def test_a_spec_that_says_auto_is_measured_against_what_the_user_wrote_first(
    pool: Pool, world: World, tmp_path: Path
) -> None:
    """Else what was allowed once would be the spec's own, and would stay without a word."""
    ledger, own = world.ledger, {"dtype": "float32"}
    named = {"quantization": [None], "speculative_config": [None], "dtype": ["float16"]}
    first = spec_of(tmp_path)
    engine = first.engine.model_copy(update={"args": own})
    tuned(first.model_copy(update={"engine": engine}), 0.9, **named)
    assert kept(ledger).args == {**SAFE, **KV, "dtype": "float16"}
    report(world, [replace(slot, hardware=H100) for slot in empty(1)])
    made, _ = tuned(auto_spec(tmp_path, "again"), **named)
    assert made.candidates[0].args == {**SAFE, **own}
    assert (kept(ledger).args, kept(ledger).changed) == ({**SAFE, **own}, {})


def test_vectors_are_compared_by_their_cosine(pool: Pool, ledger: Ledger, tmp_path: Path) -> None:
    data = spec_of(tmp_path).model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["task"] = {"kind": "embed", "text": "{{ text }}"}
    made, said = tuned(parse_spec(data, "test"), 0.97, **KV_ALONE)
    assert "speculative_config is not tried: a task of kind embed writes no tokens" in said
    assert made.best is not None
    assert str(made.best.agreement) == "mean cosine 0.9750, least 0.5000"
    assert made.best.args == {**SAFE, **KV}


def test_answers_of_a_sampled_job_are_compared_at_temperature_0(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, temperature=0.7, n=2)
    named = {"quantization": [None], "speculative_config": [None]}
    made, said = tuned(spec, 0.9, **named)
    assert made.best is not None
    assert str(made.best.agreement) == "95.0 % of 40 greedy answers equal"
    assert kept(ledger).args == {**SAFE, **KV}
    *_, fp8, greedy, own = pool.ran
    assert [each.spec.task.sampling.temperature for each in (fp8, greedy, own)] == [0.7, 0, 0]  # type: ignore[union-attr]
    assert fp8.spec.engine_key == greedy.spec.engine_key  # which is loaded already
    assert said.count("at temperature 0, to compare") == 2


def test_what_a_spec_says_itself_is_for_other_jobs_by_the_users_word_alone(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    own = {"max_model_len": 128, "kv_cache_dtype": "fp8_e5m2", "dtype": "float32"}
    stays = {"max_model_len": 128, "dtype": "float32"}
    no_more = {"quantization": [None], "speculative_config": [None]}
    made, said = tuned(spec_of(tmp_path, own), **no_more)
    assert made.best is not None
    assert made.best.args == {**SAFE, **own}  # which the rates are of
    assert kept(ledger).args == {**SAFE, **stays}
    assert "uses them, but for kv_cache_dtype=fp8_e5m2: --min-agreement allows" in said
    assert table.as_json(made)["kept"] == {**SAFE, **stays}
    args, remark = auto_job(ledger, tmp_path, "first")
    assert args == {**SAFE, **stays}
    assert (
        "kv_cache_dtype=fp8_e5m2 of the spec that was tuned may change answers, and is left out"
        in remark
    )

    tuned(spec_of(tmp_path, own), 0.9, **no_more)
    assert kept(ledger).args == {**SAFE, **own}
    args, remark = auto_job(ledger, tmp_path, "second")
    assert args == {**SAFE, **own}
    assert (
        "kv_cache_dtype=fp8_e5m2 of the spec that was tuned may change answers, not compared"
        in remark
    )


SAMPLED = {"quantization": [None], "speculative_config": [None]}


def test_a_budget_that_ends_before_answers_are_compared_keeps_what_was_found(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    """Once the trial to compare answers had a budget of less than nothing, and nothing was kept."""
    tuned(spec_of(tmp_path / "known", temperature=0.7), **SAMPLED)
    *_, fp8, _, _ = pool.ran
    with ledger.transaction() as connection:
        before = f"SELECT sum(engine_microseconds) / 1e6 FROM job_spending WHERE job_id < {fp8.id}"
        spent = float(connection.exec_driver_sql(before).scalar() or 0)
    made, said = tuned(
        spec_of(tmp_path / "dear", budget=spent + 0.01, temperature=0.7), 0.0, **SAMPLED
    )
    assert made.candidates[-1].changed == KV
    assert made.candidates[-1].rates
    assert "answers are not compared: limits.budget is spent" in said
    assert (kept(ledger).args, kept(ledger).rounds, made.offered) == (SAFE, 2, None)


def test_answers_of_the_spec_that_cannot_be_had_are_asked_for_once(
    pool: Pool, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = pool.start

    def broken(spec: JobSpec, rows: int, batches: int) -> tuple[Job, pilot.Unreadable]:
        job, bad = start(spec, rows, batches)
        is_own = isinstance(spec.engine, VllmEngineSpec) and not spec.engine.args
        if is_own and isinstance(spec.task, GenerateTask) and not spec.task.sampling.temperature:
            with ledger.transaction() as connection:
                connection.exec_driver_sql(
                    f"UPDATE jobs SET state = 'failed', reason = 'no memory' WHERE id = {job.id}"
                )
                found = jobs.get(connection, job.id)
            assert found is not None
            asked.append(found)
            return found, bad
        return job, bad

    asked: list[Job] = []
    monkeypatch.setattr(pool, "start", broken)
    named = {**SAMPLED, "kv_cache_dtype": ["fp8", "fp8_e5m2"]}
    made, said = tuned(spec_of(tmp_path, temperature=0.7), 0.0, **named)
    assert len(asked) == 1
    assert said.count("answers are not compared: no memory") == 1
    assert (kept(ledger).args, made.offered) == (SAFE, None)


def test_a_trial_whose_parts_are_gone_is_not_compared_and_not_kept(
    pool: Pool, ledger: Ledger, tmp_path: Path
) -> None:
    named = {"quantization": [None], "speculative_config": [None]}
    spec = spec_of(tmp_path)
    tuned(spec, **named)
    for job in pool.ran:
        if not job.spec.engine.args:  # type: ignore[union-attr]
            for part in Path(job.output_uri).glob("part-*"):
                part.unlink()
    made, said = tuned(spec, 0.0, **named)
    assert "answers are not compared" in said
    assert (kept(ledger).args, made.offered) == (SAFE, None)
