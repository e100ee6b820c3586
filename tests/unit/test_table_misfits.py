"""Which parts can become part of a table that exists, and that each reader then reads all their rows."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.formats.table_types import TableFormat
from nightshift.producer.tables.columns import misfit
from tests.support import lakes

FORMATS: tuple[TableFormat, ...] = ("delta", "iceberg")

LONG, INT, TEXT = pa.int64(), pa.int32(), pa.string()


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


CASES: dict[str, tuple[list[Any], list[Any], str | None, str | None]] = {
    "the same": ([("a", LONG)], [("a", LONG)], None, None),
    "another order": ([("a", LONG), ("b", TEXT)], [("b", TEXT), ("a", LONG)], None, None),
    "a further column": ([("a", LONG)], [("a", LONG), ("b", _struct(x=INT))], None, None),
    "layouts of the library": (
        [("a", TEXT), ("b", pa.list_(pa.binary()))],
        [("a", pa.large_string()), ("b", pa.large_list(pa.large_binary()))],
        None,
        None,
    ),
    "a column that the table lacks": (
        [("a", LONG), ("b", TEXT)],
        [("a", LONG)],
        "the table has no column 'b'",
        "the table has no column 'b'",
    ),
    "names that differ by case": (
        [("A", LONG)],
        [("a", LONG)],
        "no column 'A'",
        "no column 'A'",
    ),
    "another type": (
        [("a", TEXT)],
        [("a", LONG)],
        "'a' is string in the parts and int64",
        "string",
    ),
    "a narrower type": ([("a", LONG)], [("a", INT)], "int64 in the parts", "int64 in the parts"),
    "a wider whole number": ([("a", INT)], [("a", LONG)], "int32 in the parts and int64", None),
    "a wider float": ([("a", pa.float32())], [("a", pa.float64())], "'a' is float", None),
    "a whole number for a double": ([("a", INT)], [("a", pa.float64())], "int32", "int32"),
    "more digits": (
        [("a", pa.decimal128(5, 2))],
        [("a", pa.decimal128(20, 2))],
        "decimal128(5, 2)",
        None,
    ),
    "fewer digits": (
        [("a", pa.decimal128(5, 2))],
        [("a", pa.decimal128(4, 2))],
        "decimal128(5, 2)",
        "decimal128(5, 2)",
    ),
    "more decimal places": (
        [("a", pa.decimal128(5, 2))],
        [("a", pa.decimal128(20, 4))],
        "decimal128(5, 2)",
        "decimal128(5, 2)",
    ),
    "a zone": (
        [("a", pa.timestamp("us"))],
        [("a", pa.timestamp("us", "UTC"))],
        "timestamp[us] in the parts",
        "timestamp[us] in the parts",
    ),
    "text for bytes": ([("a", TEXT)], [("a", pa.binary())], "string", "string"),
    "a type that we do not write": (
        [("a", LONG)],
        [("a", pa.timestamp("ns"))],
        "int64",
        "int64",
    ),
    "a list for a value": ([("a", pa.list_(LONG))], [("a", LONG)], "list", "list"),
    "a column that may not be null": (
        [("a", LONG)],
        [_required("a", LONG)],
        "'a' of the table may not be null, and in the parts it may",
        "'a' of the table may not be null, and in the parts it may",
    ),
    "a column that must be there": (
        [("a", LONG)],
        [("a", LONG), _required("b", LONG)],
        "'b' of the table may not be null, and the parts lack it",
        "'b' of the table may not be null, and the parts lack it",
    ),
    "fields in another order": (
        [("a", pa.list_(_struct(x=LONG, y=TEXT)))],
        [("a", pa.list_(_struct(y=TEXT, x=LONG)))],
        None,
        None,
    ),
    "a further field": (
        [("a", _struct(x=LONG)), ("b", pa.list_(_struct(x=LONG)))],
        [("a", _struct(x=LONG, y=TEXT)), ("b", pa.list_(_struct(x=LONG, y=TEXT)))],
        None,
        None,
    ),
    "a further field in a map": (
        [("a", pa.map_(TEXT, _struct(x=LONG)))],
        [("a", pa.map_(TEXT, _struct(x=LONG, y=TEXT)))],
        "lack the column 'a.value.y', which lies in a map",
        None,
    ),
    "a field that the table lacks": (
        [("a", pa.list_(_struct(x=LONG, y=TEXT)))],
        [("a", pa.list_(_struct(x=LONG)))],
        "no column 'a.element.y'",
        "no column 'a.element.y'",
    ),
    "a field that may not be null": (
        [("a", _struct(x=LONG))],
        [("a", pa.struct([_required("x", LONG)]))],
        "'a.x' of the table may not be null",
        "'a.x' of the table may not be null",
    ),
    "elements that may not be null": (
        [("a", pa.list_(LONG))],
        [("a", pa.list_(_required("element", LONG)))],
        "'a.element' of the table may not be null",
        "'a.element' of the table may not be null",
    ),
    "wider below": (
        [("a", _struct(x=pa.list_(INT))), ("b", pa.map_(INT, pa.float32()))],
        [("a", _struct(x=pa.list_(LONG))), ("b", pa.map_(LONG, pa.float64()))],
        "'a.x.element' is int32",
        None,
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_parts_that_no_reader_would_read_right_are_refused(case: str, kind: TableFormat) -> None:
    parts, table, *whys = CASES[case]
    why = whys[FORMATS.index(kind)]
    found = misfit(pa.schema(parts), pa.schema(table), kind)
    assert (found is None) == (why is None)
    assert why is None or (found is not None and why in found)


def test_the_sentence_has_both_schemas_and_an_end() -> None:
    wide = pa.struct([(f"field_{at}", LONG) for at in range(50)])
    found = misfit(
        pa.schema([("a", LONG), ("wide", wide)]),
        pa.schema([(f"b{at}", TEXT) for at in range(1000)]),
        "delta",
    )
    assert found is not None
    assert "the parts have (a: int64, wide: struct<field_0" in found
    assert "the Delta table has (b0: string, " in found
    assert "b19: string and 980 more)" in found
    assert "\n" not in found


VALUES = {
    LONG: [2**63 - 1, None, -(2**63)],
    INT: [2**31 - 1, None, -(2**31)],
    TEXT: ["x", None, ""],
    pa.binary(): [b"x", None, b""],
    pa.float32(): [0.1, None, float("inf")],
    pa.decimal128(5, 2): [Decimal("999.99"), None, Decimal("-0.01")],
}


def _values(kind: pa.DataType) -> list[Any]:
    if pa.types.is_struct(kind):
        of = {each.name: _values(each.type) for each in kind}
        return [{name: each[0] for name, each in of.items()}, None, dict.fromkeys(of)]
    if pa.types.is_map(kind):
        keys = [key for key in _values(kind.key_type) if key is not None]
        return [list(zip(keys, _values(kind.item_type), strict=False)), [], []]
    if pa.types.is_list(kind):
        return [_values(kind.value_type), [], [None]]
    return VALUES[kind]


def _read(value: Any, part: pa.DataType, table: pa.DataType) -> Any:
    """The value as a reader gives it: every field of the table, in its order."""
    if value is None:
        return None
    if pa.types.is_struct(part):
        types = {each.name: each.type for each in part}
        return {
            each.name: _read(value[each.name], types[each.name], each.type)
            if each.name in types
            else None
            for each in table
        }
    if pa.types.is_map(part):
        return [(key, _read(each, part.item_type, table.item_type)) for key, each in value]
    if pa.types.is_list(part):
        return [_read(each, part.value_type, table.value_type) for each in value]
    return pa.scalar(value, part).cast(table).as_py()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_reader_reads_parts_that_fit(kind: TableFormat, tmp_path: Path) -> None:
    """A part each, below a table of all columns of all cases that are accepted."""
    accepted = [
        (pa.schema(parts), pa.schema(table))
        for parts, table, *whys in CASES.values()
        if whys[FORMATS.index(kind)] is None
    ]
    for at, (parts, table) in enumerate(accepted):
        folder = tmp_path / str(at)
        folder.mkdir()
        part = pa.table({each.name: pa.array(_values(each.type), each.type) for each in parts})
        pq.write_table(part, folder / "part.parquet")
        for name, reader in lakes.table_of(kind, folder, table, ["part.parquet"]).items():
            found = reader()
            assert found.column_names == table.names
            for each in table:
                wanted: list[Any] = [None] * 3
                if each.name in parts.names:
                    ours = parts.field(each.name).type
                    wanted = [_read(value, ours, each.type) for value in _values(ours)]
                again = lakes.values(found.column(each.name))
                assert again == lakes.values(pa.chunked_array([pa.array(wanted, each.type)])), (
                    name,
                    each,
                )
