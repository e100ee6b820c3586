"""CSV as a stream: its header, its records as texts, and the types that the texts of a column fit.

A field without quotes and without characters is null. A line without characters is no row. A
record with too many or too few fields becomes a row that says so. Among the first records it is
refused, since the file is then most likely another kind of CSV.
"""

import codecs
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from nightshift.common.errors import BadInput
from nightshift.common.formats import source_files
from nightshift.common.formats.csv.types import CANDIDATES, WHY, Candidate, Types, fitting
from nightshift.common.public_text import private

BLOCK_BYTES = 16 * 2**20
"""Size of what is parsed at once; no record can be longer."""

DECODED_BYTES = 2**20
"""Bytes that are decoded at once to check their encoding."""

FEW_TEXTS = 100

HEAD_RECORDS = 1000
"""Number of first records among which one of the wrong width is refused."""

MOST_WRONG = 10**6
"""Most records of the wrong width that are held until a right one comes: Arrow hands out none of
them before.
"""

OTHER_DELIMITERS = ";\t|"


class OtherDelimiter(BadInput):
    """Records do not fit to a header that seems to have this delimiter."""

    def __init__(self, place: str, delimiter: str) -> None:
        super().__init__(
            f"{place}: correct it, or write input.delimiter: {json.dumps(delimiter)} in a spec"
        )
        self.delimiter = delimiter


WrongRecords = deque[tuple[int, str]]
"""Records of the wrong width: their place among the rows, and what is wrong with them."""


def delimiter_of(uri: str, declared: str | None) -> str:
    """The declared delimiter, else a tab for .tsv (compressed too) and a comma for the rest."""
    if declared is not None:
        return declared
    path = PurePosixPath(uri)
    bare = path.with_suffix("") if source_files.compression(uri) else path
    return "\t" if bare.suffix.lower() == ".tsv" else ","


def other_delimiter(names: Sequence[str]) -> str | None:
    """The delimiter that a header seems to have, all of whose names were read as the name of one column."""
    if len(names) != 1:
        return None
    return next((each for each in OTHER_DELIMITERS if each in names[0]), None)


def header(uri: str, head: bytes, delimiter: str) -> list[str]:
    """Column names out of the first bytes of a file; BadInput for names that cannot be used."""
    if (encoding := source_files.wide_encoding(head)) is not None:
        command = source_files.in_utf_8(uri, encoding)
        raise BadInput(f"{private(uri)} is {encoding}, not UTF-8: convert it with `{command}`")
    _EncodingCheck(uri).check(head)
    # The file may be a header alone, whose line has no end.
    try:
        first = _reader(pa.BufferReader(head + b"\n"), delimiter, lambda _: "skip")
        names: list[str] = first.schema.names
    except pa.ArrowInvalid as error:
        if b'"' not in head.strip().partition(b"\n")[0]:
            raise
        raise BadInput(
            f"{private(uri)}: its header has no end: it opens a quote that nothing closes"
        ) from error
    if "" in names:
        raise BadInput(
            f"{private(uri)}: column {names.index('') + 1} of its header has no name: give it one"
        )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"{private(uri)}: its header names the column {doubled[0]!r} more than once")
    if WHY in names:
        raise BadInput(
            f"{private(uri)}: its header names a column {WHY!r}, which is reserved: rename it"
        )
    return names


