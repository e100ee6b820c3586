"""Row ranges behave like sets of row indices that stay in order."""

from hypothesis import given
from hypothesis import strategies as st

from nightshift.common.descriptor import RowRanges

index_sets = st.frozensets(st.integers(0, 40), max_size=30)
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def members(rows: RowRanges) -> set[int]:
    return set(rows)


@given(index_sets)
def test_indices_come_back_ascending_and_once(indices: frozenset[int]) -> None:
    rows = RowRanges.from_indices(indices)
    assert list(rows) == sorted(indices)
    assert len(rows) == len(indices)
    assert bool(rows) == bool(indices)


@given(ranges)
def test_ranges_in_any_order_become_ascending_disjoint_and_as_few_as_possible(
    given_ranges: list[tuple[int, int]],
) -> None:
    rows = RowRanges.of(*given_ranges)
    assert members(rows) == {index for pair in given_ranges for index in range(*pair)}
    edges = [edge for pair in rows.ranges for edge in pair]
    assert edges == sorted(set(edges)), "touching or overlapping ranges were not merged"


@given(index_sets, index_sets)
def test_minus_is_set_difference(left: frozenset[int], right: frozenset[int]) -> None:
    rows = RowRanges.from_indices(left).minus(RowRanges.from_indices(right))
    assert members(rows) == left - right
    assert rows == RowRanges.from_indices(left - right)


@given(index_sets)
def test_halves_are_neighbours_that_together_are_the_whole(indices: frozenset[int]) -> None:
    rows = RowRanges.from_indices(indices)
    first, second = rows.halves()
    assert [*first, *second] == list(rows)
    assert len(first) == len(rows) // 2


@given(index_sets)
def test_the_same_rows_are_equal_whichever_way_they_were_given(indices: frozenset[int]) -> None:
    singles = [(index, index + 1) for index in sorted(indices, reverse=True)]
    assert RowRanges.of(*singles) == RowRanges.from_indices(indices)
    assert hash(RowRanges.of(*singles)) == hash(RowRanges.from_indices(indices))


def test_the_rows_of_a_large_range_are_counted_without_being_listed() -> None:
    rows = RowRanges.of((0, 10**12))
    assert len(rows) == 10**12
    assert [len(half) for half in rows.halves()] == [5 * 10**11, 5 * 10**11]
