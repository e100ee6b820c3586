"""The benchmark of nights with deadlines, in small."""

import pytest

from benchmarks.deadlines import Night, Result


@pytest.mark.slow
def test_in_simulated_nights_fewer_jobs_are_late_than_by_shares_alone() -> None:
    built, alone = Result(), Result()
    for seed in range(3):
        Night(seed, "as built").run(built)
        Night(seed, "shares alone").run(alone)
    assert len(built.lateness) == len(alone.lateness) > 5
    assert len(built.late) < len(alone.late)
    assert sum(built.late) < sum(alone.late)
