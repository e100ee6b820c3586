"""Nanoseconds become the microsecond at or before them, on both sides of 1970."""

from datetime import UTC, datetime, time, timedelta

import pyarrow as pa
import pytest

from nightshift.common.formats.values import for_python, to_list, to_rows

NS = [-1, -1000, -1001, 0, 1, 999, 1000, None, -(2**63) + 1, 2**63 - 1]
US = [None if each is None else each // 1000 for each in NS]


def moments(zone):
    epoch = datetime(1970, 1, 1, tzinfo=zone)
    return [None if each is None else epoch + timedelta(microseconds=each) for each in US]


DURATIONS = [None if each is None else timedelta(microseconds=each) for each in US]
FLAT = [
    (pa.timestamp("ns"), moments(None)),
    (pa.timestamp("ns", "UTC"), moments(UTC)),
    (pa.duration("ns"), DURATIONS),
]


@pytest.mark.parametrize(("kind", "found"), FLAT)
@pytest.mark.parametrize("start", [0, 3])
def test_moments_and_durations_are_rounded_down(kind, found, start) -> None:
    column = pa.array(NS, pa.int64()).cast(kind).slice(start)
    assert to_list(column) == found[start:]
    assert to_list(pa.chunked_array([column, column])) == found[start:] * 2
    table = pa.table({"a": column})
    assert [row["a"] for row in to_rows(table)] == found[start:]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.list_(pa.duration("ns")), [[-1, None], None, [], [1]]),
        (pa.large_list(pa.duration("ns")), [[-1, None], None, [], [1]]),
        (pa.list_(pa.duration("ns"), 2), [[-1, 1], None, [None, -1], [1, 2]]),
        (pa.struct([("x", pa.duration("ns")), ("n", pa.int64())]),
         [{"x": -1, "n": -1}, None, {"x": None, "n": 5}, {"x": 1, "n": None}]),
        (pa.map_(pa.string(), pa.duration("ns")), [[("a", -1), ("b", None)], None, [], [("c", 1)]]),
        (pa.list_(pa.struct([("x", pa.list_(pa.duration("ns")))])),
         [[{"x": [-1]}, None], None, [{"x": None}], [{"x": [1, -1001]}]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", [0, 1, 2])
def test_nested_values_are_rounded_down_too_also_in_a_slice(kind, given, start) -> None:
    def expected(value, name=""):
        if isinstance(value, dict):
            return {key: expected(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [expected(each) for each in value]
        if isinstance(value, tuple):
            return (value[0], expected(value[1]))
        return value if value is None or name == "n" else timedelta(microseconds=value // 1000)

    column = pa.array(given, kind).slice(start)
    assert to_list(column) == expected(given[start:])
    assert for_python(pa.table({"a": column})).column("a").to_pylist() == expected(given[start:])


def test_times_of_a_day_are_cut() -> None:
    assert to_list(pa.array([1999], pa.time64("ns"))) == [time(microsecond=1)]
