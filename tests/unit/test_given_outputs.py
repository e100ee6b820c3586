"""Which failed job gives its output directory to another one."""

from dataclasses import replace

import pytest

from nightshift.common.ledger.jobs.given_outputs import Facts, gives
from nightshift.common.states import JobState

FAILED = Facts(JobState.FAILED, tenant="", is_closed=True)


def test_a_failed_job_without_an_answer_gives_its_directory() -> None:
    assert gives(FAILED, "")
    assert gives(replace(FAILED, tenant="red"), "red")


@pytest.mark.parametrize(
    "facts",
    [
        *(replace(FAILED, state=state) for state in JobState if state is not JobState.FAILED),
        replace(FAILED, tenant="red"),
        replace(FAILED, is_closed=False),
        replace(FAILED, is_deleted=True),
        replace(FAILED, is_away=True),
        replace(FAILED, is_leased=True),
        replace(FAILED, has_parts=True),
        replace(FAILED, is_needed=True),
    ],
    ids=[
        *(str(state) for state in JobState if state is not JobState.FAILED),
        "of another tenant",
        "not closed",
        "being deleted",
        "archived",
        "with a lease",
        "with a part",
        "that a table or a batch needs",
    ],
)
def test_every_other_job_keeps_it(facts: Facts) -> None:
    assert not gives(facts, "")
