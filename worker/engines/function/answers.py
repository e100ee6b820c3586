"""Rows for a function's process as a stream of Arrow, and what it replies as outcomes of rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal

Found = list[Outcome] | str
"""The outcome of each row of a call, or the problem that all of its rows share."""


def packed(rows: pa.Table) -> pa.Buffer:
    """Rows as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def unpacked(head: Mapping[str, Any], streams: bytes, sizes: Sequence[int]) -> list[Found]:
    """The results of calls; each has the number of rows in `sizes`.

    Any exception may come of a reply that is malformed: user code shares the process that wrote the reply.
    """
    problems = {int(call): str(problem) for call, problem in head["problems"].items()}
    outcomes: dict[int, Outcome] = {
        row: Refusal(RowErrorKind(kind), message) for row, kind, message in head.get("refused", ())
    }
    reader = pa.BufferReader(streams)
    for group in head.get("groups", ()):
        names = group["names"]
        if not names:
            outcomes |= {row: Answer({}) for row in group["rows"]}
            continue
        table = pa.ipc.open_stream(reader).read_all()
        columns = [
            _values(column, is_numpy=at in group["numpy"])
            for at, column in enumerate(table.columns)
        ]
        for row, *values in zip(group["rows"], *columns, strict=True):
            outcomes[row] = Answer(dict(zip(names, values, strict=True)))
    found: list[Found] = []
    start = 0
    for call, size in enumerate(sizes):
        rows = range(start, start + size)
        start += size
        found.append(problems[call] if call in problems else [outcomes[row] for row in rows])
    return found


def _values(column: pa.ChunkedArray, *, is_numpy: bool) -> list[Any]:
    """The values of a column, as the function gave them."""
    if is_numpy:
        return list(column.to_numpy(zero_copy_only=False))
    values: list[Any] = column.to_pylist()
    if _holds_numpy(column.type):
        return [_as_numpy(value, column.type) for value in values]
    return values


def _holds_numpy(kind: pa.DataType) -> bool:
    """Whether numbers in it have a width that no number of Python has: these were NumPy's."""
    if pa.types.is_struct(kind):
        return any(_holds_numpy(each.type) for each in kind)
    if _is_list(kind):
        return _holds_numpy(kind.value_type)
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return is_number and kind not in (pa.float64(), pa.int64(), pa.uint64())


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _as_numpy(value: Any, kind: pa.DataType) -> Any:
    """A value with its numbers in their width again; a list of numbers as an array."""
    if value is None or not _holds_numpy(kind):
        return value
    if pa.types.is_struct(kind):
        return {each.name: _as_numpy(value[each.name], each.type) for each in kind}
    if not _is_list(kind):
        return kind.to_pandas_dtype()(value)
    if None in value or pa.types.is_nested(kind.value_type):
        return [_as_numpy(each, kind.value_type) for each in value]
    return np.array(value, kind.value_type.to_pandas_dtype())
