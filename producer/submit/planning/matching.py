"""The rows of one file that match `input.where`, cut into batches: one row group or a few megabytes of lines are
looked at at a time, and only ranges of rows are kept.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, InputFormat, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats import hive, input_rows, reading
from nightshift.common.formats.arrow_types import storable_type
from nightshift.common.formats.format import Examined, Wanted
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.parquet import plan as parquet
from nightshift.common.formats.parquet.column_types import canonical_type
from nightshift.common.formats.parquet.read import footer_of
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.public_text import marked, private
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo
from nightshift.common.where.condition import Condition, columns
from nightshift.producer.submit.planning.where import row_groups
from nightshift.producer.submit.planning.where.evaluate import Evaluator

READ_ROWS = 65_536
READ_BYTES = 16 * 2**20
"""Rows and bytes that are read at once."""

CACHE_BYTES = 64 * 2**20

THREADS = 4
"""Files whose rows are held against a condition at once: each has a row group in memory."""

WINDOW = 4
"""Bytes of lines of one batch, in terms of batch.bytes: lines between matching ones are read, too."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matching:
    """The rows of a file that are taken, in batches. Of the file the first `rows` rows count: all of them, or
    those up to the last one that a limit takes.

    `bounds` has the first row of each range of taken rows, and the one after it, in turns; no range spans
    two batches. `ends` has the number of ranges up to the end of each batch, and `windows` the first row, the
    byte and the length in bytes of its lines, where the file has lines.
    """

    rows: int
    taken: int
    bounds: "array[int]"
    ends: "array[int]"
    windows: "array[int] | None"

    def batches(self, file: SourceFile) -> Iterator[Descriptor]:
        """The batches of the file, whose rows are numbered from its first row on."""
        begin, at = 0, file.first_row
        for number, end in enumerate(self.ends):
            pairs = zip(
                self.bounds[2 * begin : 2 * end : 2],
                self.bounds[2 * begin + 1 : 2 * end : 2],
                strict=True,
            )
            rows = RowRanges(tuple((at + start, at + stop) for start, stop in pairs))
            locator = None
            if self.windows is not None:
                first, offset, length = self.windows[3 * number : 3 * number + 3]
                locator = Locator(at + first, offset, length)
            yield Descriptor(file, rows, locator)
            begin = end


@dataclass(frozen=True, slots=True)
class Looked:
    """A file of the input, the file or the copy that is read, and what was found in it."""

    info: FileInfo
    kind: InputFormat
    read: FileInfo
    found: Examined

    @property
    def source(self) -> SourceFile:
        """What is read, with its rows numbered from 0."""
        origin = None if self.read is self.info else self.info.uri
        facts = (self.read.uri, self.kind, self.read.size, self.read.fingerprint)
        return SourceFile(*facts, self.found.rows, 0, origin=origin)


class Filter:
    """The condition of an input over its files; `matched` has what it takes of each file, by URI.

    `merged` gives the columns that files have together. `known` are the columns of the job that the files are of
    or join: a condition is about values of their types.
    """

    def __init__(
        self,
        spec_input: InputSpec,
        condition: Condition,
        wanted: Wanted,
        merged: Callable[[Sequence[Looked]], pa.Schema],
        known: pa.Schema | None,
    ) -> None:
        self._spec_input, self._condition, self._wanted = spec_input, condition, wanted
        self._merged, self._known = merged, known
        self._decoding = reading.current().decoding()
        self.matched: dict[str, Matching] = {}

    def match_all(self, looked: Sequence[Looked]) -> None:
        """All rows of these files that match."""
        filled = [file for file in looked if file.found.rows]
        if not filled:
            return
        types, bounds = self._types(looked), reading.current()
        evaluator = Evaluator(self._condition, types)

        def match(file: Looked) -> Matching:
            with reading.held_to(bounds):  # in a thread of its own, too
                return self._match(file, evaluator, types, None)

        with ThreadPoolExecutor(min(THREADS, len(filled))) as threads:
            found = threads.map(storage.carried(match), filled)
            self.matched |= {file.info.uri: each for file, each in zip(filled, found, strict=True)}

    def match_last(self, looked: Sequence[Looked], limit: int) -> int:
        """The first rows of the last of these files that match; returns how many, `limit` at most. The files
        behind it are not known, so the types are those up to here.
        """
        file = looked[-1]
        if not file.found.rows:
            return 0
        types = self._types(looked)
        found = self._match(file, Evaluator(self._condition, types), types, limit)
        self.matched[file.info.uri] = found
        return found.taken

    def _match(
        self, file: Looked, evaluator: Evaluator, types: pa.Schema, limit: int | None
    ) -> Matching:
        rows = _Rows(self._spec_input, file, self._condition, evaluator, types, self._decoding)
        return match(rows, file.found, self._wanted, limit)

    def _types(self, looked: Sequence[Looked]) -> pa.Schema:
        """The types that the values of the condition have. A column of JSON lines that had no value so far has
        texts: only first rows were looked at, and later ones may have values.
        """
        types = {field.name: field.type for field in self._merged(looked)}
        types |= {field.name: field.type for field in self._known or ()}
        has_lines = any(FORMATS[file.kind].may_have_more for file in looked)
        return pa.schema(
            [
                (name, pa.string() if has_lines and pa.types.is_null(kind) else kind)
                for name, kind in types.items()
            ]
        )