class _EncodingCheck:
    """Check that a file, read block by block from its start, is valid UTF-8. Arrow does not decode the records that
    it skips, and prints a traceback for an undecodable record of the wrong width.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._line = 1

    def check(self, block: Any, *, is_last: bool = False) -> None:
        """Raise BadInput, with the line number, at the first byte that is not valid UTF-8."""
        whole = memoryview(block)
        try:
            for at in range(0, len(whole) or 1, DECODED_BYTES):
                text = self._decoder.decode(whole[at : at + DECODED_BYTES], is_last)
                self._line += text.count("\n")
        except UnicodeDecodeError as error:
            line = self._line + error.object[: error.start].count(b"\n")
            command = source_files.in_utf_8(self._uri)
            raise BadInput(
                f"{private(self._uri)} line {line}: not UTF-8: convert it, as with `{command}` (that it is Windows-1252 is a guess)"
            ) from error


class _WithLastRecord:
    """A file for Arrow with one more record at its end. Where that record does not come out as one,
    a quote is open.
    """

    closed = False

    def __init__(self, uri: str, stream: Any, record: str) -> None:
        self._stream = stream
        self._left = f"\n{record}".encode()
        self._encoding = _EncodingCheck(uri)

    def read(self, size: int) -> pa.Buffer | bytes:
        data = self._read(size)
        self._encoding.check(data, is_last=not len(data))
        return data

    def _read(self, size: int) -> pa.Buffer | bytes:
        data = self._stream.read_buffer(size)
        if len(data) == size:
            return data
        # Not as a block of its own: Arrow wants the end of the header's line in the first block.
        whole = b"".join([data, *iter(partial(self._stream.read, BLOCK_BYTES), b""), self._left])
        self._left = b""
        return whole

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class _WrongWidthHandler:
    """Takes the records of the wrong width from Arrow; `last` is the record added at the end."""

    last: str
    records: WrongRecords = field(default_factory=deque)
    saw_last: bool = False

    def __call__(self, row: Any) -> str:
        if row.text == self.last:
            self.saw_last = True
            return "skip"
        # The header is record 1.
        at = row.number - 2
        self.records.append((at, f"{row.actual_columns} fields in place of {row.expected_columns}"))
        if row.text.endswith(self.last):
            return "skip"
        is_early = at < HEAD_RECORDS
        return "error" if is_early or len(self.records) > MOST_WRONG else "skip"


def batches(
    uri: str, stream: Any, names: Sequence[str], delimiter: str
) -> Iterator[pa.RecordBatch]:
    """The records of a stream in order as texts, with the column WHY; in bounded memory.

    Raises pa.ArrowInvalid for what is no CSV or no UTF-8. Raises BadInput for a record of the wrong
    width among the first, for too many of them together and for a quote that is open at the end.
    """
    # One field more than the columns, and none of its characters a delimiter.
    last = secrets.token_hex(16).replace(delimiter, "") + delimiter * len(names)
    wrong = _WrongWidthHandler(last)
    at = 0
    try:
        reader = _reader(
            pa.PythonFile(_WithLastRecord(uri, stream, last), mode="r"),
            delimiter,
            wrong,
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        for batch in reader:
            rows = _with_wrong_records(batch, at, wrong.records)
            at += rows.num_rows
            yield rows
    except pa.ArrowInvalid as error:
        _refuse_wrong_records(uri, names, wrong.records)
        if "straddl" in str(error):
            raise pa.ArrowInvalid(
                f"{error}; it is after row {at}, maybe of an open quote"
            ) from error
        raise
    if not wrong.saw_last:
        row = at + len(wrong.records)
        place = f"{private(uri)} row {row}" if row else f"{private(uri)}: its header"
        raise BadInput(f"{place}: a quote opens a field that is open at the end of the file")
    yield _with_wrong_records(pa.RecordBatch.from_pylist([], reader.schema), at, wrong.records)


def _reader(
    stream: Any, delimiter: str, wrong: Callable[[Any], str], **convert: Any
) -> csv.CSVStreamingReader:
    # With threads Arrow would not number the records.
    read = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    parse = csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, invalid_row_handler=wrong
    )
    return csv.open_csv(stream, read, parse, csv.ConvertOptions(**convert))


def _refuse_wrong_records(uri: str, names: Sequence[str], records: WrongRecords) -> None:
    if not records:
        return
    at, why = records[0]
    if at < HEAD_RECORDS:
        if (delimiter := other_delimiter(names)) is not None:
            raise OtherDelimiter(f"{private(uri)} row {at + 1}: {why}", delimiter)
        raise BadInput(f"{private(uri)} row {at + 1}: {why}: correct it, or set input.delimiter")
    if len(records) > MOST_WRONG:
        raise BadInput(
            f"{private(uri)} row {at + 1}: {why}, and so on in more than {MOST_WRONG} records: correct them"
        )


def _with_wrong_records(batch: pa.RecordBatch, at: int, records: WrongRecords) -> pa.RecordBatch:
    """The batch, whose first row has the place `at`, with the column WHY. Wrong records before,
    between and right after its rows are taken out of `records`, and become rows of nulls.
    """
    wrong: dict[int, str] = {}
    while records and records[0][0] <= at + batch.num_rows + len(wrong):
        place, why = records.popleft()
        wrong[place - at] = why
    reasons = pa.nulls(batch.num_rows, pa.string())
    if wrong:
        places = range(batch.num_rows + len(wrong))
        right = iter(range(batch.num_rows))
        order = [None if place in wrong else next(right) for place in places]
        batch = batch.take(pa.array(order, pa.int64()))
        reasons = pa.array([wrong.get(place) for place in places], pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, reasons], names=[*batch.schema.names, WHY])


@dataclass(slots=True)
class ColumnTypes:
    """The columns of a file, each with the types that all of its texts so far fit."""

    names: list[str]
    types: Types = field(init=False)

    def __post_init__(self) -> None:
        self.types = {name: list(CANDIDATES) for name in self.names}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the copy, whose columns are all texts."""
        return pa.schema([(name, pa.string()) for name in [*self.names, WHY]])

    def narrow(self, batch: pa.RecordBatch) -> None:
        """Drops the types that a text of the batch does not fit."""
        for name, left in self.types.items():
            if left:
                texts = batch.column(name).drop_null()
                # The first ones alone, since the look at many long texts takes memory.
                few = texts.slice(0, FEW_TEXTS)
                left[:] = [each for each in left if _all_fit(few, each) and _all_fit(texts, each)]


def _all_fit(texts: pa.Array, kind: Candidate) -> bool:
    # Null where there are no values.
    return pc.all(fitting(texts, kind)).as_py() is not False
