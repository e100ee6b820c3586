"""What the doctor says of each finding: ok, or what to do."""

import pytest

from nightshift.producer.advice.here import Here, Works
from nightshift.producer.doctor import checks
from nightshift.producer.doctor.checks import Check, Health

OLD = {"0.1.0+old": 2}

CASES = [
    (checks.clock(0.4), Health.OK, "0.4 s ahead of Postgres"),
    (checks.clock(-61), Health.NOTE, "61.0 s behind Postgres"),
    (checks.reapers([]), Health.WRONG, "none is alive: nothing is handed out"),
    (checks.reapers([{"host": "a", "silent_seconds": 31}]), Health.WRONG, "none is alive"),
    (checks.reapers([{"host": "a", "silent_seconds": 1}]), Health.NOTE, "1 alive, on a"),
    (
        checks.reapers([{"host": h, "silent_seconds": 1} for h in "ba"]),
        Health.OK,
        "2 alive, on a, b",
    ),
    (
        checks.reapers([{"host": "a", "silent_seconds": 1}], Here(Works.RUN)),
        Health.OK,
        "1 alive, on a",
    ),
    (checks.children([]), Health.NOTE, "none is alive"),
    (
        checks.children([{"state": state} for state in ("ready", "loading", "ready")]),
        Health.OK,
        "2 ready, 1 loading",
    ),
    (checks.children([{"state": "lost"}]), Health.WRONG, "1 lost"),
    (checks.code({"new": 1}, {"new": 3}), Health.OK, "every process runs this code"),
    (checks.code({"new": 1}, {"new": 1, "old": 2}), Health.NOTE, "other code runs in the fleet"),
    (checks.broker(None), Health.NOTE, "no NIGHTSHIFT_BROKER_URL"),
]


@pytest.mark.parametrize(
    ("check", "health", "said"), CASES, ids=lambda each: getattr(each, "said", "")
)
def test_each_finding_says_how_it_is_and_what_to_do(
    check: Check, health: Health, said: str
) -> None:
    assert check.health is health
    assert check.said.startswith(said)
    assert bool(check.advice) == (health is not Health.OK)


def test_a_broker_that_does_not_answer_is_wrong() -> None:
    check = checks.broker("redis://127.0.0.1:1/0")
    assert check.health is Health.WRONG
    assert check.said.startswith("the broker cannot be reached")
    assert check.advice
