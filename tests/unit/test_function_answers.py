"""Answers on their way out of a function's process: each comes back as the function gave it."""

import datetime
import decimal
import enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightshift.common.formats import output_schema
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.function import host
from nightshift.worker.engines.function.answers import packed
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from nightshift.worker.rows.results import PartTable, RowResults, part_table
from tests.support.functions import through_the_host

INPUTS = pa.schema([("id", pa.string())])


def spec(**output: Any) -> JobSpec:
    data = {
        "name": "t",
        "input": {"uri": "x.parquet", "id": "id"},
        "task": {"kind": "function"},
        "engine": {"backend": "function", "callable": "rules:f"},
        "output": {"uri": "out", **output},
    }
    return parse_spec(data, "test")


def part(outcomes: list[Outcome], **output: Any) -> PartTable:
    """The part that these outcomes make, under the schema that they decide or `output` says."""
    job = spec(**output)
    rows = range(len(outcomes))
    passed = pa.table({"id": [f"r{row}" for row in rows]})
    found = RowResults(rows, passed, dict(enumerate(outcomes)))
    schema = output_schema.output_schema(job, INPUTS)
    schema = schema or output_schema.inferred_schema(job, INPUTS, found.answers())
    return part_table(job, schema or output_schema.bare_schema(job, INPUTS), found)


def _failed(found: PartTable) -> list[tuple[int, RowErrorKind]]:
    """Messages may name another type: an array of two dimensions is a list by now."""
    return [(error.row_index, error.kind) for error in found.errors]


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    SMALL = 1


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

UTC = datetime.UTC

