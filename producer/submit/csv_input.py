"""CSV as a stream: header, records as texts, and what types the texts of each column would fit.

A field without quotes and without characters is null. Lines without characters are no rows. A
record with too many or too few fields is a row that says so, unless it is one of the first: those
are refused, since then it is most likely not this kind of CSV.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from nightshift.common.errors import BadInput
from nightshift.common.formats import csv_copy, registry
from nightshift.common.formats.csv_copy import CANDIDATES, WHY, Candidate

BLOCK_BYTES = 16 * 2**20
"""Parsed at once; no record can be longer."""

HEAD_RECORDS = 1000
"""A record of the wrong width among so many first ones is refused."""

MOST_STRANGE = 10**6
"""Records of the wrong width that wait for a right one, which Arrow hands out nothing without."""

WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""Whole numbers that come back as the same text: 007 and +7 are none."""

REAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
REAL_DIGITS = r"^-?(0\.0*)?([0-9]\.?){1,17}([eE].*)?$"
LONG_WHOLE = r"^-?[0-9]{16,}$"
"""A double keeps 17 digits of a fraction, and 15 of a whole number for sure."""


Strange = deque[tuple[int, str]]
"""Records of the wrong width, by their place among the rows, and what is wrong with them."""


def delimiter_of(uri: str, said: str | None) -> str:
    """The declared delimiter, else a tab for .tsv (compressed too) and a comma for the rest."""
    if said is not None:
        return said
    path = PurePosixPath(uri)
    bare = path.with_suffix("") if registry.compression(uri) else path
    return "\t" if bare.suffix.lower() == ".tsv" else ","


@dataclass(slots=True)
class Columns:
    """The columns of a file and the types that every text seen so far would fit."""

    names: list[str]
    types: csv_copy.Types = field(init=False)

    def __post_init__(self) -> None:
        self.types = {name: list(CANDIDATES) for name in self.names}

    @property
    def schema(self) -> pa.Schema:
        """That of the copy: texts."""
        return pa.schema([(name, pa.string()) for name in [*self.names, WHY]])

    def look(self, batch: pa.RecordBatch) -> None:
        """Strikes the types that a text of the batch does not fit."""
        for name, left in self.types.items():
            if left:
                texts = batch.column(name).drop_null()
                left[:] = [each for each in left if _fits(texts, each)]


def _fits(texts: pa.Array, kind: Candidate) -> bool:
    match kind:
        case "bool":
            return _all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"])))
        case "int64":
            return _match(texts, WHOLE) and _casts(texts, pa.int64())
        case "double":
            return (
                _match(texts, REAL)
                and _match(texts, REAL_DIGITS)
                and not pc.any(pc.match_substring_regex(texts, LONG_WHOLE)).as_py()
                and _all(pc.is_finite(texts.cast(pa.float64())))
            )


def _match(texts: pa.Array, pattern: str) -> bool:
    return _all(pc.match_substring_regex(texts, pattern))


def _all(flags: pa.Array) -> bool:
    # Of no values at all it is null.
    return pc.all(flags).as_py() is not False


def _casts(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def header(uri: str, head: bytes, delimiter: str) -> list[str]:
    """Column names out of the first bytes of a file; BadInput for names that cannot be used."""
    options = csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, invalid_row_handler=lambda _: "skip"
    )
    # A header may be all there is, and its line without an end.
    try:
        first = csv.open_csv(pa.BufferReader(head + b"\n"), _reading(), options)
        names: list[str] = first.schema.names
    except pa.ArrowInvalid as error:
        if b'"' not in head.strip().partition(b"\n")[0]:
            raise
        raise BadInput(
            f"{uri}: its header has no end: a quote in it opens what none closes"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{uri}: its header is not UTF-8: {MEND_ENCODING}") from error
    if "" in names:
        raise BadInput(
            f"{uri}: column {names.index('') + 1} of its header has no name: give it one"
        )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"{uri}: its header names the column {doubled[0]!r} more than once")
    if WHY in names:
        raise BadInput(f"{uri}: its header names a column {WHY!r}, which is kept: call it another")
    return names


MEND_ENCODING = "convert it, for example with `iconv -f latin1 -t utf-8`"


