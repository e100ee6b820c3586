"""How many tokens a pass of the transformers engine has: doubled until memory or speed says stop."""

from collections.abc import Callable

import pytest

from nightshift.worker.engines.transformers.budget import PAIRS, Budget


def run(seconds: Callable[[int], float], first: int = 1024, passes: int = 100) -> Budget:
    """The budget after passes that are full, each of which takes as long as `seconds` says of its tokens."""
    budget = Budget(first)
    for _ in range(passes):
        budget = budget.passed(budget.next, seconds(budget.next))
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
    ],
)
def test_a_pass_grows_while_its_tokens_get_cheaper(
    what: str, seconds: Callable[[int], float], found: int
) -> None:
    budget = run(seconds)
    assert budget.settled, what
    assert budget.tokens == budget.next == found, what


def test_sizes_are_compared_in_turns_and_passes_that_are_not_full_say_nothing() -> None:
    budget = Budget(100)
    sizes = []
    for _ in range(2 * PAIRS):
        sizes.append(budget.next)
        assert budget.passed(50, 1e-9) == budget
        budget = budget.passed(budget.next, 1.0)
    assert sizes == [100, 200] * PAIRS
    assert budget.tokens == 200


def test_one_slow_pass_of_many_does_not_decide() -> None:
    budget = Budget(100)
    for number in range(2 * PAIRS):
        slow = 100 if number == 3 else 1
        budget = budget.passed(budget.next, slow * (0.01 if budget.next == 200 else 0.02))
    assert budget.tokens == 200


@pytest.mark.parametrize("slow", [(0,), (0, 2), (0, 2, 4)])
def test_slow_passes_of_the_smaller_size_alone_do_not_double_it(slow: tuple[int, ...]) -> None:
    budget = Budget(100)
    for number in range(2 * PAIRS):
        budget = budget.passed(budget.next, budget.next * (0.005 if number in slow else 0.001))
    assert (budget.tokens, budget.settled) == (100, True)


@pytest.mark.parametrize(
    ("tokens", "lacked", "found"),
    [(100, 200, 100), (100, 100, 50), (1024, 4096, 1024), (100, 1, 1)],
)
def test_without_memory_no_pass_is_larger_than_half(tokens: int, lacked: int, found: int) -> None:
    budget = Budget(tokens).without_memory(lacked)
    assert budget.settled
    assert budget.next == found
    assert budget.most == max(1, lacked // 2)
    assert budget.passed(found, 1e-9) == budget
