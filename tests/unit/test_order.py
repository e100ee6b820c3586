"""The order in which rows go into an engine."""

from worker.engines.order import Order


def in_order(lengths: list[int | None], reach: int) -> list[int]:
    order = Order(reach)
    ranks = [order.rank(length, 100) for length in lengths]
    return sorted(range(len(lengths)), key=lambda place: (ranks[place], place))


def test_rows_of_one_length_go_as_they_come() -> None:
    assert in_order([None] * 5, 10) == in_order([30] * 5, 10) == [0, 1, 2, 3, 4]


def test_a_long_row_overtakes_short_ones_so_that_it_does_not_run_alone_at_the_end() -> None:
    assert in_order([1, 1, 1, 1, 100], 10) == [4, 0, 1, 2, 3]


def test_no_row_is_overtaken_by_one_that_came_a_whole_reach_later() -> None:
    assert in_order([1] + [100] * 20, 10).index(0) <= 10


def test_a_row_without_a_length_of_its_own_may_be_as_long_as_the_job_allows() -> None:
    assert in_order([1, 1, None], 10) == [2, 0, 1]
