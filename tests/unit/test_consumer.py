"""The pauses of a child's consumer between errors of its broker."""

import pytest

from nightshift.worker.consumer import next_pause_seconds


@pytest.mark.parametrize(
    ("pause", "since", "expected"),
    [
        (0.0, float("inf"), 0.5),
        (0.5, 0.6, 1.0),
        (16.0, 17.0, 30.0),
        (30.0, 31.0, 30.0),
        (30.0, 89.0, 30.0),
        (30.0, 90.0, 0.5),
    ],
)
def test_pauses_double_up_to_a_bound_and_start_again_after_a_steady_minute(
    pause: float, since: float, expected: float
) -> None:
    assert next_pause_seconds(pause, since) == expected
