"""Children of a supervisor: what their end says, and what it charges."""

import pytest

from nightshift.worker.supervisor.children import ChildConfig, ExitCode, Slot

CHILD = ChildConfig(
    id="w", supervisor="s", pool="p", slot=0, host="h", pid=1, engine_key="k", job_id=1
)


@pytest.mark.parametrize(
    ("code", "asked", "fault", "reason", "died"),
    [
        (ExitCode.DRAINED, True, None, "asked", None),
        (ExitCode.DRAINED, False, None, "asked", None),
        (ExitCode.THREADS_HANG, False, None, "hung", None),
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
    assert slot.shown_state == "free"