def match(rows: "_Rows", found: Examined, wanted: Wanted, limit: int | None) -> Matching:
    """Return the rows of a file that match, at most `limit`.

    Raises BadInput for a file that changed since it was examined, or has another type in a column of the condition;
    StorageUnavailable.
    """
    try:
        if found.scan is not None:
            return _lines(rows, found, wanted, limit)
        return _groups(rows, wanted, limit)
    except SourceChanged as error:
        raise BadInput(f"{marked(error)}, while it was planned: submit again") from error


class _Rows:
    """Says which rows of a file match. A row that cannot be read, or has a value that does not fit the type of
    its column, is neither in nor out: such a row stays, and fails by itself where the job reads that value.
    """

    def __init__(
        self,
        spec_input: InputSpec,
        file: Looked,
        condition: Condition,
        evaluator: Evaluator,
        schema: pa.Schema,
        decoding: reading.Decoding | None,
    ) -> None:
        """`schema` has the types of the whole dataset, which `evaluator` compares."""
        self.source, self.cache = file.source, ReadCache(CACHE_BYTES, decoding)
        self.condition, self._evaluator, self._schema = condition, evaluator, schema
        self._path = hive.columns(spec_input, file.info.uri)
        self._columns = columns(condition)
        self.in_file = [name for name in self._columns if name not in self._path]

    def taken(self, rows: tuple[int, int], locator: Locator | None = None) -> Numbers:
        """Return the numbers of those rows that match, from the first of `rows` to before the second."""
        reading.current().check()
        first, stop = rows
        if not self.in_file:
            return np.arange(first, stop if self._all_match() else first)
        descriptor = Descriptor(self.source, RowRanges((rows,)), locator)
        found = input_rows.read_file_rows(descriptor, self.in_file, self.cache, schema=self._schema)
        table = found.table
        if FORMATS[self.source.format].says_types:
            # Nulls inside of a nested column have no type in a file.
            table = table.cast(pa.schema([self._schema.field(name) for name in self.in_file]))
        good = np.asarray(found.row_index, np.int64)[self._holds(table)]
        return np.union1d(good, np.fromiter(found.bad, np.int64)) if found.bad else good

    def _all_match(self) -> bool:
        """Whether the values in the path of the file match, if the condition names no others."""
        return bool(self._holds(pa.table({"": [None]}))[0])

    def _holds(self, table: pa.Table) -> NDArray[np.bool_]:
        names = self._columns
        if self._path or not names:
            names = names or table.column_names
            table = hive.with_path_columns(table, table.num_rows, self._path, names, self._schema)
        return self._evaluator.holds(table)

    def of_path(self) -> dict[str, pa.Scalar]:
        """Return the columns of the condition that have one value in all rows of the file, by its path."""
        return {
            name: pa.scalar(self._path[name]).cast(self.type_of(name))
            for name in self._columns
            if name in self._path
        }

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column in the whole dataset."""
        return self._schema.field(name).type


def _groups(rows: _Rows, wanted: Wanted, limit: int | None) -> Matching:
    """The rows of a Parquet file or of a copy in Parquet; row groups that cannot match are not read."""
    source = rows.source
    footer = footer_of(source, rows.cache)
    says_types = FORMATS[source.format].says_types
    if says_types:
        for name in rows.in_file:
            _check_type(source.uri, footer.schema.field(name), rows.type_of(name))
    cutter = _Cutter(wanted.batch_rows, wanted.batch_bytes, limit)
    at_once = parquet.group_sizes(
        source.uri, footer, rows.in_file, source.rows, (READ_ROWS, READ_BYTES)
    )
    batch = (wanted.batch_rows, wanted.batch_bytes)
    sizes = parquet.group_sizes(source.uri, footer, wanted.sized, source.rows, batch)
    groups = list(zip(at_once, sizes, strict=True))
    possible: Sequence[int] = range(len(groups))
    if says_types:  # the texts of a copy have another order
        possible = row_groups.matching(rows.condition, footer.metadata, rows.of_path())
    for group in possible:
        (count, read_bytes), (_, size) = groups[group]
        start = footer.starts[group]
        if not count:
            continue
        step = max(1, min(READ_ROWS, READ_BYTES * count // max(1, read_bytes)))
        for first in range(start, start + count, step):
            stop = min(first + step, start + count)
            cutter.add(rows.taken((first, stop)), size / count)
            if cutter.is_full:
                return cutter.matching(cutter.last + 1)
    return cutter.matching(source.rows)


def _check_type(uri: str, field: pa.Field, kind: pa.DataType) -> None:
    own = storable_type(canonical_type(field.type))
    if own != kind and not pa.types.is_null(own):
        raise BadInput(
            f"{private(uri)} has {own} in the column {field.name!r}, which is {kind} in the other files, and input.where "
            "reads it"
        )


def _lines(rows: _Rows, found: Examined, wanted: Wanted, limit: int | None) -> Matching:
    """The rows of a file of lines, by the windows in which its batches would be without a condition."""
    cutter = _Cutter(wanted.batch_rows, WINDOW * wanted.batch_bytes, limit, windows=array("q"))
    for group in _groups_of_windows(_windows(found, wanted.batch_rows)):
        first, offset = group[0].first, group[0].offset
        locator = Locator(first, offset, group[-1].end - offset)
        taken = rows.taken((first, group[-1].stop), locator)
        for window in group:
            own = taken[np.searchsorted(taken, window.first) : np.searchsorted(taken, window.stop)]
            cutter.add_window(own, window)
            if cutter.is_full:
                return cutter.matching(cutter.last + 1)
    return cutter.matching(found.rows)


@dataclass(frozen=True, slots=True)
class _Window:
    """Rows `first` to before `stop`, and their bytes."""

    first: int
    stop: int
    offset: int
    end: int


def _windows(found: Examined, batch_rows: int) -> Iterator[_Window]:
    scan = found.scan
    assert scan is not None
    first, offset = 0, scan.start
    for number, end in enumerate(scan.ends):
        stop = min(first + batch_rows, found.rows) if found.cuts is None else found.cuts[number]
        yield _Window(first, stop, offset, end)
        first, offset = stop, end


def _groups_of_windows(windows: Iterator[_Window]) -> Iterator[Sequence[_Window]]:
    """Neighbours that are read together."""
    group: list[_Window] = []
    for window in windows:
        if group and (
            window.stop - group[0].first > READ_ROWS or window.end - group[0].offset > READ_BYTES
        ):
            yield group
            group = []
        group.append(window)
    if group:
        yield group


@dataclass(slots=True)
class _Cutter:
    """Cuts rows, which come in order, into batches of at most so many rows and bytes."""

    batch_rows: int
    batch_bytes: int
    limit: int | None
    windows: "array[int] | None" = None
    last: int = -1
    _taken: int = 0
    _bounds: "array[int]" = field(default_factory=lambda: array("q"))
    _ends: "array[int]" = field(default_factory=lambda: array("q"))
    _rows: int = 0
    _bytes: float = 0.0
    _window: "tuple[int, int, int] | None" = None

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self._taken >= self.limit

    def add(self, rows: Numbers, row_bytes: float) -> None:
        """Further rows, which count as equally large. A row that is larger than a batch is one by itself."""
        rows = self._within_limit(rows)
        while len(rows):
            room = self.batch_bytes - self._bytes
            fit = int(room / row_bytes) if row_bytes else len(rows)
            if self._rows == self.batch_rows or (self._rows and fit <= 0):
                self._end()
                continue
            some = min(max(1, fit), self.batch_rows - self._rows, len(rows))
            self._put(rows[:some])
            self._bytes += some * row_bytes
            rows = rows[some:]

    def add_window(self, rows: Numbers, window: _Window) -> None:
        """The rows of the next window, which stay together; its bytes and those before it back to the window
        in which the batch begins are one range of bytes.
        """
        rows = self._within_limit(rows)
        if not len(rows):
            return
        if self._window is not None and (
            self._rows + len(rows) > self.batch_rows
            or window.end - self._window[1] > self.batch_bytes
        ):
            self._end()
        first, offset = (window.first, window.offset) if self._window is None else self._window[:2]
        self._window = (first, offset, window.end)
        self._put(rows)

    def matching(self, rows: int) -> Matching:
        """All that was added, of a file of which so many rows count."""
        self._end()
        return Matching(rows, self._taken, self._bounds, self._ends, self.windows)

    def _within_limit(self, rows: Numbers) -> Numbers:
        return rows if self.limit is None else rows[: self.limit - self._taken]

    def _put(self, rows: Numbers) -> None:
        gaps = np.flatnonzero(np.diff(rows) != 1)
        starts, stops = rows[np.r_[0, gaps + 1]], rows[np.r_[gaps, len(rows) - 1]] + 1
        if self._rows and self._bounds[-1] == starts[0]:
            self._bounds.pop()  # it goes on where the last range of this batch ends
            starts = starts[1:]
            self._bounds.append(int(stops[0]))
            stops = stops[1:]
        self._bounds.frombytes(np.stack([starts, stops], 1).astype(np.int64).tobytes())
        self._rows += len(rows)
        self._taken += len(rows)
        self.last = int(rows[-1])

    def _end(self) -> None:
        if not self._rows:
            return
        self._ends.append(len(self._bounds) // 2)
        if self.windows is not None and self._window is not None:
            first, offset, end = self._window
            self.windows.extend((first, offset, end - offset))
        self._rows, self._bytes, self._window = 0, 0.0, None
