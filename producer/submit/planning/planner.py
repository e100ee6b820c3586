"""Plans a job: input files to batch descriptors, from metadata; no ledger, no row data kept.

A Parquet file costs its footer. A JSONL file is scanned once, and of the scan only the byte where
each batch ends is kept: 8 bytes a batch. A file that can only be read from its front is copied
first. With `input.where` the columns of the condition are read, too (`matching`).
"""

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, InputFormat, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import hive, reading, source_files
from nightshift.common.formats.convert import Converter
from nightshift.common.formats.csv.types import common_types
from nightshift.common.formats.csv.types import schema_of as text_schema
from nightshift.common.formats.format import Copy, Examined, Scan, Wanted
from nightshift.common.formats.known import FORMATS, check_content, is_streamed
from nightshift.common.public_text import private
from nightshift.common.spec import InputSpec
from nightshift.common.spec.sections import BATCH_BYTES
from nightshift.common.spec.table_uris import table_rows
from nightshift.common.storage import FileInfo
from nightshift.common.where.parse import parse
from nightshift.producer.submit.planning.matching import Filter, Looked, Matching
from nightshift.producer.submit.planning.schema_merge import merge_schemas

PLANNING_THREADS = 16
"""Files that are examined at once: on object stores the waiting costs most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Files in dataset order, the columns they share, and the batches over them.

    `files` has every file of the input; those that a limit leaves out have no rows.
    """

    files: list[SourceFile]
    schema: pa.Schema
    rows_total: int
    batch_rows: int
    _scans: dict[str, Scan] = field(repr=False)
    _cuts: "dict[str, array[int]]" = field(repr=False)
    _matching: dict[str, Matching] = field(default_factory=dict, repr=False)

    @property
    def rows_of_files(self) -> int:
        """How many rows the files have, with those that `input.where` leaves out: rows are numbered up to there."""
        return sum(file.rows for file in self.files)

    @property
    def left_out(self) -> int:
        """How many rows of the files `input.where` leaves out."""
        return sum(file.left_out for file in self.files)

    @property
    def batches_total(self) -> int:
        """How many batches there are; none spans two files."""
        return sum(map(self._batches_of, self.files))

    def _batches_of(self, file: SourceFile) -> int:
        if file.uri in self._matching:
            return len(self._matching[file.uri].ends)
        if file.uri in self._cuts:
            return len(self._cuts[file.uri])
        return -(-file.rows // self.batch_rows)

    def only(self, uris: Collection[str]) -> "Plan":
        """The plan of these of its files alone; the schema is still that of all."""
        files = [file for file in self.files if file.uri in uris]
        return replace(self, files=files, rows_total=_rows_taken(files)).behind(0)

    def behind(self, first_row: int) -> "Plan":
        """The same plan with its rows numbered from `first_row` on."""
        placed = []
        for file in self.files:
            placed.append(replace(file, first_row=first_row))
            first_row += file.rows
        return replace(self, files=placed)

    def batches(self) -> Iterator[Descriptor]:
        """The batches in order; together they hold every row of the job once. None is kept in memory."""
        for file in self.files:
            if file.uri in self._matching:
                yield from self._matching[file.uri].batches(file)
                continue
            scan = self._scans.get(file.uri)
            offset = scan.start if scan else 0
            first = stop = file.first_row
            for number, cut in enumerate(self._row_cuts(file)):
                first, stop = stop, file.first_row + cut
                rows = RowRanges(((first, stop),))
                if scan is None:
                    yield Descriptor(file, rows)
                    continue
                end = scan.ends[number]
                yield Descriptor(file, rows, Locator(first, offset, end - offset))
                offset = end

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The rows of the batches in order, in as few ranges as there can be."""
        held: tuple[int, int] | None = None
        for batch in self.batches():
            for start, stop in batch.rows.ranges:
                if held is not None and held[1] == start:
                    held = held[0], stop
                    continue
                if held is not None:
                    yield held
                held = start, stop
        if held is not None:
            yield held

    def _row_cuts(self, file: SourceFile) -> Iterator[int]:
        """The number of rows of a file up to the end of each of its batches."""
        if file.uri in self._cuts:
            return iter(self._cuts[file.uri])
        starts = range(0, file.rows, self.batch_rows)
        return (min(start + self.batch_rows, file.rows) for start in starts)


def plan(
    spec_input: InputSpec,
    batch_rows: int,
    *,
    batch_bytes: int = BATCH_BYTES,
    columns: Sequence[str] | None = None,
    sized: Sequence[str] | None = None,
    infos: Sequence[FileInfo] | None = None,
    output_uri: str | None = None,
    may_be_empty: bool = False,
    known: pa.Schema | None = None,
    copy_table: Copy | None = None,
) -> Plan:
    """Looks at every input file and cuts it into batches of at most `batch_rows` rows and
    `batch_bytes` bytes: estimated bytes of the decoded columns of Parquet files that are read, bytes
    of the lines of other files. A larger row is a batch by itself.

    `columns` are those that the job reads (JobSpec.read_columns; None: all): Parquet files must
    agree on them, and on those of `input.where`. `sized` are those whose bytes count, without it the
    same. `infos` saves a second listing of the input. Copies go under `output_uri`; without one, an input
    that needs a copy cannot be planned; `copy_table` copies what is read of a table so. `known` are the
    columns of the job that the files are of or join: a condition is about values of their types.
    Raises BadInput with one sentence for what is missing, broken or changes meanwhile, and for files
    without a row that the job takes, unless they `may_be_empty`; StorageUnavailable for an outage.
    """
    bounds = reading.current()
    bounds.begin()
    files = list(storage.expand(spec_input.uris) if infos is None else infos)
    kinds = [source_files.file_format(info.uri, spec_input.format) for info in files]
    wanted = Wanted(batch_rows, batch_bytes, spec_input.id, columns if sized is None else sized)
    condition = None if spec_input.where is None else parse(spec_input.where)
    if columns is not None:
        columns = [*columns, *spec_input.where_columns]

    def examine(info: FileInfo, kind: InputFormat, limit: int | None = None) -> Looked:
        with reading.held_to(bounds):  # in a thread of its own, too
            found = look(info, kind, limit)
            bounds.add_rows(found.found.rows)
        return found

    def look(info: FileInfo, kind: InputFormat, limit: int | None) -> Looked:
        check_content(info, kind)
        read = info
        if is_streamed(info.uri, kind):
            if output_uri is None:
                raise BadInput(
                    f"{private(info.uri)} must be copied to be planned: name an output directory"
                )
            read = Converter(spec_input, output_uri, copy_table).copy(info, kind, limit)
        found = FORMATS[kind].examine(info, read, wanted, limit)
        _check_unchanged(info)
        return Looked(info, kind, read, found)

    path = hive.schema_of(spec_input, [info.uri for info in files])

    def merged(looked: Sequence[Looked]) -> pa.Schema:
        filled = [file for file in looked if file.found.rows]
        return _merged_schema(filled, columns, path, spec_input.id)

    where = None
    if condition is not None:
        where = Filter(spec_input, condition, wanted, merged, known)
    if spec_input.limit is not None:
        examined = _examine_until(spec_input.limit, examine, files, kinds, where)
    else:
        with ThreadPoolExecutor(min(PLANNING_THREADS, max(1, len(files)))) as threads:
            examined = list(threads.map(storage.carried(examine), files, kinds))
        if where is not None:
            where.match_all(examined)
    matched = {} if where is None else where.matched
    found = {file.info.uri: file.found for file in examined}
    scans = {uri: each.scan for uri, each in found.items() if each.scan is not None}
    cuts = {uri: each.cuts for uri, each in found.items() if each.cuts is not None}
    rows = {uri: each.rows for uri, each in found.items()}
    rows |= {uri: each.rows for uri, each in matched.items()}
    left_out = {uri: each.rows - each.taken for uri, each in matched.items()}
    sources = _source_files(files, kinds, rows, left_out)
    if not may_be_empty:
        _refuse_empty(spec_input, sources)
    rows_total = _rows_taken(sources)
    return Plan(sources, merged(examined), rows_total, batch_rows, scans, cuts, matched)


def _refuse_empty(spec_input: InputSpec, files: Sequence[SourceFile]) -> None:
    """BadInput where a job has no rows."""
    uris, rows = ", ".join(map(private, spec_input.uris)), sum(file.rows for file in files)
    if not rows:
        raise BadInput(f"the input has no rows: {uris}")
    if not _rows_taken(files):
        raise BadInput(f"no row matches input.where, of {rows:,} in {uris}")


def _rows_taken(files: Sequence[SourceFile]) -> int:
    return sum(file.rows_taken for file in files)


def _merged_schema(
    files: Sequence[Looked],
    columns: Sequence[str] | None,
    path: pa.Schema,
    id_column: str | None,
) -> pa.Schema:
    """The columns of all files and those of their path; BadInput for a used one that is in both."""
    texts = [file.found.texts for file in files if file.found.texts is not None]
    types = common_types(texts, id_column)

    def schema_of(found: Examined) -> pa.Schema:
        if found.texts is None:
            return found.schema
        return text_schema({name: types[name] for name in found.texts})

    in_files = merge_schemas(
        ((file.info.uri, file.kind, schema_of(file.found)) for file in files),
        None if columns is None else [name for name in columns if name not in path.names],
    )
    both = [name for name in in_files.names if name in path.names]
    for name in both:
        if columns is None or name in columns:
            raise BadInput(
                f"the column {name!r} is in the files and in their path: input.partitioning none "
                "takes that of the files"
            )
    return pa.schema([*(field for field in in_files if field.name not in both), *path])


def _check_unchanged(info: FileInfo) -> None:
    if table_rows(info.uri) is not None:
        return  # a version stays as it is
    try:
        now = storage.stat(info.uri)
    except FileNotFoundError as error:
        raise BadInput(
            f"{private(info.uri)} vanished while it was planned: submit again"
        ) from error
    if now != info:
        raise BadInput(
            f"{private(info.uri)} changed while it was planned: submit when it is complete"
        )


def _examine_until(
    limit: int,
    examine: Callable[[FileInfo, InputFormat, int | None], Looked],
    files: Sequence[FileInfo],
    kinds: Sequence[InputFormat],
    where: Filter | None,
) -> list[Looked]:
    """File by file until there are enough rows: the rest is never opened."""
    examined: list[Looked] = []
    for info, kind in zip(files, kinds, strict=True):
        if limit <= 0:
            break
        if where is None:
            examined.append(examine(info, kind, limit))
            limit -= examined[-1].found.rows
        else:
            examined.append(examine(info, kind, None))
            limit -= where.match_last(examined, limit)
    return examined


def _source_files(
    files: Sequence[FileInfo],
    kinds: Sequence[InputFormat],
    rows: Mapping[str, int],
    left_out: Mapping[str, int],
) -> list[SourceFile]:
    """The files in dataset order, each with the number of its first row."""
    placed, first_row = [], 0
    for info, kind in zip(files, kinds, strict=True):
        count = rows.get(info.uri, 0)
        out = left_out.get(info.uri, 0)
        facts = (info.uri, kind, info.size, info.fingerprint, count, first_row)
        placed.append(SourceFile(*facts, left_out=out))
        first_row += count
    return placed
