"""`engine.args: auto`: what was tuned for a model, a task and a pool's hardware becomes the job's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, VllmEngineSpec, parse_spec
from nightshift.producer.estimate.pilot import submit_pilot
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
    assert any("auto stands for max_num_seqs=16" in remark for remark in first.remarks)
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


def test_an_engine_is_the_same_whether_its_arguments_were_named_or_found(tmp_path: Path) -> None:
    auto = auto_spec(tmp_path)
    assert isinstance(auto.engine, VllmEngineSpec)
    filled = auto.model_copy(update={"engine": auto.engine.model_copy(update={"args": FAST})})
    named = auto.model_copy(
        update={"engine": auto.engine.model_copy(update={"args": FAST, "args_auto": False})}
    )
    assert filled.engine_key == named.engine_key != auto.engine_key
    assert filled.identity == auto.identity != named.identity
    assert "args_auto" not in named.model_dump_json()
    with pytest.raises(BadInput, match="auto stands alone"):
        parse_spec(filled.model_dump(mode="json", by_alias=True), "test")


@pytest.mark.parametrize(
    ("slots", "why"),
    [({}, "too old to say"), ({H100: 1, CPU: 1}, "different hardware")],
)
def test_a_pool_of_unequal_machines_is_not_tuned(slots: dict[str, int], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        tune._only(slots, "default")
    assert tune._only({CPU: 4}, "default") == CPU
