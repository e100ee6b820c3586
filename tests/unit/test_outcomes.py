"""How long a batch waits that was given back."""

import pytest

from nightshift.worker.outcomes import pause_seconds


@pytest.mark.parametrize(
    ("hung_before", "seconds"),
    [(0, 5), (1, 10), (2, 20), (9, 2560), (10, 3600), (11, 3600), (100_000, 3600)],
)
def test_a_batch_that_hangs_again_waits_twice_as_long_up_to_an_hour(
    hung_before: int, seconds: float
) -> None:
    assert pause_seconds(hung_before) == seconds
