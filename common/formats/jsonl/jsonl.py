"""JSONL: which lines are rows, what their columns are, and the same way back into a file.

A row is a line, lines end with a newline byte and nothing else, and a line that `bytes.isspace`
calls blank (empty, spaces, a lone carriage return) is no row. The planner's scan keeps to the same
rule by other means, and a test holds the two together.
"""

import base64
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time
from itertools import chain, count
from typing import Any, BinaryIO

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats.values import to_list
from nightshift.common.states import RowErrorKind
from nightshift.common.text import map_leaves, whole_characters

is_blank = bytes.isspace
"""The rule for a line that still has its newline; bytes.isspace stops at the first other byte."""

HEAD_ROWS = 1000
"""So many rows of each file are parsed at submit."""

HEAD_LINE_BYTES = 256 * 2**20
"""A longer line among those is taken for a file that is no JSONL at all."""

COUNTED_BYTES = 64 * 2**20
"""Up to here in a file an error names the line; counting further costs more than it tells."""

MAX_DEPTH = 16
"""Values nested deeper than this are kept as JSON text."""

_BOM = b"\xef\xbb\xbf"
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_INT64 = range(-(2**63), 2**63)

Bad = dict[int, tuple[RowErrorKind, str]]
"""Row index to why the row cannot be used."""


# ---------------------------------------------------------------- lines


class BadLine(ValueError):
    """A line that cannot be used, and the columns of it that could be read."""

    def __init__(self, why: str, row: dict[str, Any]) -> None:
        super().__init__(why)
        self.row = row


def content_start(handle: BinaryIO) -> int:
    """Moves to the first byte after a byte order mark, if there is one, and says where that is."""
    start = len(_BOM) if handle.read(len(_BOM)) == _BOM else 0
    handle.seek(start)
    return start


