"""Which job may be replaced by another one in its output directory."""

from dataclasses import replace

import pytest

from nightshift.common.ledger.jobs.replacements import Facts, refusal
from nightshift.common.states import JobState

FAILED = Facts(JobState.FAILED, tenant="", is_closed=True)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_ended_without_a_row_may_be_replaced(state: JobState) -> None:
    assert refusal(replace(FAILED, state=state), "") is None
    assert refusal(replace(FAILED, state=state, tenant="red"), "red") is None


@pytest.mark.parametrize(
    ("facts", "reason", "is_temporary"),
    [
        (replace(FAILED, state=JobState.RUNNING), "it is running", False),
        (replace(FAILED, state=JobState.PAUSED), "it is paused", False),
        (replace(FAILED, state=JobState.COMPLETED), "it is completed", False),
        (replace(FAILED, tenant="red"), "another tenant", False),
        (replace(FAILED, has_parts=True), "it has committed rows", False),
        (replace(FAILED, is_archived=True), "it is archived", False),
        (replace(FAILED, keeps_files=True), "it is being deleted, and its files are kept", False),
        (replace(FAILED, is_needed=True), "a table or a batch", False),
        (replace(FAILED, is_owned=True, is_closed=False), "a worker still holds", True),
        (replace(FAILED, is_held=True), "a reaper is finishing or archiving it", True),
        (replace(FAILED, is_closed=False), "its files are not finished", True),
        # What stays comes before what passes.
        (replace(FAILED, has_parts=True, is_held=True), "it has committed rows", False),
    ],
)
def test_every_other_job_stays(facts: Facts, reason: str, is_temporary: bool) -> None:
    found = refusal(facts, "")
    assert found is not None
    assert reason in found.reason
    assert found.is_temporary is is_temporary
