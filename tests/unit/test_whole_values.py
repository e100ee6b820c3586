"""What is stored of an answer reads back equal to the answer, or is the `bad_type` of its row."""

import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightshift.common.formats import output_schema
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Outcome
from nightshift.worker.rows.columns import answer_column
from nightshift.worker.rows.results import RowResults, part_table
from tests.support.functions import through_the_host

UTC = dt.UTC
NOON = dt.datetime(2026, 7, 14, 12)
DAY = dt.date(2026, 7, 14)
ZONE = dt.timezone(dt.timedelta(hours=2))


def job() -> JobSpec:
    return parse_spec(
        {
            "name": "t",
            "input": {"uri": "x.parquet"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:f"},
            "output": {"uri": "out"},
        },
        "test",
    )


def stored(answers: list[Any]) -> list[Any]:
    """What a job stores of the values that a function answers row by row; `...` for `bad_type`."""
    outcomes: list[Outcome] = through_the_host([{"v": value} for value in answers])
    rows = range(len(outcomes))
    results = RowResults(rows, pa.table({"n": rows}).select([]), dict(enumerate(outcomes)))
    inputs = pa.schema([])
    schema = output_schema.inferred_schema(job(), inputs, results.answers())
    part = part_table(job(), schema or output_schema.bare_schema(job(), inputs), results)
    assert {error.kind for error in part.errors} <= {RowErrorKind.BAD_TYPE}
    bad = {error.row_index for error in part.errors}
    values = part.table.column("v").to_pylist() if "v" in part.table.schema.names else []
    return [... if row in bad else values[row] for row in rows]


def held(value: Any, kind: pa.DataType) -> Any:
    """What a column of this type holds of a value; `...` for `bad_type`."""
    column, failures = answer_column(pa.field("v", kind), [value])
    assert column.type == kind
    if not failures:
        return column.to_pylist()[0]
    assert failures[0].kind is RowErrorKind.BAD_TYPE
    assert column.to_pylist() == [None]
    return ...


@pytest.mark.parametrize(
    ("answers", "kept"),
    [
        ([["good", "short"], "spam"], [["good", "short"], ...]),
        ([["a"], ["b"], "spam", b"ab", None], [["a"], ["b"], ..., ..., None]),
        ([{"tags": ["a"]}, {"tags": "spam"}], [{"tags": ["a"]}, ...]),
        ([[["a"]], ["spam"]], [[["a"]], ...]),
        (["a", b"b"], ["a", ...]),
        ([b"b", "a"], [b"b", ...]),
        ([["a"], ["a", b"b"]], [["a"], ...]),
        (["a", 5, 2.5, True], ["a", ..., ..., ...]),
        ([5, "5", "0x10"], [5, ..., ...]),
        ([2.5, "nan", "1e400"], [2.5, ..., ...]),
        ([DAY, NOON], [DAY, ...]),
        ([NOON, DAY], [NOON, ...]),
        ([[DAY], [DAY, NOON]], [[DAY], ...]),
        ([NOON, NOON.replace(tzinfo=UTC)], [NOON, ...]),
        ([NOON.replace(tzinfo=UTC), NOON], [NOON.replace(tzinfo=UTC), ...]),
        ([[NOON.replace(tzinfo=UTC)], [NOON.replace(tzinfo=UTC), NOON]], [[NOON.replace(tzinfo=UTC)], ...]),
        ([dt.time(1), dt.time(1, tzinfo=UTC)], [dt.time(1), ...]),
        ([pd.Timestamp(NOON), pd.Timestamp(NOON) + pd.Timedelta(1, "ns")], [NOON, ...]),
        ([pd.Timedelta(1, "s"), pd.Timedelta(1, "ns")], [dt.timedelta(seconds=1), ...]),
        ([1, np.bool_(True), [np.bool_(True), 1]], [1, ..., ...]),
        ([[1], [np.bool_(True), 1]], [[1], ...]),
        ([Decimal("1.5"), 0.155, Decimal("0.5"), 2], [Decimal("1.5"), ..., Decimal("0.5"), Decimal("2")]),
        ([0.5, Decimal("0.5"), Decimal("0.1")], [0.5, 0.5, ...]),
        ([{"a": 1}, {"a": 1, "b": 2}], [{"a": 1, "b": None}, {"a": 1, "b": 2}]),
        ([1, 2.0, 2.5], [1.0, 2.0, 2.5]),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_of_its_columns_kind_is_bad_and_never_changed(
    answers: list[Any], kept: list[Any]
) -> None:
    found = stored(answers)
    assert found == kept
    assert list(map(type, found)) == list(map(type, kept))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.list_(pa.string()), "spam", ...),
        (pa.list_(pa.string()), np.str_("spam"), ...),
        (pa.large_list(pa.string()), "spam", ...),
        (pa.list_(pa.string(), 4), "spam", ...),
        (pa.list_(pa.int64()), b"ab", ...),
        (pa.list_(pa.int64()), {"a": 1}, ...),
        (pa.list_(pa.int64(), 2), [1, 2, 3], ...),
        (pa.list_(pa.int64()), np.array([1.5]), ...),
        (pa.list_(pa.int64()), np.array([1.0]), [1]),
        (pa.list_(pa.float32(), 2), [True, 2.5], ...),
        (pa.list_(pa.float32(), 2), [2**24 + 1, 2.5], ...),
        (pa.list_(pa.float32(), 2), np.array([2**24 + 1, 2]), ...),
        (pa.list_(pa.float32(), 2), [1e300, 2.5], ...),
        (pa.list_(pa.float16(), 2), np.array([70000.0, 1], np.float32), ...),
        (pa.list_(pa.float16(), 2), np.array([np.inf, 1], np.float32), [math.inf, 1]),
        (pa.list_(pa.float64(), 2), [2**53 + 1, 0.5], ...),
        (pa.list_(pa.float32(), 2), [0.1, 2], [float(np.float32(0.1)), 2]),
        (pa.int64(), 1.5, ...),
        (pa.int64(), np.float32(1.5), ...),
        (pa.int64(), 2.0, 2),
        (pa.int64(), "5", ...),
        (pa.int64(), True, ...),
        (pa.int64(), math.nan, ...),
        (pa.int8(), 300, ...),
        (pa.uint8(), -1, ...),
        (pa.bool_(), 1, ...),
        (pa.bool_(), "true", ...),
        (pa.string(), 5, ...),
        (pa.string(), b"ab", ...),
        (pa.string(), ["ab"], ...),
        (pa.binary(), "ab", ...),
        (pa.binary(2), "ab", ...),
        (pa.binary(2), b"abc", ...),
        (pa.float32(), 1e300, ...),
        (pa.float32(), 2**24 + 1, ...),
        (pa.float16(), 70000.0, ...),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.float64(), "0.1", ...),
        (pa.float64(), 2**53 + 1, ...),
        (pa.date32(), NOON, ...),
        (pa.date64(), NOON, ...),
        (pa.date32(), 5, ...),
        (pa.timestamp("us"), DAY, ...),
        (pa.timestamp("us"), 5, ...),
        (pa.timestamp("s"), NOON.replace(microsecond=7), ...),
        (pa.timestamp("s"), NOON, NOON),
        (pa.timestamp("us"), NOON.replace(tzinfo=UTC), ...),
        (pa.timestamp("us", "UTC"), NOON, ...),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=ZONE), NOON.replace(tzinfo=ZONE)),
        (pa.timestamp("us"), np.datetime64("2026-07-14T12:00:00.000000001"), ...),
        (pa.timestamp("us"), np.datetime64("2026-07-14T12:00:00.000000000"), NOON),
        (pa.timestamp("us"), pd.Timestamp(NOON) + pd.Timedelta(1, "ns"), ...),
        (pa.duration("s"), dt.timedelta(microseconds=5), ...),
        (pa.duration("s"), 5, ...),
        (pa.time32("s"), dt.time(1, 2, 3, 4), ...),
        (pa.time64("us"), dt.time(1, tzinfo=UTC), ...),
        (pa.decimal128(10, 2), Decimal("1.555"), ...),
        (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
        (pa.decimal128(10, 2), 0.155, ...),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}, ...),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": None}, {"a": 1}),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}, {"a": 1, "b": None}),
        (pa.struct([("a", pa.int64())]), [("a", 1), ("b", 2)], ...),
        (pa.struct([("a", pa.list_(pa.string()))]), {"a": "spam"}, ...),
        (pa.list_(pa.struct([("a", pa.int64())])), [{"a": 1, "b": 2}], ...),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
        (pa.map_(pa.string(), pa.int64()), [None], ...),
        (pa.map_(pa.string(), pa.int64()), "ab", ...),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}, ...),
        (pa.map_(pa.string(), pa.list_(pa.string())), {"a": "spam"}, ...),
    ],
)
def test_a_column_holds_a_value_whole_or_not_at_all(
    kind: pa.DataType, value: Any, kept: Any
) -> None:
    assert held(value, kind) == kept


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(width=16),
    st.text("ab1.", max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, ZONE])),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-99, max_value=99),
    st.integers(-9, 9).map(np.int8),
    st.floats(width=32).map(np.float32),
    st.booleans().map(np.bool_),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=6,
)
KINDS = st.recursive(
    st.sampled_from(
        [
            pa.bool_(), pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(),
            pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(2), pa.date32(),
            pa.date64(), pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns"),
            pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Rome"), pa.time32("s"),
            pa.time64("us"), pa.duration("s"), pa.duration("us"), pa.decimal128(6, 2),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=4,
)  # fmt: skip


def is_equal(value: Any, got: Any, kind: pa.DataType) -> bool:
    """Whether a value came back, judged by Python alone. An absent key is as good as a null one, and
    a fraction is the nearest that the width of the column has.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or got is None:
        return value is got
    if isinstance(value, Mapping):
        if pa.types.is_map(kind):
            return is_equal(list(value.items()), got, kind)
        kinds = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        return isinstance(got, dict) and all(
            is_equal(value.get(name), got.get(name), kinds.get(name, pa.null()))
            for name in value.keys() | got.keys()
        )
    if isinstance(value, list | tuple):
        if pa.types.is_map(kind):
            return len(value) == len(got) and all(
                len(one) == 2 and one[0] == two[0] and is_equal(one[1], two[1], kind.item_type)
                for one, two in zip(value, got, strict=True)
            )
        return (
            isinstance(got, list)
            and len(value) == len(got)
            and all(
                is_equal(one, two, kind.value_type) for one, two in zip(value, got, strict=True)
            )
        )
    numbers = (int, float, Decimal)
    if isinstance(value, bool) or not isinstance(value, numbers):
        got = got.to_pydatetime() if isinstance(got, pd.Timestamp) and not got.nanosecond else got
        alike = type(value) is type(got)
        return alike and value == got and _zone(value) == _zone(got)
    if isinstance(got, bool) or not isinstance(got, numbers):
        return False
    if value != value or got != got:
        return value != value and got != got
    if isinstance(value, float) and isinstance(got, float) and kind != pa.float64():
        width: Callable[[float], Any] = np.float16 if kind == pa.float16() else np.float32
        with np.errstate(over="ignore"):
            return math.isinf(value) == math.isinf(got) and float(width(value)) == got
    return (
        float(got) == value
        if isinstance(got, Decimal) and isinstance(value, float)
        else got == value
    )


def _zone(value: Any) -> bool:
    return getattr(value, "tzinfo", None) is not None


@settings(max_examples=400)
@example(values=[None], kind=pa.struct([("a", pa.time32("s"))]))
@example(values=[None], kind=pa.struct([("a", pa.timestamp("us", "UTC"))]))
@given(values=st.lists(VALUES, min_size=1, max_size=4), kind=KINDS)
def test_whatever_a_column_holds_reads_back_equal_to_the_answer(
    values: list[Any], kind: pa.DataType
) -> None:
    column, failures = answer_column(pa.field("v", kind), values)
    assert column.type == kind
    assert {failure.kind for failure in failures.values()} <= {RowErrorKind.BAD_TYPE}
    for at, (value, got) in enumerate(zip(values, column, strict=True)):
        if at in failures:
            assert not got.is_valid
        else:
            assert is_equal(value, got.as_py(), kind), (value, got)


@settings(max_examples=200)
@given(data=st.data(), kind=KINDS)
def test_what_a_column_held_it_holds_again(data: st.DataObject, kind: pa.DataType) -> None:
    """Else every answer could be `bad_type`, and nothing would be changed."""
    value = data.draw(value_of(kind))
    column, failures = answer_column(pa.field("v", kind), [value])
    assert failures == {}
    assert is_equal(value, column[0].as_py(), kind)


def value_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that a column of this type holds."""
    types = pa.types
    if types.is_struct(kind):
        return st.fixed_dictionaries({field.name: value_of(field.type) for field in kind})
    if types.is_map(kind):
        return st.dictionaries(st.text("ab"), value_of(kind.item_type), max_size=2)
    if types.is_fixed_size_list(kind):
        is_number = types.is_floating(kind.value_type)
        inner = value_of(kind.value_type)
        return st.lists(
            inner.filter(lambda value: value is not None) if is_number else inner,
            min_size=2,
            max_size=2,
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return st.lists(value_of(kind.value_type), max_size=2)
    return st.none() | _leaf_of(kind)


def _leaf_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    seconds = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1)).map(
        lambda moment: moment.replace(microsecond=0)
    )
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_integer(kind):
        return (
            st.integers(0, 127) | st.integers(0, 127).map(np.int8) | st.integers(0, 127).map(float)
        )
    if types.is_floating(kind):
        return st.floats(width=16) | st.integers(-9, 9)
    if types.is_decimal(kind):
        return st.decimals(places=2, min_value=-99, max_value=99) | st.integers(-9, 9)
    if types.is_string(kind) or types.is_large_string(kind):
        return st.text("abü")
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return st.binary(min_size=2, max_size=2)
    if types.is_timestamp(kind):
        return (
            seconds if kind.tz is None else seconds.map(lambda moment: moment.replace(tzinfo=ZONE))
        )
    if types.is_date(kind):
        return st.dates()
    if types.is_time(kind):
        return st.times().map(lambda time: time.replace(microsecond=0))
    assert types.is_duration(kind)
    return st.integers(-9, 9).map(lambda number: dt.timedelta(seconds=number))