def parse(line: bytes) -> dict[str, Any]:
    """One row; ValueError says in a phrase what is wrong with the line.

    Lone surrogates, which Arrow and Postgres cannot hold, become U+FFFD. Of a key that stands
    there twice the last value counts.
    """
    try:
        # Not json.loads(line): for bytes it would guess UTF-16 and UTF-32 as well.
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON, {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:
        raise ValueError("a number has too many digits") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {_KINDS[type(row)]}, not an object")
    return map_leaves(row, _whole) if _ESCAPED_SURROGATE.search(line) else row


_KINDS = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _whole(value: Any) -> Any:
    return whole_characters(value) if isinstance(value, str) else value


# ---------------------------------------------------------------- types


def json_type(values: Sequence[Any], depth: int = 0) -> pa.DataType:
    """The Arrow type of parsed JSON values: string where they are mixed or too large or deep.

    Where nothing but nulls stands the type is null, until `settled`.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.null()
    if kinds == {bool}:
        return pa.bool_()
    if kinds <= {int, float}:
        return _number_type(values, kinds)
    if kinds == {list} and depth < MAX_DEPTH:
        items = list(chain.from_iterable(value for value in values if value is not None))
        return pa.list_(json_type(items, depth + 1))
    if kinds == {dict} and depth < MAX_DEPTH:
        objects = [value for value in values if value is not None]
        keys = dict.fromkeys(chain.from_iterable(objects))
        return pa.struct(
            [(key, json_type([value.get(key) for value in objects], depth + 1)) for key in keys]
        )
    return pa.string()


def _number_type(values: Sequence[Any], kinds: set[type]) -> pa.DataType:
    numbers = [value for value in values if type(value) is int]
    if kinds == {int}:
        return pa.int64() if min(numbers) in _INT64 and max(numbers) in _INT64 else pa.string()
    return pa.float64() if all(abs(value) <= 2**53 for value in numbers) else pa.string()


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds values of both; string where they differ."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return _nested(one, other, merged_type) or pa.string()


def widened(planned: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The planned type with the keys of nested objects that only later rows have."""
    return _nested(planned, found, widened) or planned


def _nested(
    one: pa.DataType, other: pa.DataType, join: Callable[[pa.DataType, pa.DataType], pa.DataType]
) -> pa.DataType | None:
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(join(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name)
            fields[field.name] = field.type if known is None else join(known, field.type)
        return pa.struct(list(fields.items()))
    return None


def settled(kind: pa.DataType) -> pa.DataType:
    """The type as a file can keep it: string for only nulls and for objects without a key."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(settled(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [(field.name, settled(field.type)) for field in kind]
        return pa.struct(fields) if fields else pa.string()
    return kind


def _accepts(target: pa.DataType, found: pa.DataType) -> bool:
    """True where pyarrow puts values of the found type into the target without changing them."""
    types = pa.types
    if types.is_null(found) or target == found:
        return True
    if types.is_integer(found):
        return types.is_integer(target) or types.is_floating(target)
    if types.is_floating(found):
        return types.is_floating(target)
    if types.is_struct(found) and types.is_struct(target):
        wanted = {field.name: field.type for field in target}
        return all(
            field.name in wanted and _accepts(wanted[field.name], field.type) for field in found
        )
    if types.is_list(found) and (types.is_list(target) or types.is_fixed_size_list(target)):
        return _accepts(target.value_type, found.value_type)
    return False


def to_array(
    values: Sequence[Any], planned: pa.DataType | None
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """A column of parsed JSON values, and the positions of those the planned type cannot hold.

    Those are null in the column. Without a planned type the values decide, and all fit.
    """
    found = json_type(values)
    target = settled(found) if planned is None else settled(widened(planned, found))
    if _accepts(target, found):
        try:
            return pa.array(values, target), []
        except (pa.ArrowException, OverflowError):
            pass
    fitting: list[Any] = []
    strange: list[int] = []
    for at, value in enumerate(values):
        try:
            fitting.append(fit(value, target))
        except (ValueError, OverflowError, RecursionError, pa.ArrowException):
            fitting.append(None)
            strange.append(at)
    return pa.array(fitting, target), strange


def fit(value: Any, target: pa.DataType) -> Any:
    """The value as the target type takes it; ValueError or an Arrow error where it cannot.

    Anything becomes a string (as JSON text), whole numbers change between int and double, strings
    are read as Arrow's casts read them, base64 becomes bytes.
    """
    types = pa.types
    if value is None:
        return None
    if types.is_string(target) or types.is_large_string(target):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and _holds(target, len(value)):
        return [fit(item, target.value_type) for item in value]
    if types.is_struct(target) and isinstance(value, dict):
        return {field.name: fit(value.get(field.name), field.type) for field in target}
    if types.is_binary(target) and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if isinstance(value, list | dict) or isinstance(value, bool) != types.is_boolean(target):
        raise ValueError("of another kind")
    if types.is_floating(target) and isinstance(value, int) and int(float(value)) != value:
        raise ValueError("more digits than a double has")
    if types.is_integer(target) and isinstance(value, float):
        if not value.is_integer():
            raise ValueError("no whole number")
        value = int(value)
    # Not as_py(): Python's datetime would refuse nanoseconds.
    return pa.scalar(value).cast(target)


def _holds(target: pa.DataType, items: int) -> bool:
    """Whether it is a list that may have so many items."""
    if pa.types.is_fixed_size_list(target):
        return bool(target.list_size == items)
    return bool(pa.types.is_list(target))


def to_table(
    rows: Sequence[dict[str, Any]], columns: Sequence[str] | None, schema: pa.Schema | None
) -> tuple[pa.Table, dict[int, str]]:
    """Rows as columns, and position to phrase for rows that the schema's types cannot hold.

    Without `columns` there are those of the schema and whatever else the rows have.
    """
    planned = {} if schema is None else {field.name: field.type for field in schema}
    names = dict.fromkeys(chain(planned, *rows) if columns is None else columns)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    bad: dict[int, str] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        arrays[name], strange = to_array(values, planned.get(name))
        for at in strange:
            bad.setdefault(
                at,
                f"column {name!r} holds {shown(values[at])}, which does not fit its type "
                f"{planned.get(name)}",
            )
    # The extra column carries the number of rows for a table without columns.
    counted = pa.Table.from_arrays(
        [*arrays.values(), pa.nulls(len(rows))], names=[*arrays, _COUNTER]
    )
    return counted.drop_columns(_COUNTER), bad


_COUNTER = "\0rows"


def shown(value: Any) -> str:
    """A value as a message shows it, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


# ---------------------------------------------------------------- reading


def head_schema(uri: str, rows: int = HEAD_ROWS, origin: str | None = None) -> pa.Schema:
    """Column types from the first rows of a file; BadInput names file and line of a broken one.

    `origin` is the file that this one is a copy of, for the message.
    """
    types: dict[str, pa.DataType] = {}
    for parsed in _head(uri, rows, origin or uri):
        for name in dict.fromkeys(chain.from_iterable(parsed)):
            found = json_type([row.get(name) for row in parsed])
            types[name] = merged_type(types.get(name, pa.null()), found)
    return pa.schema(list(types.items()))


def _head(uri: str, rows: int, shown: str) -> Iterator[list[dict[str, Any]]]:
    """The first rows, in lists of a few megabytes at most unless one row is larger."""
    parsed: list[dict[str, Any]] = []
    taken = held_bytes = 0
    with storage.open_input(uri, sequential=True) as handle:
        content_start(handle)
        for number in count(1):
            line = handle.readline(HEAD_LINE_BYTES)
            if not line or taken == rows:
                break
            if len(line) == HEAD_LINE_BYTES:
                raise BadInput(f"{shown} line {number}: longer than {HEAD_LINE_BYTES} bytes")
            if is_blank(line):
                continue
            try:
                parsed.append(parse(line))
            except ValueError as error:
                raise BadInput(f"{shown} line {number}: {error}") from error
            taken, held_bytes = taken + 1, held_bytes + len(line)
            if held_bytes > 4 * 2**20:
                yield parsed
                parsed, held_bytes = [], 0
    yield parsed


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    schema: pa.Schema | None,
    parse: Callable[[bytes], dict[str, Any]] = parse,
) -> tuple[pa.Table, Bad, Callable[[int], str]]:
    """The rows of a batch in order, null where they are bad; the last names the place of a row.

    `parse` makes a row of a line, and raises ValueError (or BadLine) for one that is none.
    Raises SourceChanged when the lines are not where the planner saw them, FileNotFoundError and
    StorageUnavailable as they come from storage.
    """
    source, locator = descriptor.source, descriptor.locator
    if locator is None:
        raise ValueError("a JSONL batch needs the place of its lines")
    block = storage.read_range(source.uri, locator.byte_offset, locator.byte_length)
    lines = io.BytesIO(block).readlines()
    positions = [at for at, line in enumerate(lines) if not is_blank(line)]
    wanted = list(descriptor.rows)
    if len(block) < locator.byte_length or wanted[-1] - locator.first_row >= len(positions):
        raise SourceChanged(f"{source.uri} holds fewer lines than when the job was submitted")

    lines_before: list[int] = []

    def place(index: int) -> str:
        if locator.byte_offset > COUNTED_BYTES:
            row = index - source.first_row + 1
            return f"{source.shown} row {row}, after byte {locator.byte_offset}"
        if not lines_before:
            before = storage.read_range(source.uri, 0, locator.byte_offset)
            lines_before.append(before.count(b"\n"))
        return f"{source.shown} line {lines_before[0] + positions[index - locator.first_row] + 1}"

    rows: list[dict[str, Any]] = []
    bad: Bad = {}
    for index in wanted:
        try:
            rows.append(parse(lines[positions[index - locator.first_row]]))
        except ValueError as error:
            rows.append(error.row if isinstance(error, BadLine) else {})
            bad[index] = (RowErrorKind.BAD_RECORD, f"{place(index)}: {error}")
    table, strange = to_table(rows, columns, schema)
    for at, why in strange.items():
        bad[wanted[at]] = (RowErrorKind.BAD_TYPE, f"{place(wanted[at])}: {why}")
    return table, bad, place


def iter_batches(uri: str, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """A whole file as record batches of one schema; BadInput for a line that does not fit it."""
    number = 0
    with storage.open_input(uri, sequential=True) as handle:
        content_start(handle)
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(handle, 1):
            if not is_blank(line):
                try:
                    rows.append(parse(line))
                except ValueError as error:
                    raise BadInput(f"{uri} line {number}: {error}") from error
            if len(rows) == batch_rows:
                yield from _batch(uri, rows, schema, number)
                rows = []
    if rows:
        yield from _batch(uri, rows, schema, number)


def _batch(
    uri: str, rows: list[dict[str, Any]], schema: pa.Schema, number: int
) -> Iterable[pa.RecordBatch]:
    table, bad = to_table(rows, schema.names, schema)
    if bad:
        raise BadInput(f"{uri} in the {len(rows)} rows up to line {number}: {min(bad.items())[1]}")
    batches: list[pa.RecordBatch] = table.cast(schema).to_batches()
    return batches


# ---------------------------------------------------------------- writing


def write(batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> int:
    """One object a line, UTF-8; timestamps in ISO 8601, bytes in base64, NaN as null.

    Returns the number of rows.
    """
    written = 0
    for batch in batches:
        columns = [_plain_values(column) for column in batch.columns]
        names = batch.schema.names
        for values in zip(*columns, strict=True):
            sink.write(encoded(dict(zip(names, values, strict=True))) + b"\n")
        written += batch.num_rows
    return written


def _plain_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Python's datetime has no nanoseconds; Arrow prints them.
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T", 1) for text in texts]
    return to_list(column)


def encoded(row: dict[str, Any]) -> bytes:
    """One row as JSON, without the end of its line."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_json_value)
    except ValueError:
        text = json.dumps(map_leaves(row, _finite), ensure_ascii=False, default=_json_value)
    return text.encode("utf-8")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_value(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
