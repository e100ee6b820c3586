"""Ranges from what was measured: the arithmetic, with answers known beforehand."""

import random

import numpy as np
import pytest

from nightshift.common.ranges import Range
from nightshift.producer.estimate import forecast


def test_rows_over_a_pace_give_the_longest_time_for_the_slowest() -> None:
    assert Range(8, 10, 20).under(400) == Range(20, 40, 50)
    assert Range(0, 10, 20).under(400) is None


def test_a_sum_adds_bounds_and_has_no_likely_where_one_has_none() -> None:
    assert Range(1, 2, 3) + Range(10, 20, 30) == Range(11, 22, 33)
    assert Range(1, 2, 3) + Range(0, None, 8) == Range(1, None, 11)
    assert Range(0, None, 8).times(2) == Range(0, None, 16)


def test_the_mean_of_a_sample_is_bounded_by_its_standard_error() -> None:
    found = forecast.mean_range([10, 20] * 50)
    assert found.likely == 15
    # The standard deviation is 5.025, over the root of 100 and times 1.645: 0.827.
    assert (found.low, found.high) == pytest.approx((15 - 0.827, 15 + 0.827), abs=0.001)
    assert forecast.mean_range([7]) == Range.exactly(7)


def test_the_mean_of_all_rows_is_known() -> None:
    assert forecast.mean_range([10, 20] * 50, share=1.0) == Range.exactly(15)
    # Three quarters of the rows: half the margin.
    found = forecast.mean_range([10, 20] * 50, share=0.75)
    assert (found.low, found.high) == pytest.approx((15 - 0.413, 15 + 0.413), abs=0.001)


def test_the_interval_of_the_mean_holds_it_nine_times_in_ten() -> None:
    chance = random.Random(1)
    dataset = [round(chance.lognormvariate(4, 1)) for _ in range(20_000)]
    truth = sum(dataset) / len(dataset)
    held = 0
    for _ in range(400):
        found = forecast.mean_range(chance.sample(dataset, 500))
        held += found.low <= truth <= found.high
    assert 0.85 <= held / 400 <= 0.94


def test_the_interval_of_a_pace_holds_the_true_one_nine_times_in_ten() -> None:
    chance = random.Random(2)
    held = 0
    for _ in range(300):
        commits = [(32.0, chance.gammavariate(4, 0.1)) for _ in range(200)]
        found = forecast.ratio_range(commits)
        assert found is not None
        held += found.low <= 32 / 0.4 <= found.high
    assert 0.82 <= held / 300 <= 0.95


def test_commits_of_one_group_do_not_look_like_a_varying_pace() -> None:
    """Three of four batches have no time of their own: the fourth has it all."""
    commits = [(10.0, 4.0 if place % 4 == 0 else 0.0) for place in range(400)]
    found = forecast.ratio_range(commits)
    assert found is not None
    assert found.likely == 10
    assert 9.9 < found.low <= found.high < 10.1


def test_too_few_commits_have_no_range_and_no_time_has_no_pace() -> None:
    assert forecast.ratio_range([(10, 1), (20, 1)]) == Range.exactly(15)
    assert forecast.ratio_range([(10, 0)]) is None
    assert forecast.ratio_range([]) is None


def test_tokens_cost_what_their_prices_say() -> None:
    cost = forecast.token_money(1_000, (2.0, Range(90, 100, 110)), (10.0, Range(0, None, 50)))
    assert cost is not None
    assert (cost.low, cost.high) == pytest.approx((0.18, 0.72))
    assert cost.likely is None


def test_tokens_that_nobody_knows_cost_nothing_only_where_they_are_free() -> None:
    known = Range.exactly(100)
    assert forecast.token_money(10, (1.0, known), (1.0, None)) is None
    assert forecast.token_money(10**6, (1.0, known), (None, None)) == Range.exactly(100)


def test_a_histogram_counts_every_length_once_in_equal_steps() -> None:
    lengths = np.array([3, 3, 4, 18, 19, 19])
    bins = forecast.bins(lengths)
    assert sum(count for _, _, count in bins) == len(lengths)
    assert bins[0] == (3, 5, 3)
    assert bins[-1][1] >= 19
    assert {high - low for low, high, _ in bins} == {2}
    assert forecast.bins(np.array([5, 5])) == [(5, 5, 2)]


def test_a_quantile_is_a_length_that_a_row_has() -> None:
    lengths = np.arange(1, 101)
    assert [forecast.quantile(lengths, at) for at in (50, 90, 99, 100)] == [50, 90, 99, 100]
