"""Where a child goes on whose next batch is gone."""

import pytest

from nightshift.common.ledger.batches.neighbours import new_start, runs


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], []),
        ([7], [(7, 8)]),
        ([3, 4, 5], [(3, 6)]),
        ([3, 3, 4, 9], [(3, 5), (9, 10)]),  # pieces of one batch have its number
        ([0, 2, 4], [(0, 1), (2, 3), (4, 5)]),
    ],
)
def test_runs_have_no_gap(numbers: list[int], expected: list[tuple[int, int]]) -> None:
    assert [(run.start, run.stop) for run in runs(numbers)] == expected


@pytest.mark.parametrize(
    ("queued", "held", "expected"),
    [
        ([], [], None),
        ([0, 1, 2, 3], [], 0),  # nobody is before it
        ([4, 5, 6, 7], [], 4),
        ([4, 5, 6, 7], [3], 6),  # whoever has 3 goes on with 4 and 5
        ([4, 5, 6, 7, 8], [3], 6),
        ([4, 5, 6], [3], 5),
        ([4, 5, 9, 10, 11, 12], [3, 8], 11),  # the longest is halved
        ([4, 5, 9, 10, 11, 12], [3], 9),  # the first that is free
        ([4, 5, 9, 10, 11, 12], [8], 4),
        ([4], [3], 4),  # the last one is taken away
    ],
)
def test_a_child_leaves_to_others_what_follows_on_theirs(
    queued: list[int], held: list[int], expected: int | None
) -> None:
    assert new_start(queued, held) == expected
