"""Whom a failed load concerns, and when failed loads fail the jobs: two tables of cases."""

import errno
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors as hub

from nightshift.common.allocation.load_errors import (
    CASES,
    MOST_TRIES,
    Concern,
    FailedLoad,
    case_of,
    fails_jobs,
)
from nightshift.common.errors import (
    EngineLoadFailed,
    EngineNotHere,
    LoadUnexplained,
    MachineCannotLoad,
    RevisionChanged,
)
from nightshift.worker.engines.function.host import error_types
from nightshift.worker.engines.vllm import devices

WORKER, MACHINE, JOB = Concern.WORKER, Concern.MACHINE, Concern.JOB


# Importing torch takes ten seconds; its name in the table is checked where torch is tested.
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})


class OfSomeLibrary(Exception):
    """A type that the table does not know."""


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def hub_error(kind: type[Exception]) -> Exception:
    return kind.__new__(kind)


@pytest.mark.parametrize(
    ("error", "concern", "passes"),
    [
        (EngineNotHere("the module is not allowed on this worker"), WORKER, False),
        (caused(EngineNotHere("install an extra"), ImportError("vllm")), WORKER, False),
        (hub_error(hub.GatedRepoError), WORKER, False),
        (MachineCannotLoad("the child was ended by SIGKILL"), MACHINE, True),
        (OutOfMemoryError("of a GPU"), MACHINE, True),
        (MemoryError(), MACHINE, True),
        (OSError(errno.ENOSPC, "no space left"), MACHINE, True),
        (FileNotFoundError(errno.ENOENT, "no such file"), MACHINE, True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), MACHINE, True),
        (hub_error(hub.LocalEntryNotFoundError), MACHINE, True),
        (hub_error(hub.HfHubHTTPError), MACHINE, True),
        (hub_error(hub.OfflineModeIsEnabled), MACHINE, True),
        (EngineLoadFailed("'rules' cannot be imported: SyntaxError"), JOB, False),
        (hub_error(hub.RepositoryNotFoundError), JOB, False),
        (hub_error(hub.RevisionNotFoundError), JOB, False),
        (hub_error(hub.RemoteEntryNotFoundError), JOB, False),
        (RevisionChanged("another revision"), JOB, True),
        (ValueError("max_model_len"), JOB, False),
        (OfSomeLibrary(), JOB, True),
        # Libraries and our own words stand around the error that counts.
        (caused(LoadUnexplained("cannot load"), OutOfMemoryError("of a GPU")), MACHINE, True),
        (
            caused(
                LoadUnexplained("cannot load"),
                caused(OSError("no such model"), hub_error(hub.RepositoryNotFoundError)),
            ),
            JOB,
            False,
        ),
        (LoadUnexplained("cannot load"), JOB, True),
    ],
)
def test_whom_an_error_concerns(error: BaseException, concern: Concern, passes: bool) -> None:
    found = case_of(error)
    assert (found.concern, found.passes) == (concern, passes)


@pytest.mark.parametrize(
    ("error", "concern", "passes"),
    [
        (hub_error(hub.LocalEntryNotFoundError), MACHINE, True),
        (hub_error(hub.RepositoryNotFoundError), JOB, False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), MACHINE, True),
        (type("Away", (ConnectionError,), {})("of a client of the user"), MACHINE, True),
        (OSError(errno.ENOSPC, "no space left"), MACHINE, True),
        (OutOfMemoryError("of a GPU"), MACHINE, True),
        (caused(RuntimeError("no model"), TimeoutError("no answer")), MACHINE, True),
        (caused(OSError("no model"), hub_error(hub.LocalEntryNotFoundError)), MACHINE, True),
        (caused(ValueError("a wrong argument"), ConnectionError("why")), JOB, False),
        (OSError("told by a library"), JOB, False),
        (ValueError("a wrong argument"), JOB, False),
        (ImportError("not this one"), JOB, False),
        (SystemExit(3), JOB, False),
        (OfSomeLibrary(), JOB, False),
    ],
)
def test_whom_an_error_of_a_functions_process_concerns(
    error: BaseException, concern: Concern, passes: bool
) -> None:
    found = case_of(EngineLoadFailed("'rules:f' cannot be imported", error_types(error)))
    assert (found.concern, found.passes) == (concern, passes)


@dataclass
class Devices:
    """The devices of a slot, as vLLM tells them."""

    device_type: str
    gpus: int = 0

    def is_cuda_alike(self) -> bool:
        return self.device_type == "cuda"

    def device_count(self) -> int:
        return self.gpus


CPU, NOTHING = Devices("cpu"), Devices("")