COLUMNS: dict[str, list[Any]] = {
    "numbers": [1, 2, None, -5],
    "numbers of two types": [1, 2.5, None, 3],
    "truth and numbers": [True, 1, 0, False],
    "texts and numbers": ["a", 1, None, 2.5],
    "large numbers": [1, 2**63, 2**64, 2**70, -(2**63)],
    "halves of characters": ["a", "b\ud800c", "\x00", None],
    "keys that differ in half of a character": [
        {"\ud800": 1},
        dict.fromkeys(("\ud800", "\ud801"), 1),
    ],
    "bytes": [b"a", b"", None, b"\xff"],
    "dicts": [{"a": 1}, {"a": None}, None, {"a": 2}],
    "dicts with other keys": [{"a": 1}, {"b": 1}, {}, {"a": 1, "b": 2}],
    "dicts with keys that are none": [{"a": 1}, {7: 1}, {"a": 2}],
    "lists": [[1, 2], [], None, [3]],
    "lists of two types": [[1], [2.5], [1, 2.5], [1, "a"], [None]],
    "lists of dicts": [[{"a": 1}], [{"a": 1}, {"b": 2}], []],
    "lists of lists": [[[1], []], [[2.5]], [None]],
    "tuples": [(1, 2), [3, 4], (), None],
    "what holds itself": [[1], ENDLESS, [2]],
    "objects": [1, object(), Colour.RED, Size.SMALL],
    "sets": [{1}, [1], {1, 2}],
    "dates": [datetime.date(2026, 7, 14), None, datetime.date(1, 1, 1)],
    "times": [
        datetime.datetime(2026, 7, 14, 12),
        datetime.datetime(2026, 7, 14, 12, tzinfo=UTC),
        datetime.datetime(2026, 7, 14, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    ],
    "durations": [datetime.timedelta(seconds=1), datetime.time(1, 2), None],
    "decimals": [decimal.Decimal("1.5"), decimal.Decimal("2.25"), decimal.Decimal("NaN"), 1],
    "numbers of numpy": [np.float32(0.1), np.float32(0.5), None],
    "numbers of numpy of two widths": [np.int8(1), np.int64(300), np.float16(0.5), 7],
    "truth of numpy": [np.bool_(True), True, None],
    "times of numpy": [np.datetime64("2026-07-14T12:00:00.123456789"), np.datetime64("2026-07-14")],
    "texts of numpy": [np.str_("a"), "b", np.str_("\ud800")],
    "vectors": [np.arange(3, dtype=np.float32), np.zeros(3, np.float32), None],
    "vectors of two widths": [np.arange(3.0), np.zeros(3, np.float32), [1.0, 2.0, 0.1]],
    "vectors of texts": [np.array(["a", "bc"]), np.array(["d"]), np.array([], "U1")],
    "vectors of anything": [np.array(["a", None], object), np.array([1], object)],
    "arrays": [np.ones((2, 2)), np.array(1.5), np.zeros((0, 2))],
    "numpy in dicts": [{"a": np.float32(0.1), "b": [np.int8(1)]}, {"a": np.float32(2), "b": []}],
    "vectors in dicts": [{"a": np.arange(2, dtype=np.float32)}, {"a": None}],
    "nulls": [None, None],
}
"""Columns of answers, a value a row."""

SCHEMAS = (None, "int64", "double", "string", "list<float>", "struct<a: int64>", "bool")


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
def test_a_part_is_the_same_as_if_the_function_ran_in_the_child(values: list[Any]) -> None:
    rows = range(len(values))
    results = [{"v": values[row], "n": row} for row in rows]
    outcomes = through_the_host(results)
    refused = {row for row, each in enumerate(outcomes) if isinstance(each, Refusal)}
    in_the_child: list[Outcome] = [Answer(result) for result in results]
    # What no array holds says nothing about the type of its column.
    kept = [outcomes[row] if row in refused else in_the_child[row] for row in rows]
    for schema in SCHEMAS:
        output = {} if schema is None else {"schema": {"v": schema, "n": "int64"}}
        failed = {error.row_index for error in part(in_the_child, **output).errors}
        assert refused <= failed, schema
        direct, hosted = part(kept, **output), part(outcomes, **output)
        tables = [each.table.drop_columns("error") for each in (hosted, direct)]
        assert tables[0].equals(tables[1]), schema
        assert _failed(hosted) == _failed(direct), schema


def test_a_value_that_arrow_refuses_is_an_error_of_its_row_and_named() -> None:
    good, bad, other = through_the_host([{"v": [1]}, {"v": [1, "a"]}, {"v": [2]}])
    assert (good, other) == (Answer({"v": [1]}), Answer({"v": [2]}))
    assert bad == Refusal(
        RowErrorKind.BAD_TYPE, "the column 'v' holds a list, which Arrow cannot hold"
    )


def test_half_of_a_character_is_marked_and_makes_no_two_keys_one() -> None:
    text, two = through_the_host([{"v": "b\ud800c"}, {"v": dict.fromkeys(("\ud800", "\ud801"), 1)}])
    assert text == Answer({"v": "b\ufffdc"})
    assert two == Refusal(
        RowErrorKind.BAD_TYPE, "the column 'v' holds a dict, which Arrow cannot hold"
    )


def test_answers_with_other_columns_keep_theirs_and_no_others() -> None:
    results = [{"a": 1}, {"b": 2, "a": 1}, {}, {"b": None}, {"a": "text"}]
    assert through_the_host(results) == [Answer(result) for result in results]


def test_a_name_that_arrow_cannot_hold_comes_back() -> None:
    results = [{"a\ud800": 1, "\x00": 2, "": 3}]
    assert through_the_host(results) == [Answer(result) for result in results]


def test_a_row_may_come_back_whole_whatever_its_types_are() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    given = pa.table(
        {"m": pa.array([[("a", 1)], None, []], kind), "i": pa.array([1, 2, 3], "int8")}
    )
    rows = given.to_pylist()
    assert through_the_host(rows, given) == [Answer(row) for row in rows]


def test_vectors_come_back_as_arrays_of_their_width() -> None:
    (found,) = through_the_host([{"v": np.arange(3, dtype=np.float32), "n": np.int8(3)}])
    assert isinstance(found, Answer)
    assert found.columns["v"].dtype == np.float32
    assert found.columns["n"].dtype == np.int8


def test_answers_of_two_kinds_are_two_streams() -> None:
    results = [{"v": [1] if row % 2 else ["a"], "n": row if row % 3 else None} for row in range(9)]
    given = pa.table({"id": ["x"] * 9})
    reply, _ = host.answered(lambda _rows: results, "f", {"calls": [9]}, packed(given))
    assert len(reply["groups"]) == 2
