"""Children of a supervisor: what their end says, what it charges, and one that does not end."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.fleet import slots, workers
from nightshift.common.processes.process_group import EMPTY_SECONDS
from nightshift.common.settings import Settings
from nightshift.worker.supervisor.children import ChildConfig, Slot
from nightshift.worker.supervisor.supervisor import Supervisor
from nightshift.worker.telemetry.machine import MachineMetrics

CHILD = ChildConfig(
    id="w", supervisor="s", pool="p", slot=0, host="h", pid=1, engine_key="k", job_id=1, channel=3
)


@pytest.mark.parametrize(
    ("code", "asked", "fault", "reason", "died"),
    [
        (ExitCode.DONE, True, None, "asked", None),
        (ExitCode.DONE, False, None, "asked", None),
        (ExitCode.THREADS_HANG, False, None, "hung", None),
        (ExitCode.ENGINE_GONE, False, None, "died", None),
        (ExitCode.ENGINE_DEAD, False, None, "died", "the engine died"),
        (ExitCode.ENGINE_DEAD, True, None, "asked", None),
        (-9, False, None, "died", "the worker child was ended by SIGKILL"),
        (-9, False, "the child hung", "hung", "the child hung"),
        (ExitCode.LOAD_FAILED, False, None, "load_failed", "the engine could not be loaded"),
        (1, False, None, "died", "the worker child ended with exit code 1"),
    ],
)
def test_an_orderly_end_charges_nothing_and_any_other_names_its_cause(
    code: int, asked: bool, fault: str | None, reason: str, died: str | None
) -> None:
    slot = Slot(0, (), CHILD, leaving_since=1.0 if asked else None, fault=fault)
    assert slot.exit_reason(code) == reason
    ended = slot.ended(CHILD, "vllm", code)
    assert ended.died == died
    assert ended.while_loading == (died is not None and code != ExitCode.LOAD_FAILED)
    slot.free()
    assert slot.shown_state == "free"


class Group:
    """A process group that ended, or that the kernel does not let go while it is `kept`."""

    pid = 1

    def __init__(self, *, kept: bool) -> None:
        self.kept = kept

    def poll(self) -> int | None:
        return None if self.kept else int(ExitCode.ENGINE_DEAD)

    def killed(self) -> bool:
        return not self.kept

    def terminate(self) -> None: ...


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The children whose leases a supervisor has freed, and why they ended."""
    found: list[tuple[str, str | None]] = []

    def end(_: Any, worker_id: str, *, died: str | None) -> int:
        found.append((worker_id, died))
        return 0

    monkeypatch.setattr(workers, "child_state", lambda *_: "ready")
    monkeypatch.setattr(workers, "end", end)
    monkeypatch.setattr(slots, "leave", lambda *_: None)
    monkeypatch.setattr(schema, "check", lambda _: None)
    monkeypatch.setattr(Supervisor, "choose", lambda _: None)
    return found


@pytest.fixture
def supervisor() -> Supervisor:
    """Two slots: the child of the first was killed and does not end, that of the second died."""
    found = Supervisor(
        cast(Ledger, SimpleNamespace(transaction=nullcontext)),
        Settings(),
        pool="p",
        slot_count=2,
        gpus=(),
        engine_key=None,
        identity="s",
        profile=None,
        metrics=MachineMetrics("p"),
    )
    for slot in found.slots:
        slot.config = replace(CHILD, id=f"w-{slot.number}", slot=slot.number)
        slot.group = cast(Any, Group(kept=slot.number == 0))
    found.slots[0].fault = "the child hung"
    found.slots[0].kill()
    return found


def test_a_child_that_the_kernel_keeps_costs_its_slot_alone(
    supervisor: Supervisor, reported: list[tuple[str, str | None]]
) -> None:
    kept, other = supervisor.slots
    supervisor.look()
    assert reported == [("w-1", "the engine died")]
    assert (kept.lost, other.shown_state) == (False, "free")

    assert kept.killed_at is not None
    kept.killed_at -= EMPTY_SECONDS + 1
    for _ in range(3):
        supervisor.look()
    assert reported == [("w-1", "the engine died"), ("w-0", "the child hung")]
    assert (kept.lost, kept.shown_state, kept.report().lost) == (True, "lost", True)

    cast(Any, kept.group).kept = False
    supervisor.look()
    assert (kept.lost, kept.shown_state, kept.report().lost) == (False, "free", False)
    assert len(reported) == 2


def test_a_supervisor_that_drains_waits_for_no_child_that_the_kernel_keeps(
    supervisor: Supervisor, reported: list[tuple[str, str | None]]
) -> None:
    kept = supervisor.slots[0]
    assert kept.killed_at is not None
    kept.killed_at -= EMPTY_SECONDS + 1
    supervisor.drain_all()
    assert kept.lost
    assert sorted(reported) == [("w-0", "the child hung"), ("w-1", None)]
