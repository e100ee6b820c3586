"""`engine.args: auto`: what was tuned for a model, a task and a pool's hardware becomes the job's."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.jobs import jobs
from nightshift.common.processes import hardware
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, VllmEngineSpec, parse_spec
from nightshift.common.telemetry.steps import StepFile
from nightshift.producer.estimate import pilot, pilot_place
from nightshift.producer.estimate.pilot import submit_pilot
from nightshift.producer.local.machine import Machine
from nightshift.producer.local.worker_settings import for_spec
from nightshift.producer.submit.auto_args import remark
from nightshift.producer.submit.submit import Submitted, submit
from nightshift.producer.tune import tune
from tests.integration.test_plan import empty, report
from tests.support.fleet import function_spec, write_rows
from tests.support.world import World

H100, CPU = "1 x NVIDIA H100", "2 CPU cores"
FAST, SLOW = {"max_num_seqs": 1024}, {"max_num_seqs": 16}


@pytest.mark.parametrize(
    ("kept", "slots", "chosen"),
    [
        ([], {}, None),
        ([], {H100: 1}, None),
        ([Tuning(H100, FAST, 1)], {H100: 1}, H100),
        ([Tuning(H100, FAST, 1)], {CPU: 1}, None),
        # Nobody knows the slots: the only one that is kept is better than none.
        ([Tuning(H100, FAST, 1)], {}, H100),
        ([Tuning(H100, FAST, 1), Tuning(CPU, SLOW, 1)], {}, None),
        ([Tuning(H100, FAST, 1), Tuning(CPU, SLOW, 1)], {H100: 1, CPU: 3}, CPU),
        ([Tuning(H100, FAST, 1)], {H100: 1, CPU: 3}, H100),
    ],
)
def test_the_hardware_of_most_tuned_slots_decides(
    kept: list[Tuning], slots: dict[str, int], chosen: str | None
) -> None:
    found = tunings.chosen(kept, slots)
    assert (None if found is None else found.hardware) == chosen


def keep(ledger: Ledger, hardware: str, args: dict[str, Any], task: str = "generate") -> None:
    with ledger.transaction() as connection:
        tunings.keep(connection, "org/model", task, Tuning(hardware, args, 10.0))


def auto_spec(folder: Path, out: str = "out", **sections: Any) -> JobSpec:
    write_rows(folder / "in", [("a.parquet", 40)])
    data = function_spec("auto", folder / "in", folder / out, **sections)
    data["task"] = {"kind": "generate", "prompt": "{{ text }}", "sampling": {"max_tokens": 4}}
    data["engine"] = {"backend": "vllm", "model": "org/model", "args": "auto"}
    return parse_spec(data, "test")


def args_of(ledger: Ledger, done: Submitted) -> dict[str, Any]:
    with ledger.transaction() as connection:
        job = jobs.get(connection, done.job_id)
    assert job is not None
    assert isinstance(job.spec.engine, VllmEngineSpec)
    return job.spec.engine.args


def test_a_submit_fills_in_what_was_tuned_and_stays_the_same_job(
    world: World, tmp_path: Path
) -> None:
    ledger = world.ledger
    keep(ledger, H100, FAST)
    keep(ledger, CPU, SLOW)
    keep(ledger, CPU, {"max_num_seqs": 1}, task="embed")
    report(world, [replace(slot, hardware=CPU) for slot in empty(2)])
    spec = auto_spec(tmp_path)

    first = submit(ledger, spec, Settings())
    assert args_of(ledger, first) == SLOW
    [remark] = [each for each in first.remarks if "auto stands for max_num_seqs=16" in each]
    assert f"{CPU}, which 2 of 2 live slots of the pool have" in remark
    keep(ledger, CPU, {"max_num_seqs": 32})
    again = submit(ledger, spec, Settings())
    assert (again.job_id, again.is_new, again.kept) == (first.job_id, False, ())
    assert args_of(ledger, again) == SLOW
    another = submit(ledger, auto_spec(tmp_path, "out2"), Settings())
    assert args_of(ledger, another) == {"max_num_seqs": 32}
    with ledger.transaction() as connection:
        kept = {
            each.hardware: each.rounds
            for each in tunings.of_model(connection, "org/model", "generate")
        }
    assert kept == {H100: 1, CPU: 2}


def test_without_a_tuning_vllms_defaults_hold_and_the_submit_says_so(
    ledger: Ledger, tmp_path: Path
) -> None:
    done = submit(ledger, auto_spec(tmp_path), Settings())
    assert args_of(ledger, done) == {}
    assert any("no tuned arguments are known" in remark for remark in done.remarks)


def test_a_pilot_of_an_auto_job_runs_with_what_was_tuned(ledger: Ledger, tmp_path: Path) -> None:
    keep(ledger, H100, FAST)
    submitted, _ = submit_pilot(ledger, auto_spec(tmp_path), Settings(), 10)
    assert args_of(ledger, submitted) == FAST
    assert any("the only tuned hardware" in remark for remark in submitted.remarks)


@pytest.fixture
def here(ledger: Ledger, tmp_path: Path) -> Iterator[Machine]:
    """This machine on the test's ledger, without servers and a fleet."""
    with ExitStack() as started:
        yield Machine(
            ledger, Settings(), tmp_path, [], started, Console(quiet=True), StepFile(None)
        )


