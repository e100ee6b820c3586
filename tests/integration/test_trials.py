"""Trials of a tuning on a real ledger: which end early, which are cancelled, and what each may take."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nightshift.common.allocation.load_errors import case_of
from nightshift.common.errors import BadInput, MachineCannotLoad, Permanent
from nightshift.common.ledger.engines import loads, tunings
from nightshift.common.ledger.engines.loads import LoadPolicy
from nightshift.common.ledger.engines.tunings import MachineLoads
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.fleet.slots import Machine
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.states import JobState
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.pilot_place import PilotPlace
from nightshift.producer.local.known_job import open_job
from nightshift.producer.tune import tune
from nightshift.producer.tune.halving import Rung
from nightshift.producer.tune.trials import Candidate, Trials
from tests.integration.test_plan import empty, report
from tests.integration.test_tunings import CPU, auto_spec
from tests.support.fleet import Fleet, function_spec, wait_until, write_rows
from tests.support.world import World, child_of, make_ready

POLICY = LoadPolicy(backoff_seconds=2, alive_seconds=30)

WorkOn = Callable[[Job, Callable[[], bool]], Job]

ARGS = {"max_num_seqs": 8}


def trials(
    world: World, folder: Path, work_on: WorkOn, *, engine: Any = (), limits: Any = ()
) -> Trials:
    """Trials whose jobs are real ones of this ledger, which `work_on` works for."""
    console = Console(quiet=True)

    def start(spec: JobSpec, rows: int, batches: int) -> tuple[Job, pilot.Unreadable]:
        made, unreadable = pilot.submit_pilot(world.ledger, spec, Settings(), rows, batches=batches)
        job = open_job(world.ledger, made, spec, console)
        world.specs[job.id] = job.spec
        return job, unreadable

    spec = auto_spec(folder)
    spec = spec.model_copy(
        update={
            "engine": spec.engine.model_copy(update=dict(engine)),
            "limits": spec.limits.model_copy(update=dict(limits)),
        }
    )
    place = PilotPlace(world.ledger, {CPU: 1}, False, start, work_on)
    return Trials(spec, place, console, 0)


def job_of(world: World, job_id: int) -> Job:
    found = world.run(jobs.get, job_id)
    assert found is not None
    return found  # type: ignore[no-any-return]


def fail_load(world: World, job: Job, host: str) -> None:
    who = Machine(f"super-{host}", "default", host)
    report(world, empty(1), who)
    error = MachineCannotLoad("no memory")
    key = job.spec.engine_key
    world.do("UPDATE refusals SET retry_at = now()")
    world.run(loads.failed, who, key, case_of(error), str(error), POLICY)


def test_a_trial_that_no_machine_of_the_pool_can_load_is_cancelled_and_a_result(
    world: World, tmp_path: Path
) -> None:
    """Once such a trial waited for ever: only an error of the job itself fails a job of a fleet."""
    report(world, empty(1), Machine("super-b", "default", "b"))
    stops: list[bool] = []

    def work_on(job: Job, stop: Callable[[], bool]) -> Job:
        for host in "aba":
            stops.append(stop())
            fail_load(world, job, host)
        stops.append(stop())
        return job_of(world, job.id)

    made, candidate = trials(world, tmp_path, work_on), Candidate(ARGS)
    assert made.run(candidate, 20) is None
    assert stops == [False, False, False, True]
    assert candidate.problem == "the engine could not be loaded: no memory"
    [job_id] = made.started
    assert job_of(world, job_id).state is JobState.CANCELLED


def test_a_machine_that_loads_again_may_still_run_the_trial(world: World) -> None:
    job = job_of(world, world.job(1))
    fail_load(world, job, "a")
    child = replace(child_of(job.spec, 0), supervisor="super-a", host="a")
    make_ready(world, child)
    slot = replace(empty(1)[0], worker_id=child.id, engine_key=child.engine_key)
    report(world, [slot], Machine("super-a", "default", "a"))
    of_key = ("default", job.spec.engine_key)
    assert [each.has_engine for each in world.run(tunings.loads_of, *of_key)] == [True]
    other = ("default", "another")
    assert world.run(tunings.loads_of, *other) == [MachineLoads()]


def run_and_commit(world: World, job: Job, *, losses: int = 0) -> Job:
    """Every batch of a job runs, after its engine died so often."""
    for number in range(losses):
        child = child_of(job.spec, number)
        make_ready(world, child)
        world.lease(job.id, owner=child.id)
        world.run(lambda c, id=child.id: workers.end(c, id, died="out of memory"))
    while any(state != "done" for state in world.states(job.id)):
        world.commit(world.lease(job.id))
    world.finish(job.id)
    return job_of(world, job.id)


def test_a_trial_whose_engine_died_once_has_no_rate_though_its_rows_have_answers(
    world: World, tmp_path: Path
) -> None:
    def work_on(job: Job, stop: Callable[[], bool]) -> Job:
        assert not stop()
        done = run_and_commit(world, job, losses=1)
        assert stop()
        return done

    made, candidate = trials(world, tmp_path, work_on), Candidate(ARGS)
    assert made.run(candidate, 20) is None
    assert candidate.problem == "the engine was lost while rows ran: out of memory"
    [job_id] = made.started
    assert job_of(world, job_id).state is JobState.COMPLETED


def test_a_trial_is_one_batch_on_one_engine_and_its_true_rows_are_noted(
    world: World, tmp_path: Path
) -> None:
    def work_on(job: Job, _: Callable[[], bool]) -> Job:
        assert job.spec.limits.max_parallel == 1
        assert len(world.states(job.id)) == 1
        spent = (
            "INSERT INTO job_spending (job_id, worker_id, engine_microseconds, rows_run, "
            "prompt_tokens, output_tokens) VALUES (%s, 'w', 2000000, 40, 0, 0)"
        )
        world.do(spent, job.id)
        return run_and_commit(world, job)

    made, candidate = trials(world, tmp_path, work_on), Candidate(ARGS)
    assert made.run(candidate, 600) == pytest.approx(20)
    assert candidate.rates == {40: pytest.approx(20)}  # the input has no more


@pytest.mark.parametrize("why", [KeyboardInterrupt, Permanent])
def test_a_trial_that_is_broken_off_is_cancelled_and_begins_anew_the_next_time(
    world: World, tmp_path: Path, why: type[BaseException]
) -> None:
    def work_on(job: Job, _: Callable[[], bool]) -> Job:
        if len(world.specs) == 1:
            raise why("the fleet broke")
        return run_and_commit(world, job)

    made, candidate = trials(world, tmp_path, work_on), Candidate(ARGS)
    if why is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            made.run(candidate, 20)
    else:
        assert made.run(candidate, 20) is None
        assert candidate.problem == "the fleet broke"
    [first] = made.started
    assert job_of(world, first).state is JobState.CANCELLED
    made.run(candidate, 20)
    assert candidate.problem == "no row ran"  # the second job was completed
    assert len(made.started) == 2


def test_a_trial_that_pauses_is_cancelled(world: World, tmp_path: Path) -> None:
    """Once it stayed paused for ever."""

    def work_on(job: Job, _: Callable[[], bool]) -> Job:
        world.run(jobs.pause, job.id, "no room on the disk")
        return job_of(world, job.id)

    made, candidate = trials(world, tmp_path, work_on), Candidate(ARGS)
    assert made.run(candidate, 20) is None
    assert "no room on the disk" in (candidate.problem or "")
    assert [job_of(world, each).state for each in made.started] == [JobState.CANCELLED]


def test_the_budget_of_the_spec_is_that_of_all_trials_together(
    world: World, tmp_path: Path
) -> None:
    budgets: list[float | None] = []

    def work_on(job: Job, _: Callable[[], bool]) -> Job:
        budgets.append(job.spec.limits.budget)
        spent = (
            "INSERT INTO job_spending (job_id, worker_id, engine_microseconds, rows_run, "
            "prompt_tokens, output_tokens) VALUES (%s, 'w', 2000000000, 20, 0, 0)"
        )
        world.do(spent, job.id)
        return run_and_commit(world, job)

    made = trials(world, tmp_path, work_on, engine={"price_per_hour": 3.6}, limits={"budget": 3.0})
    candidates = [Candidate({"max_num_seqs": number}) for number in (1, 2, 3)]
    best = tune.search(candidates, made, [Rung(3, 10), Rung(1, 20)])
    assert budgets == [pytest.approx(3), pytest.approx(1)]
    assert best in candidates[:2]
    assert [each.problem for each in candidates] == [None] * 3
    assert [len(each.rates) for each in candidates] == [1, 1, 0]


def test_arguments_that_a_submit_refuses_are_refused_before_the_first_trial(
    world: World, tmp_path: Path
) -> None:
    def work_on(*_: object) -> Job:
        raise AssertionError("no trial runs")

    made = trials(world, tmp_path, work_on)
    for args, why in (
        ({"revision": "a"}, "say revision beside args"),
        ({"trust_remote_code": True}, "may run code"),
    ):
        found = [Candidate({}), Candidate(args)]
        with pytest.raises(BadInput, match=why):
            tune.rows_there(found, made, Settings(allowed_engine_args=()))
    assert made.started == {}
    assert tune.rows_there([Candidate({})], made, Settings()) == 40


def test_the_end_of_a_tuning_names_the_jobs_and_folders_that_stay(
    world: World, tmp_path: Path
) -> None:
    made = trials(world, tmp_path, lambda job, _: run_and_commit(world, job))
    made.console = Console(width=400)
    with made.console.capture() as nothing:
        made.report_left()
    assert nothing.get() == ""
    made.run(Candidate(ARGS), 20)
    with made.console.capture() as said:
        made.report_left()
    [job_id] = made.started
    folder = tmp_path / "out-tune-1-pilot"
    assert f"job {job_id}, with their files in {folder}:" in said.get()
    assert folder.is_dir()


@pytest.mark.slow
def test_a_pool_whose_workers_refuse_every_trial_ends_the_command_with_a_table(
    fleet: Fleet, ask: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    """Once the command waited for ever for the first trial."""
    fleet.reaper()
    fleet.worker()
    wait_until(lambda: ask("SELECT 1 FROM slots"), what="a slot")
    write_rows(fleet.folder / "in", [("a.parquet", 40)])
    data = function_spec("guarded", fleet.folder / "in", fleet.folder / "out")
    data["task"] = {"kind": "generate", "prompt": "{{ text }}"}
    guarded = {"trust_remote_code": True}  # for which this worker has no word
    data["engine"] = {"backend": "vllm", "model": "org/model", "args": guarded}
    tried = ["--try", "max_num_seqs=8", "--try", "max_num_batched_tokens=64"]
    done = fleet.command("tune", str(fleet.spec(data)), *tried)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the engine could not be loaded: engine.args.trust_remote_code" in done.stdout
    assert "The trials stay as jobs 1, 2, 3," in done.stdout
    assert ask("SELECT state FROM jobs ORDER BY id") == [("cancelled",)] * 3
    assert ask("SELECT count(*) FROM tunings") == [(0,)]


@pytest.mark.slow
def test_ctrl_c_cancels_the_trial_that_a_pool_runs_and_names_it(
    fleet: Fleet, ask: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    fleet.worker()
    wait_until(lambda: ask("SELECT 1 FROM slots"), what="a slot")
    write_rows(fleet.folder / "in", [("a.parquet", 40)])
    data = function_spec("waits", fleet.folder / "in", fleet.folder / "out")
    data["task"] = {"kind": "generate", "prompt": "{{ text }}"}
    data["engine"] = {"backend": "vllm", "model": "org/model"}
    [(host,)] = ask("SELECT host FROM slots")
    assert fleet.command("cordon", host).returncode == 0
    command = fleet.start("nightshift.producer.cli", "tune", str(fleet.spec(data)))
    log = fleet.folder / "nightshift.producer.cli.1.log"
    wait_until(lambda: "of 40 rows" in log.read_text(), what="a trial")
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=60) != 0
    assert ask("SELECT state FROM jobs") == [("cancelled",)]
    assert "The trials stay as job 1, with their files in" in log.read_text()
