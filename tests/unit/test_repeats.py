"""Values that stand in several rows: counted exactly, in memory and on disk alike."""

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.producer.external_sort import repeats
from nightshift.producer.external_sort.repeats import RepeatCount, Repeats


def counted(folder: Path, *batches: tuple[list[int], list[Any]]) -> Repeats:
    count = RepeatCount(folder)
    for rows, values in batches:
        count.add(rows, pa.array(values))
    return count.result()


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ([], Repeats(0, 0, 0, None)),
        (["a", "b", "c"], Repeats(3, 0, 3, None)),
        (["a", "b", "a", None, "b", "a", None], Repeats(5, 2, 2, (0, 2))),
        ([1, 2, 2], Repeats(3, 0, 2, (1, 2))),
        ([1.5, 1.5], Repeats(2, 0, 1, (0, 1))),
        ([b"a", b"b"], Repeats(2, 0, 2, None)),
        ([{"a": 1}, {"a": 2}, {"a": 1}], Repeats(3, 0, 2, (0, 2))),
        ([datetime(2026, 1, 1), datetime(2026, 1, 2)], Repeats(2, 0, 2, None)),
        ([None, None], Repeats(0, 2, 0, None)),
    ],
)
def test_values_of_every_type_are_counted(
    tmp_path: Path, values: list[Any], result: Repeats
) -> None:
    assert counted(tmp_path, (list(range(len(values))), values)) == result


def test_a_row_that_is_read_twice_counts_once(tmp_path: Path) -> None:
    part = ([0, 1], ["a", "b"])
    assert counted(tmp_path, part, part) == Repeats(2, 0, 2, None)


@pytest.mark.parametrize("held", [1, 7, 1_000_000])
@settings(max_examples=50)
@given(values=st.lists(st.one_of(st.none(), st.text(max_size=2)), max_size=60))
@pytest.mark.slow
def test_what_is_on_disk_counts_as_what_is_in_memory(
    tmp_path_factory: pytest.TempPathFactory, held: int, values: list[str | None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "HELD_ROWS", held)
        rows = list(range(len(values)))
        batches = [(rows[at : at + 5], values[at : at + 5]) for at in range(0, len(values), 5)]
        texts = [(rows, pa.array(some, pa.string())) for rows, some in batches]
        count = RepeatCount(tmp_path_factory.mktemp("digests"))
        for some, array in texts:
            count.add(some, array)
        found = count.result()
    tally = Counter(value for value in values if value is not None)
    first = next((v for v in values if v is not None and tally[v] > 1), None)
    assert (found.rows, found.different) == (tally.total(), len(tally))
    assert found.without == len(values) - tally.total()
    if first is None:
        assert found.pair is None
    else:
        assert found.pair == tuple(at for at, value in enumerate(values) if value == first)[:2]