@pytest.mark.parametrize("own", [None, {}, SLOW])
@pytest.mark.parametrize("first", ["the job", "a pilot"])
def test_a_run_takes_what_was_tuned_on_this_machine_and_never_that_of_another(
    here: Machine, world: World, tmp_path: Path, own: dict[str, Any] | None, first: str
) -> None:
    """Once the submit looked again, at the slots of the pool, wherever the answer was no argument."""
    keep(world.ledger, H100, FAST)
    report(world, [replace(slot, hardware=H100) for slot in empty(2)])
    if own is not None:
        keep(world.ledger, hardware.of_this_machine(), own)
    spec = auto_spec(tmp_path)
    job = pilot_place.start_pilot(here, spec, 10)[0] if first == "a pilot" else here.submit(spec)
    assert isinstance(job.spec.engine, VllmEngineSpec)
    assert job.spec.engine.args == (own or {})
    said = remark(job.spec) or ""
    assert ("no tuned arguments are known" in said) is (own is None)
    assert ("the hardware of this machine" in said) is (own is not None)


def test_an_estimate_after_a_pilot_is_made_for_the_arguments_of_the_pilot(
    here: Machine, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(ledger, H100, FAST)
    spec = auto_spec(tmp_path)
    job, unreadable = pilot_place.start_pilot(here, spec, 10)
    asked: list[JobSpec] = []
    monkeypatch.setattr(pilot, "show", lambda *_: True)
    monkeypatch.setattr(pilot, "estimate", lambda spec, *_, **__: asked.append(spec))
    finished = pilot.FinishedPilot(job, unreadable)
    pilot.shown_estimate(ledger, spec, Settings(), finished, Console(quiet=True))
    assert [each.engine_key for each in asked] == [job.spec.engine_key]
    assert asked[0].identity == spec.identity


def test_who_types_auto_allows_no_tuned_argument_that_needs_a_word(
    here: Machine, tmp_path: Path
) -> None:
    guarded = {"trust_remote_code": True, "hf_token": "hf_abc"}
    keep(here.ledger, hardware.of_this_machine(), guarded)
    spec = auto_spec(tmp_path)
    with pytest.raises(BadInput, match="which auto stands for"):
        here.submit(spec)
    words = ("trust_remote_code:org/model", "hf_token")
    here.settings = Settings(allowed_engine_args=words)
    job = here.submit(spec)
    assert for_spec(job.spec, Settings()).allowed_engine_args == ()
    assert "hf_abc" not in (remark(job.spec) or "")


def test_a_changed_prompt_of_an_auto_job_is_the_only_difference_that_is_named(
    ledger: Ledger, tmp_path: Path
) -> None:
    submit(ledger, auto_spec(tmp_path), Settings())
    keep(ledger, H100, FAST)
    spec = auto_spec(tmp_path)
    task = spec.task.model_copy(update={"prompt": "Other: {{ text }}"})
    with pytest.raises(BadInput, match=r"differs in task.prompt:"):
        submit(ledger, spec.model_copy(update={"task": task}), Settings())


def test_the_pool_is_tuned_where_its_slots_live_without_a_child(
    world: World, tmp_path: Path, database_url: str
) -> None:
    report(world, [replace(slot, hardware=H100) for slot in empty(2)])
    spec, quiet = auto_spec(tmp_path), Console(quiet=True)
    settings = Settings(database_url=database_url)
    with pilot_place.pilots(spec, settings, quiet) as place:
        assert (place.is_here, place.slots) == (False, {H100: 2})


def test_slots_that_may_have_another_engine_alone_run_no_pilot(world: World) -> None:
    only = fleet.Machine("m", "default", "host", "key")
    report(world, empty(1), only)
    assert world.run(tunings.is_served, "default", "key")
    assert not world.run(tunings.is_served, "default", "another")
    assert world.run(tunings.loads_of, "default", "another") == []


def test_an_engine_is_the_same_whether_its_arguments_were_named_or_found(tmp_path: Path) -> None:
    auto = auto_spec(tmp_path)
    assert isinstance(auto.engine, VllmEngineSpec)
    found = {"args": FAST, "args_from": H100}
    filled = auto.model_copy(update={"engine": auto.engine.model_copy(update=found)})
    named = auto.model_copy(
        update={"engine": auto.engine.model_copy(update={"args": FAST, "args_auto": False})}
    )
    assert filled.engine_key == named.engine_key != auto.engine_key
    assert filled.identity == auto.identity != named.identity
    assert "args_auto" not in named.model_dump_json()
    with pytest.raises(BadInput, match="auto stands alone"):
        parse_spec(filled.model_dump(mode="json", by_alias=True), "test")
    data = auto.model_dump(mode="json", by_alias=True)
    with pytest.raises(BadInput, match="args_from is set at submit"):
        parse_spec({**data, "engine": {**data["engine"], "args_from": H100}}, "test")
    engine = {**data["engine"], "args": "auto", "args_auto": False}
    with pytest.raises(BadInput, match="args_auto is set by args: auto"):
        parse_spec({**data, "engine": engine}, "test")


@pytest.mark.parametrize(
    ("slots", "why"),
    [({}, "has reported its hardware"), ({H100: 1, CPU: 1}, "different hardware")],
)
def test_a_pool_of_unequal_machines_is_not_tuned(slots: dict[str, int], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        tune._only(slots, "default")
    assert tune._only({CPU: 4}, "default") == CPU
