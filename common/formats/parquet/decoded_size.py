"""How large the columns of a row group are once they are decoded: an estimate.

A footer has the bytes of the encoded pages. A text that many rows share stands once in a dictionary and
counts there once; decoded, each row has a copy. The header of a dictionary's page says how many values
it holds in how many bytes, which no library tells without decoding the page.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.formats.parquet.column_types import canonical_type

HEADER_BYTES = 256
"""More than the header of a dictionary's page takes: six numbers."""

SMALL_BYTES = 2**20
"""Columns that cannot decode to more are not looked at closely."""

VALUE_BYTES = {"BOOLEAN": 1 / 8, "INT64": 8, "DOUBLE": 8, "INT96": 12}
"""Least bytes of a decoded value, and 4 of any other type: a text has an offset."""

MOST_COMPRESSED = 64
"""Texts are compressed by no more than this, as far as may_be_larger is concerned."""

I32, STRUCT = 5, 12
"""Types of fields in Thrift's compact protocol, in which Parquet writes the headers of pages."""

SIZE_FIELD, DICTIONARY_FIELD, FIRST_I32 = 2, 7, 0x15
"""Of PageHeader uncompressed_page_size and dictionary_page_header, whose first field is num_values
(parquet.thrift)."""


def decoded_bytes(
    group: pq.RowGroupMetaData, names: Collection[str] | None, values: Mapping[str, float]
) -> int:
    """The estimate for the columns `names` (None: all); `values` are those of `value_bytes`."""
    return sum(
        max(
            chunk.total_uncompressed_size,
            int(_texts(chunk) * values.get(chunk.path_in_schema, 0)),
        )
        for chunk in _chunks(group, names)
    )


def may_be_larger(
    group: pq.RowGroupMetaData, names: Collection[str] | None, rows: int, most_bytes: int
) -> bool:
    """True where a dictionary could make so many rows larger than `most_bytes`, by the footer."""
    a_row = (
        max(1.0, _texts(chunk) / max(1, group.num_rows)) * MOST_COMPRESSED * _page_bytes(chunk)
        for chunk in _with_dictionary(group, names)
    )
    return rows * sum(a_row) > most_bytes


def dictionary_bytes(group: pq.RowGroupMetaData, names: Collection[str] | None) -> int:
    """Compressed bytes of the dictionaries of texts, by the footer."""
    return sum(map(_page_bytes, _with_dictionary(group, names)))


def value_bytes(
    uri: str, group: pq.RowGroupMetaData, names: Collection[str] | None
) -> dict[str, float]:
    """Mean bytes of a value in the dictionary of each column of a row group, by the column's path.

    A column whose header cannot be read is left out: whoever reads its rows says so. Raises
    StorageUnavailable.
    """
    found: dict[str, float] = {}
    with storage.open_input(uri) as handle:
        for chunk in _with_dictionary(group, names):
            handle.seek(chunk.dictionary_page_offset)
            mean = mean_of_header(handle.read(HEADER_BYTES))
            if mean is not None:
                found[chunk.path_in_schema] = mean
    return found


class PieceSizes:
    """How large pieces of a row group are as plain columns. Arrow gives columns that were dictionaries when
    they were written as dictionaries, each piece with the whole one.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, tuple[pa.Array, pa.Array]] = {}

    def bytes_of(self, piece: pa.RecordBatch) -> int:
        """The bytes of one piece; the same dictionary is measured once."""
        return sum(self._bytes(at, column) for at, column in enumerate(piece.columns))

    def _bytes(self, at: int, column: pa.Array) -> int:
        if "dictionary<" not in str(column.type):
            return int(column.nbytes)
        plain = canonical_type(column.type)
        if not pa.types.is_dictionary(column.type) or plain not in (pa.string(), pa.binary()):
            return int(column.cast(plain).nbytes)
        values = column.dictionary
        known = self._lengths.get(at)
        if known is None or [_address(each) for each in known[0].buffers()] != [
            _address(each) for each in values.buffers()
        ]:
            known = self._lengths[at] = values, pc.binary_length(values)
        return int(pc.sum(known[1].take(column.indices)).as_py() or 0) + 4 * len(column)


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def examined(
    uri: str,
    group: pq.RowGroupMetaData,
    names: Collection[str] | None,
    dictionaries: Collection[str] = (),
) -> tuple[int, int]:
    """A closer estimate for files that nobody vouches for, and the most bytes of an average row.

    Headers of dictionaries are read, whatever the footer says of their size. Many rows can share the
    largest text of a dictionary, which is as large as the dictionary at most; columns that Arrow gives as
    `dictionaries` do not count there, since their rows stay numbers. Raises StorageUnavailable.
    """
    decoded = most_of_row = 0.0
    with storage.open_input(uri) as handle:
        for chunk in _chunks(group, names):
            size, texts = chunk.total_uncompressed_size, _texts(chunk)
            least = chunk.num_values * VALUE_BYTES.get(chunk.physical_type, 4)
            largest = 0.0
            if "BYTE_ARRAY" in chunk.physical_type and texts * size > SMALL_BYTES:
                handle.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                page = numbers_of_header(handle.read(HEADER_BYTES))
                if page is not None:
                    largest = page[0]
                    least += texts * page[0] / page[1]
                elif "DELTA_BYTE_ARRAY" in chunk.encodings:  # texts may share their beginning
                    largest = size
            decoded += max(size, least)
            if chunk.path_in_schema not in dictionaries:
                most_of_row += largest * max(1.0, texts / max(1, group.num_rows))
    return int(decoded), int(most_of_row)


def mean_of_header(header: bytes) -> float | None:
    """Mean bytes of a value by the header of a dictionary's page; None for other content."""
    found = numbers_of_header(header)
    return None if found is None else found[0] / found[1]


def numbers_of_header(header: bytes) -> tuple[int, int] | None:
    """Bytes and values of a dictionary by the header of its page; None for other content."""
    at, field, numbers = 0, 0, dict[int, int]()
    try:
        while (kind := header[at] & 15) == I32:
            field += header[at] >> 4
            numbers[field], at = _number(header, at + 1)
        field += header[at] >> 4
        if (kind, field, header[at + 1]) != (STRUCT, DICTIONARY_FIELD, FIRST_I32):
            return None
        count, _ = _number(header, at + 2)
        return (numbers[SIZE_FIELD], count) if count > 0 else None
    except (IndexError, KeyError):
        return None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number of Thrift's compact protocol, and where the next byte is."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    value |= data[at] << shift
    return (value >> 1) ^ -(value & 1), at + 1


def _chunks(group: pq.RowGroupMetaData, names: Collection[str] | None) -> Iterator[Any]:
    for chunk in map(group.column, range(group.num_columns)):
        path = chunk.path_in_schema
        if names is None or path in names or path.partition(".")[0] in names:
            yield chunk


def _with_dictionary(group: pq.RowGroupMetaData, names: Collection[str] | None) -> Iterator[Any]:
    for chunk in _chunks(group, names):
        if chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY":
            yield chunk


def _texts(chunk: Any) -> int:
    """Values of a column of a row group without its nulls, where the footer tells these."""
    known = chunk.statistics
    nulls = known.null_count if known is not None and known.has_null_count else 0
    return int(chunk.num_values - nulls)


def _page_bytes(chunk: Any) -> int:
    """Bytes of a dictionary's page, compressed."""
    return int(max(0, chunk.data_page_offset - chunk.dictionary_page_offset))
