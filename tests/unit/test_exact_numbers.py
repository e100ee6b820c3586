"""Numbers of JSON lines come out as they stand in the file, or their row is refused."""

from pathlib import Path

import pyarrow as pa
import pytest

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from nightshift.common.formats import input_rows
from nightshift.common.formats.jsonl.examine import head_schema
from nightshift.common.formats.jsonl.lines import parse_line, parse_row
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.states import RowErrorKind

HELD = [
    "0.0", "-0.0", "0e999", "1.5", "1e5", "1E+5", "1.7976931348623157e308", "5e-324", "4.9406564584124654e-324",
    "0.30000000000000004", "0.10000000000000001", "-0.00012345678901234567", "0.10000000000000000555",
    "0.1000000000000000055511151231257827", "1.00000000000000000000000", "12345678901234567000.0",
]  # fmt: skip

NOT_HELD = [
    "1e400", "-1e400", "1e99999999999999999999", "1e-400", "-1E-99999999999999999999", "1.8e308",
    "3.14159265358979323846", "1234567890.12345678901", "-12345678901234567890.5", "1.23456789012345678912e-5",
]  # fmt: skip


@pytest.mark.parametrize("text", HELD)
def test_a_number_that_a_double_holds_is_that_double(text: str) -> None:
    assert repr(parse_row(b'{"a": %s}' % text.encode())) == repr({"a": float(text)})


def rows_of(path: Path, lines: list[str], schema: pa.Schema) -> input_rows.Rows:
    path.write_text("".join(f"{line}\n" for line in lines))
    info = storage.stat(str(path))
    source = SourceFile(info.uri, "jsonl", info.size, info.fingerprint, len(lines), 0)
    return input_rows.read_file_rows(
        Descriptor(source, RowRanges.of((0, len(lines))), Locator(0, 0, source.size)),
        schema.names,
        ReadCache(0),
        schema=schema,
    )


@pytest.mark.parametrize("text", [*NOT_HELD, "12345678901234567890", "9007199254740993"])
@pytest.mark.parametrize("shape", ["%s", "[0.5, %s]", '{"x": %s}'])
def test_a_number_that_no_double_holds_is_bad_among_numbers(
    tmp_path: Path, text: str, shape: str
) -> None:
    kinds = {"%s": pa.float64(), "[0.5, %s]": pa.list_(pa.float64())}
    schema = pa.schema([("a", kinds.get(shape, pa.struct([("x", pa.float64())])))])
    lines = ['{"a": %s}' % (shape % each) for each in ("1.5", text, "2.5")]
    rows = rows_of(tmp_path / "a.jsonl", lines, schema)
    assert rows.row_index == [0, 2]
    assert rows.bad[1].kind is RowErrorKind.BAD_TYPE
    assert text in rows.bad[1].message


@pytest.mark.parametrize("text", [*NOT_HELD, "12345678901234567890"])
def test_a_number_that_no_double_holds_keeps_its_text_among_texts(
    tmp_path: Path, text: str
) -> None:
    values = [text, f"[0.5, {text}]", f'{{"x": {{"é": {text}}}, "y": null}}']
    lines = ['{"a": "x"}', *(f'{{"a": {value}}}' for value in values)]
    rows = rows_of(tmp_path / "a.jsonl", lines, pa.schema([("a", pa.string())]))
    assert rows.bad == {}
    assert rows.table.column("a").to_pylist() == ["x", *values]


@pytest.mark.parametrize("text", NOT_HELD)
def test_such_a_number_among_the_first_rows_makes_its_column_text(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": 1.5, "b": [1.5]}}\n{{"a": {text}, "b": [{text}]}}\n')
    assert head_schema(str(path)) == pa.schema([("a", pa.string()), ("b", pa.list_(pa.string()))])


def test_a_decimal_column_has_the_digits_of_the_file(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.decimal128(38, 11))])
    rows = rows_of(tmp_path / "a.jsonl", ['{"a": 1234567890.12345678901}', '{"a": 1e400}'], schema)
    assert [str(value) for value in rows.table.column("a").to_pylist()] == [
        "1234567890.12345678901"
    ]
    assert rows.bad[1].kind is RowErrorKind.BAD_TYPE


def test_the_body_of_a_request_has_doubles_which_its_own_checks_judge() -> None:
    assert parse_line(b'{"temperature": 1e400}') == {"temperature": float("inf")}
