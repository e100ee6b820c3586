"""What the doctor says of each finding: ok, or what to do."""

import pytest

from nightshift.producer import doctor
from nightshift.producer.advice.here import Here, Works
from nightshift.producer.doctor import Check, Health

OLD = {"0.1.0+old": 2}

CASES = [
    (doctor.clock(0.4), Health.OK, "0.4 s ahead of Postgres"),
    (doctor.clock(-61), Health.NOTE, "61.0 s behind Postgres"),
    (doctor.reapers([]), Health.WRONG, "none is alive: nothing is handed out"),
    (doctor.reapers([{"host": "a", "silent_seconds": 31}]), Health.WRONG, "none is alive"),
    (doctor.reapers([{"host": "a", "silent_seconds": 1}]), Health.NOTE, "1 alive, on a"),
    (
        doctor.reapers([{"host": h, "silent_seconds": 1} for h in "ba"]),
        Health.OK,
        "2 alive, on a, b",
    ),
    (
        doctor.reapers([{"host": "a", "silent_seconds": 1}], Here(Works.RUN)),
        Health.OK,
        "1 alive, on a",
    ),
    (doctor.children([]), Health.NOTE, "none is alive"),
    (
        doctor.children([{"state": state} for state in ("ready", "loading", "ready")]),
        Health.OK,
        "2 ready, 1 loading",
    ),
    (doctor.children([{"state": "lost"}]), Health.WRONG, "1 lost"),
    (doctor.code({"new": 1}, {"new": 3}), Health.OK, "every process runs this code"),
    (doctor.code({"new": 1}, {"new": 1, "old": 2}), Health.NOTE, "other code runs in the fleet"),
    (doctor.broker(None), Health.NOTE, "no NIGHTSHIFT_BROKER_URL"),
    (doctor.broker("redis://127.0.0.1:1/0"), Health.WRONG, "the broker cannot be reached"),
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
