"""What people may type next, by how a job ended."""

from typing import Any

import pytest

from nightshift.producer.advice.here import NOBODY
from nightshift.producer.views.next_steps import next_steps

ROW = {
    "job": 3,
    "pool": "default",
    "name": "reviews",
    "reason": None,
    "rows_done": 0,
    "rows_failed": 0,
}


@pytest.mark.parametrize(
    ("row", "commands"),
    [
        (
            {"status": "completed", "rows_done": 5},
            ["nightshift sample 3", "nightshift verify 3", "nightshift collect 3 --to"],
        ),
        (
            {"status": "failed", "reason": "no module"},
            ["nightshift run SPEC", "nightshift run SPEC --out"],
        ),
        (
            {"status": "completed", "rows_failed": 5},
            ["nightshift errors 3", "nightshift retry 3 --failed"],
        ),
        ({"status": "cancelled"}, ["nightshift run SPEC --out"]),
        # The rows of an archived job do not run again.
        ({"status": "failed", "archived_at": "then"}, ["nightshift run SPEC --out"]),
        (
            {"status": "completed", "rows_failed": 5, "archived_at": "then"},
            ["nightshift errors 3", "nightshift run SPEC --out"],
        ),
        ({"status": "running"}, []),
    ],
)
def test_the_next_commands_are_those_that_help(row: dict[str, Any], commands: list[str]) -> None:
    steps = [step for step in next_steps({**ROW, **row}, NOBODY) if "    " in step]
    assert len(steps) == len(commands), steps
    assert all(step.startswith(command) for step, command in zip(steps, commands, strict=True))
