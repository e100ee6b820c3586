"""CSV read: the rows of a batch out of its Parquet copy, whose texts become values of the planned types."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.descriptor import Descriptor
from nightshift.common.formats.csv.types import WHY, Candidate, fitting
from nightshift.common.formats.format import Found
from nightshift.common.formats.jsonl.columns import misfit, to_array
from nightshift.common.formats.parquet import read as parquet
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.source_files import check_unchanged
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind

NARROW = (pa.float16(), pa.float32())
"""Types whose casts from texts lose digits or become infinite without a word."""


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema,
    _fixed: Collection[str] = (),
) -> Found:
    """The rows of a batch, see `format.Read`; a text that does not fit the type of its column is `bad_type`."""
    # Before, since what the cache holds is not read again.
    check_unchanged(descriptor.source)
    names = None if columns is None else [*columns, WHY]
    table, bad, place = parquet.rows_of(descriptor, names, cache)
    wanted = list(descriptor.rows)
    for index, why in zip(wanted, table.column(WHY).to_pylist(), strict=True):
        if why is not None:
            bad[index] = Failure(RowErrorKind.BAD_RECORD, why)
    values, misfits = converted(table.drop_columns(WHY), schema)
    for at, why in misfits.items():
        bad.setdefault(wanted[at], Failure(RowErrorKind.BAD_TYPE, why))
    return values, bad, place


def converted(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """The table with its texts as values of the planned types, and by position of the row why a
    text does not fit its type.
    """
    planned = dict(zip(schema.names, schema.types, strict=True))
    bad: dict[int, str] = {}
    for at, name in enumerate(table.column_names):
        kind = planned.get(name, pa.string())
        if kind == pa.string():
            continue
        texts = table.column(at).combine_chunks()
        candidate = _candidate(kind)
        fits = None if candidate is None else fitting(texts, candidate)
        try:
            values = (texts if fits is None else pc.if_else(fits, texts, None)).cast(kind)
        except pa.ArrowException:
            values = None
        # The type is not that of the texts only where a Parquet file of the input has it.
        if values is None or values.null_count != texts.null_count or kind in NARROW:
            values, misfits = to_array(_parsed(texts, fits, candidate), kind)
            for row in misfits:
                bad.setdefault(row, misfit(name, texts[row].as_py(), kind))
        table = table.set_column(at, name, values)
    return table, bad


def _candidate(kind: pa.DataType) -> Candidate | None:
    types = pa.types
    if types.is_integer(kind):
        return "int64"
    if types.is_floating(kind):
        return "double"
    return "bool" if types.is_boolean(kind) else None


_OF_TEXT: dict[Candidate, Callable[[str], Any]] = {
    "int64": int,
    "double": float,
    "bool": lambda text: text.lower() == "true",
}


def _parsed(texts: pa.Array, fits: pa.Array | None, candidate: Candidate | None) -> list[Any]:
    """The values that stand in the texts, as JSON would have them; other texts as they are."""
    if fits is None or candidate is None:
        return texts.to_pylist()
    pairs = zip(texts.to_pylist(), fits.to_pylist(), strict=True)
    return [_OF_TEXT[candidate](text) if fit else text for text, fit in pairs]