class _Ended:
    """A file for Arrow that has one more record at its end: where that does not come out as a
    record, a quote is open.
    """

    closed = False

    def __init__(self, stream: Any, record: str) -> None:
        self._stream = stream
        self._left = f"\n{record}".encode()

    def read(self, size: int) -> pa.Buffer | bytes:
        data = self._stream.read_buffer(size)
        if len(data) == size:
            return data
        # Not as a block of its own: Arrow wants the end of the header's line in the first.
        whole = b"".join([data, *iter(partial(self._stream.read, BLOCK_BYTES), b""), self._left])
        self._left = b""
        return whole

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class _Refused:
    """Takes the records that are of the wrong width; `last` is the one more at the end."""

    last: str
    strange: Strange = field(default_factory=deque)
    is_closed: bool = False

    def __call__(self, row: Any) -> str:
        if row.text == self.last:
            self.is_closed = True
            return "skip"
        # The header is record 1.
        at = row.number - 2
        self.strange.append((at, f"{row.actual_columns} fields in place of {row.expected_columns}"))
        if row.text.endswith(self.last):
            return "skip"
        is_early = at < HEAD_RECORDS
        return "error" if is_early or len(self.strange) > MOST_STRANGE else "skip"


def batches(
    uri: str, stream: Any, names: Sequence[str], delimiter: str
) -> Iterator[pa.RecordBatch]:
    """The records of a stream in order as texts, with the column WHY; bounded memory.

    Raises pa.ArrowInvalid for what is no CSV or no UTF-8, BadInput for a strange record among the
    first, for too many of them together and for a quote that is open at the end.
    """
    # One field more than the columns, and none of its characters a delimiter.
    last = secrets.token_hex(16).replace(delimiter, "") + delimiter * len(names)
    refused = _Refused(last)
    strange = refused.strange
    at = 0
    try:
        reader = csv.open_csv(
            pa.PythonFile(_Ended(stream, last), mode="r"),
            _reading(),
            csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refused
            ),
            csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        for batch in reader:
            placed = _placed(batch, at, strange)
            at += placed.num_rows
            yield placed
    except pa.ArrowInvalid as error:
        _refuse_strange(uri, strange)
        if "straddl" in str(error):
            raise pa.ArrowInvalid(
                f"{error}; it is after row {at}, maybe of an open quote"
            ) from error
        raise
    if not refused.is_closed:
        row = at + len(strange)
        place = f"{uri} row {row}" if row else f"{uri}: its header"
        raise BadInput(f"{place}: a quote opens a field that is open at the end of the file")
    yield _placed(pa.RecordBatch.from_pylist([], reader.schema), at, strange)


def _reading() -> csv.ReadOptions:
    # With threads it would not count the records.
    return csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)


def _refuse_strange(uri: str, strange: Strange) -> None:
    if not strange:
        return
    at, why = strange[0]
    if at < HEAD_RECORDS:
        raise BadInput(f"{uri} row {at + 1}: {why}: mend it, or say input.delimiter")
    if len(strange) > MOST_STRANGE:
        raise BadInput(
            f"{uri} row {at + 1}: {why}, and so on in more than {MOST_STRANGE} records: mend them"
        )


def _placed(batch: pa.RecordBatch, at: int, strange: Strange) -> pa.RecordBatch:
    """Records that follow each other from the place `at` on, and the strange ones before, between
    and right after them, taken out, as rows that are null but for the reason.
    """
    if not strange or strange[0][0] > at + batch.num_rows:
        return _with_reasons(batch, pa.nulls(batch.num_rows, pa.string()))
    order: list[int | None] = []
    reasons: list[str | None] = []
    taken = 0
    while True:
        while strange and strange[0][0] == at + len(order):
            order.append(None)
            reasons.append(strange.popleft()[1])
        if taken == batch.num_rows:
            break
        until = batch.num_rows
        if strange:
            until = min(until, taken + strange[0][0] - at - len(order))
        order += range(taken, until)
        reasons += [None] * (until - taken)
        taken = until
    return _with_reasons(batch.take(pa.array(order, pa.int64())), pa.array(reasons, pa.string()))


def _with_reasons(batch: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, reasons], names=[*batch.schema.names, WHY])
