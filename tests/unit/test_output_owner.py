"""Whose an output directory is, by what its marker says."""

import pytest

from nightshift.common.formats.owner_marker import Owner
from nightshift.producer.submit.output_owner import Claim, claim_of

MINE = Owner("this ledger", "this job")

CASES = [
    (None, Claim.FREE),
    (MINE, Claim.OWN),
    (Owner("another ledger", "this job"), Claim.SAME_JOB_ELSEWHERE),
    (Owner("this ledger", "another job"), Claim.OTHER_JOB),
    (Owner("another ledger", "another job"), Claim.OTHER_LEDGER),
]


@pytest.mark.parametrize(("found", "claim"), CASES, ids=[claim.name for _, claim in CASES])
def test_whose_a_directory_is(found: Owner | None, claim: Claim) -> None:
    assert claim_of(found, MINE) is claim
