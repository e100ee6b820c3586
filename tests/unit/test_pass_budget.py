"""How many tokens a pass of the transformers engine has: doubled until memory or speed says stop."""

import math
from collections.abc import Callable, Sequence

import pytest

from nightshift.worker.engines.transformers.budget import (
    FULL,
    LONG_ROWS,
    MOST_ON_CPU,
    PAIRS,
    Budget,
)


def warm(tokens: int, most: float = math.inf) -> Budget:
    """A budget after the first pass, which says nothing."""
    return Budget(tokens, most).passed(9, tokens, 1e9, 600)


def after(budget: Budget, tokens: int, seconds: float, allowed: float = 600) -> Budget:
    """The budget after a pass of several rows."""
    return budget.passed(9, tokens, seconds, allowed)


def run(
    seconds: Callable[[int], float],
    first: int = 1024,
    passes: int = 100,
    *,
    row: int = 1,
    most: float = math.inf,
    allowed: float = 600,
) -> Budget:
    """The budget after passes of rows of one length, each with as many rows as it may have, that take as long
    as `seconds` says of their tokens.
    """
    budget = warm(first, most)
    for _ in range(passes):
        rows = max(1, budget.next // row)
        budget = budget.passed(rows, rows * row, seconds(rows * row), allowed)
    return budget


@pytest.mark.parametrize(
    ("what", "seconds", "found"),
    [
        ("each pass costs a millisecond beside its tokens", lambda n: 1e-3 + n / 1e6, 16_384),
        (
            "passes over 4,096 tokens leave the cache",
            lambda n: n / (1e5 if n <= 4096 else 5e4),
            1024,
        ),
        ("up to 4,096 tokens take the same time", lambda n: max(n, 4096) / 1e5, 4096),
        ("a token costs the same everywhere", lambda n: n / 1e5, 1024),
        ("larger passes are slower", lambda n: n**1.5 / 1e6, 1024),
        ("a pass takes seconds", lambda n: 3.0, 1024),
        ("a pass of 4,096 tokens takes seconds", lambda n: 3.0 if n > 2048 else 0.1, 2048),
    ],
)
def test_a_pass_grows_while_its_tokens_get_cheaper(
    what: str, seconds: Callable[[int], float], found: int
) -> None:
    budget = run(seconds)
    assert budget.settled, what
    assert budget.tokens == budget.next == found, what


@pytest.mark.parametrize(
    ("first", "row"),
    [(1024, 600), (1024, 1300), (1024, 4000), (32, 40), (32, 180), (256, 40), (256, 180)],
)
def test_long_rows_share_larger_passes_where_that_is_faster(first: int, row: int) -> None:
    budget = run(lambda tokens: 0.005, first, 50, row=row)
    assert budget.next >= 2 * row
    assert budget.tokens > first


@pytest.mark.parametrize(
    ("long", "found"), [(LONG_ROWS - 1, 1024), (LONG_ROWS, 8000), (LONG_ROWS + 5, 8000)]
)
def test_a_few_long_rows_do_not_make_the_passes_of_short_rows_larger(long: int, found: int) -> None:
    budget = warm(1024)
    for _ in range(3):
        for _ in range(long):
            budget = budget.passed(1, 8000, 0.5, 600)
        if budget.tokens == 1024:
            budget = after(budget, budget.next, 0.1)
    assert budget.tokens == found


def test_sizes_are_compared_in_turns_and_passes_that_are_not_full_say_nothing() -> None:
    budget = warm(100)
    sizes = []
    for _ in range(2 * PAIRS):
        sizes.append(budget.next)
        assert after(budget, int(FULL * 100), 1e-9) == budget
        budget = after(budget, budget.next, 1.0)
    assert sizes == [100, 200] * PAIRS
    assert budget.tokens == 200


def test_a_pass_that_was_taken_before_the_one_ahead_had_ended_is_of_its_own_size() -> None:
    """Two passes of each size in turn are taken: passes of one size are as many, and none is taken for another."""
    budget, ahead = warm(100), 100
    for _ in range(4 * PAIRS - 1):
        taken = budget.next
        budget, ahead = after(budget, ahead, 0.01 * ahead), taken
    assert (budget.tokens, budget.settled) == (100, True)


def test_one_slow_pass_of_many_does_not_decide() -> None:
    budget = warm(100)
    for number in range(2 * PAIRS):
        slow = 1000 if number == 3 else 1
        budget = after(budget, budget.next, slow * (0.01 if budget.next == 200 else 0.02))
    assert budget.tokens == 200


@pytest.mark.parametrize(
    ("seconds", "allowed", "settled"),
    [
        ([3], 600, False),
        ([3, 1, 1], 600, False),
        ([3, 3], 600, True),
        ([3, 1, 3], 600, True),
        ([1, 1, 1], 600, False),
        ([1, 1], 3, True),
        ([0.7, 0.7], 3, False),
    ],
)
def test_two_slow_passes_of_a_size_settle(
    seconds: Sequence[float], allowed: float, settled: bool
) -> None:
    budget = warm(100)
    for each in seconds:
        budget = after(budget, budget.next, each, allowed)
    assert (budget.tokens, budget.settled) == (100, settled)


def test_passes_stay_within_the_time_that_rows_may_take() -> None:
    budget = run(lambda tokens: 0.1 + tokens / 1e4, first=32, row=8, allowed=1.0)
    assert (budget.next, budget.settled) == (1024, True), "2,048 tokens take 0.3 s"


def test_after_a_pass_over_its_time_none_is_larger_than_half() -> None:
    for budget in (warm(100), run(lambda tokens: tokens / 1e5, first=100)):
        assert after(budget, 100, 5.1, 5) == budget.without_memory(100)


def test_the_first_pass_says_nothing() -> None:
    assert Budget(100).passed(9, 100, 700.0, 600).next == 100


@pytest.mark.parametrize(
    ("batch_size", "is_on_gpu", "first", "most"),
    [
        (32, False, 1024, MOST_ON_CPU),
        (1024, False, 32_768, 32_768),
        (32, True, 1024, math.inf),
    ],
)
def test_passes_on_a_cpu_have_a_bound(
    batch_size: int, is_on_gpu: bool, first: int, most: float
) -> None:
    budget = Budget.first(batch_size, is_on_gpu=is_on_gpu)
    assert (budget.next, budget.most) == (first, most)


@pytest.mark.parametrize("row", [1, 300, 3000])
def test_no_pass_of_several_rows_is_over_the_bound(row: int) -> None:
    budget = run(lambda tokens: 0.005, 1024, 200, row=row, most=MOST_ON_CPU)
    assert MOST_ON_CPU / 2 <= budget.next <= MOST_ON_CPU


@pytest.mark.parametrize("slow", [(0,), (0, 2), (0, 2, 4)])
def test_slow_passes_of_the_smaller_size_alone_do_not_double_it(slow: tuple[int, ...]) -> None:
    budget = warm(100)
    for number in range(2 * PAIRS):
        budget = after(budget, budget.next, budget.next * (0.005 if number in slow else 0.001))
    assert (budget.tokens, budget.settled) == (100, True)


@pytest.mark.parametrize(
    ("tokens", "lacked", "found"),
    [(100, 200, 100), (100, 100, 50), (1024, 4096, 1024), (100, 1, 1)],
)
def test_without_memory_no_pass_is_larger_than_half(tokens: int, lacked: int, found: int) -> None:
    budget = warm(tokens).without_memory(lacked)
    assert budget.settled
    assert budget.next == found
    assert budget.most == max(1, lacked // 2)
    assert after(budget, found, 1e-9) == budget


def test_a_long_row_without_memory_does_not_lift_the_bound() -> None:
    assert warm(1024).without_memory(1000).without_memory(8192).most == 500