@pytest.mark.parametrize(
    ("args", "platform", "says"),
    [
        ({}, Devices("cuda", 1), None),
        ({"tensor_parallel_size": 4}, Devices("cuda", 4), None),
        ({"tensor_parallel_size": 4}, Devices("cuda", 1), "ask for 4 GPUs .* this slot has 1"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, Devices("cuda", 3), "for 4 GPUs"),
        ({"pipeline_parallel_size": 2}, Devices("cuda", 1), "pipeline_parallel_size 2"),
        ({}, Devices("cuda", 0), "this slot has 0"),
        ({"tensor_parallel_size": 2}, CPU, None),
        ({}, NOTHING, "vLLM finds no GPU"),
        ({"tensor_parallel_size": 4, "nnodes": 2}, Devices("cuda", 2), None),
        ({"tensor_parallel_size": 4, "distributed_executor_backend": "ray"}, Devices("cuda"), None),
    ],
)
def test_a_slot_with_too_few_gpus_is_the_workers_matter(
    args: dict[str, Any], platform: Devices, says: str | None
) -> None:
    if says is None:
        devices.check(args, platform)
        return
    with pytest.raises(EngineNotHere, match=says) as refused:
        devices.check(args, platform)
    assert case_of(refused.value).concern is WORKER


def test_every_type_of_our_own_is_in_the_table() -> None:
    kinds = {EngineLoadFailed, *EngineLoadFailed.__subclasses__()}
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds} <= CASES.keys()


def test_the_page_for_operators_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for case in CASES.values():
        passes = "yes" if case.passes else "no"
        assert f"| {case.meaning} | {case.concern} | {passes} |" in page


def own(machine: str, seconds: float = 0, failures: int = 1, *, passes: bool = True) -> FailedLoad:
    return FailedLoad(machine, JOB, passes, failures, seconds)


def not_here(machine: str) -> FailedLoad:
    return FailedLoad(machine, WORKER, False, 9, 999)


def no_memory(machine: str, failures: int = 9) -> FailedLoad:
    return FailedLoad(machine, MACHINE, True, failures, 999)


@pytest.mark.parametrize(
    ("failed", "machines", "in_use", "fails"),
    [
        pytest.param([own("a", 999, 3)], "ab", False, False, id="one machine of two, three times"),
        pytest.param([own("a"), own("b")], "abc", False, True, id="two machines of three"),
        pytest.param([own("a"), own("a")], "ab", False, False, id="two workers of one machine"),
        pytest.param([own("a"), own("b")], "abc", True, False, id="a third has or loads it"),
        pytest.param([own("a", 61, 2)], "a", False, True, id="the only one, longer than a load"),
        pytest.param([own("a", 59, 2)], "a", False, False, id="the only one, not for long"),
        pytest.param([own("a", 61)], "a", False, False, id="the only one, once"),
        pytest.param([own("a", 61, 2)], "", False, False, id="the last one is gone"),
        pytest.param([own("a", 61, 2), not_here("b")], "b", False, False, id="b may not load it"),
        pytest.param(
            [own("a", 61, 2), not_here("a")], "a", False, True, id="of two workers one may"
        ),
        pytest.param([not_here("a")], "a", False, False, id="not allowed on the only one"),
        pytest.param([not_here("a"), not_here("b")], "ab", False, False, id="allowed nowhere"),
        pytest.param([no_memory("a"), no_memory("b")], "ab", False, False, id="no memory anywhere"),
        pytest.param(
            [own("a", 61, 2), not_here("b")], "ab", False, True, id="all that may load it"
        ),
        pytest.param([own("a", 61, 2), no_memory("b")], "ab", False, False, id="b may have memory"),
        pytest.param([], "ab", False, False, id="nothing failed"),
    ],
)
def test_when_failed_loads_fail_the_jobs_of_a_fleet(
    failed: list[FailedLoad], machines: str, in_use: bool, fails: bool
) -> None:
    assert fails is fails_jobs(
        failed, set(machines), in_use=in_use, load_seconds=60, one_machine=False
    )


def test_an_engine_that_was_never_loaded_has_half_a_minute() -> None:
    for seconds, fails in ((29, False), (31, True)):
        assert fails is fails_jobs(
            [own("a", seconds, 2)], {"a"}, in_use=False, load_seconds=None, one_machine=False
        )


@pytest.mark.parametrize(
    ("failed", "in_use", "fails"),
    [
        (own("a", passes=False), False, True),
        (own("a", passes=False), True, False),
        (not_here("a"), False, True),
        (own("a"), False, False),
        (own("a", failures=MOST_TRIES), False, True),
        (no_memory("a", 1), False, False),
        (no_memory("a", MOST_TRIES), False, True),
    ],
)
def test_when_failed_loads_fail_the_job_of_a_run(
    failed: FailedLoad, in_use: bool, fails: bool
) -> None:
    here = replace(failed, here=True)
    assert fails is fails_jobs([here], {"a"}, in_use=in_use, load_seconds=None, one_machine=True)


@pytest.mark.parametrize("failed", [not_here("b"), own("b", failures=MOST_TRIES)])
def test_what_failed_on_other_machines_fails_no_job_of_a_run(failed: FailedLoad) -> None:
    passing = replace(no_memory("a", 1), here=True)
    assert not fails_jobs(
        [failed, passing], {"a"}, in_use=False, load_seconds=None, one_machine=True
    )
