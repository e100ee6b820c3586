"""Whether arranging pays: a pure function of a sample, as a table of cases."""

import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from nightshift.producer.submit.arrange.savings import (
    LEAST_TOKENS,
    SharingSample,
    Worth,
    beginnings,
    distinct_values,
    kept_tokens,
    levels_of,
    worth,
)

RUN = 64


def sampled(texts: Iterable[str], rows_total: int) -> SharingSample:
    row_tokens, levels = levels_of([beginnings(text) for text in texts])
    return SharingSample(rows_total, RUN, row_tokens, levels)


def each_document(count: int, rows: int, characters: int, seed: int = 1) -> Iterator[str]:
    """Rows that each show one of so many documents, and then something of their own."""
    chance = random.Random(seed)
    for at in range(rows):
        document = chance.randrange(count)
        yield f"{document:09d}" + "d" * characters + f"{at:09d}" + "q" * 91


def documents(count: int, rows: int, characters: int) -> list[str]:
    return list(each_document(count, rows, characters))


def judged(texts: Iterable[str], rows_total: int, cache_tokens: int | None = 20_000) -> Worth:
    return worth(sampled(texts, rows_total), cache_tokens)


@pytest.mark.parametrize(
    ("what", "texts", "rows_total", "cache", "share"),
    [
        ("documents with 8 rows each", lambda: documents(512, 4096, 1891), 4096, 20_000, 0.73),
        ("the same in a cache for all", lambda: documents(512, 4096, 1891), 4096, 3_000_000, 0.0),
        ("20 long beginnings, a cache for five", lambda: documents(20, 4096, 5891), 10**6, 7_500, 0.74),
        ("a million documents with 8 rows each", lambda: documents(10**6, 4096, 1891), 8 * 10**6, 20_000, 0.8),
        ("each its own document", lambda: [f"{at:09d}" + "d" * 1991 for at in range(4096)], 10**6, 20_000, 0.0),
        ("one beginning for all, which any cache keeps", lambda: documents(1, 4096, 1891), 10**6, 20_000, 0.0),
        ("nothing shown", lambda: [""] * 4096, 10**6, 20_000, 0.0),
    ],
)  # fmt: skip
def test_saved_share_of_the_prompt_tokens(
    what: str, texts: Callable[[], list[str]], rows_total: int, cache: int, share: float
) -> None:
    found = judged(texts(), rows_total, cache)
    # Of a million documents few meet in a sample of 4,096 rows: the guess is a rough one.
    assert found.share == pytest.approx(share, abs=0.15), what
    assert found.pays == (share > 0)


def test_rows_that_stand_side_by_side_already_gain_nothing() -> None:
    texts = sorted(documents(64, 4096, 1891))
    assert judged(texts, 4096).share < 0.05
    shuffled = random.Random(2).sample(texts, len(texts))
    assert judged(shuffled, 4096, 1000).share > 0.8


def test_equal_rows_are_the_longest_beginning() -> None:
    texts = [f"{at % 2048:09d}" + "x" * 991 for at in range(4096)]
    found = judged(texts, 4096)
    assert found.share == pytest.approx(0.5, abs=0.05)
    assert found.pays


@pytest.mark.parametrize(
    ("cache", "share"),
    [(300_000, 0.68), (1_100_000, 0.0)],  # 12 of 40 documents, and all of them
)
def test_long_documents_are_compared_whole(cache: int, share: float) -> None:
    found = judged(each_document(40, 2000, 99_900), 2000, cache)
    assert found.prompt_tokens == pytest.approx(2000 * 25_000, rel=0.01)
    assert found.share == pytest.approx(share, abs=0.15)
    assert found.pays == (share > 0)


def test_what_follows_a_long_beginning_is_not_taken_for_shared() -> None:
    texts = ("s" * 20_000 + f"{at:09d}" + "d" * 80_000 for at in range(1000))
    assert judged(texts, 1000, 10_000).share < 0.2


def test_few_tokens_do_not_pay() -> None:
    small = judged(documents(10, 100, 991), 100, 1000)
    assert small.share > 0.4
    assert small.saved_tokens < LEAST_TOKENS
    assert not small.pays


def test_a_cache_that_is_not_known_counts_as_small() -> None:
    texts = documents(512, 4096, 1891)
    assert judged(texts, 4096, None).pays
    assert judged(texts, 4096, None).cache_tokens > 0


def test_without_a_cache_no_order_pays() -> None:
    found = judged(documents(512, 4096, 1891), 4096, 0)
    assert (found.pays, found.saved_tokens, found.cache_tokens) == (False, 0, 0)


@pytest.mark.parametrize(
    ("args", "loaded", "kept"),
    [
        ({}, None, None),
        ({}, 400_000, 400_000),
        ({"num_gpu_blocks_override": 100}, 400_000, 1_600),
        ({"num_gpu_blocks_override": 100, "block_size": 128}, None, 12_800),
        ({"num_gpu_blocks_override": 100}, 0, 0),
        ({"block_size": 128}, 400_000, 400_000),
    ],
)
def test_what_a_cache_keeps_by_the_arguments_and_by_the_last_load(
    args: dict[str, object], loaded: int | None, kept: int | None
) -> None:
    assert kept_tokens(args, loaded) == kept


@pytest.mark.parametrize(
    ("digests", "rows_total", "values"),
    [
        ([], 10, 0),
        ([1, 2, 3, 4], 4, 4),
        ([1, 1, 2, 2], 4, 2),
        ([1, 1, 1, 1], 4, 1),
        ([1] * 50 + list(range(100, 150)), 10**6, 500_001),
        (list(range(100)), 10**9, 10**9),
    ],
)
def test_values_of_a_dataset_by_those_of_a_sample(
    digests: list[int], rows_total: int, values: float
) -> None:
    assert distinct_values(digests, rows_total) == pytest.approx(values)


@pytest.mark.parametrize("group", [1, 2, 8, 100])
def test_small_groups_of_a_large_dataset_are_seen_by_the_pairs_in_a_sample(group: int) -> None:
    chance = random.Random(group)
    rows_total = 200_000
    digests = [row // group for row in chance.sample(range(rows_total), 4096)]
    found = 1 - distinct_values(digests, rows_total) / rows_total
    assert found == pytest.approx(1 - 1 / group, abs=0.16)
