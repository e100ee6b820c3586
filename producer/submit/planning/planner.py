"""Plans a job: input files to batch descriptors, from metadata; no ledger, no row data kept.

A Parquet file costs its footer. A JSONL file is scanned once, and of the scan only the byte where
each batch ends is kept: 8 bytes a batch. A file that can only be read from its front is copied
first.
"""

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, InputFormat, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import hive, known, reading, source_files
from nightshift.common.formats.convert import Converter
from nightshift.common.formats.csv.types import common_types
from nightshift.common.formats.csv.types import schema_of as text_schema
from nightshift.common.formats.format import Examined, Scan, Wanted
from nightshift.common.spec import InputSpec
from nightshift.common.spec.sections import BATCH_BYTES
from nightshift.common.storage import FileInfo
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
    _marked: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def marked(self) -> dict[str, int]:
        """By file, how many rows hold half of a character, which is read as U+FFFD."""
        return {file.uri: self._marked.get(file.uri, 0) for file in self.files}

    @property
    def batches_total(self) -> int:
        """How many batches there are; none spans two files."""
        return sum(
            len(self._cuts[file.uri])
            if file.uri in self._cuts
            else -(-file.rows // self.batch_rows)
            for file in self.files
        )

    def only(self, uris: Collection[str]) -> "Plan":
        """The plan of these of its files alone; the schema is still that of all."""
        files = [file for file in self.files if file.uri in uris]
        return replace(self, files=files, rows_total=sum(file.rows for file in files)).behind(0)

    def behind(self, first_row: int) -> "Plan":
        """The same plan with its rows numbered from `first_row` on."""
        placed = []
        for file in self.files:
            placed.append(replace(file, first_row=first_row))
            first_row += file.rows
        return replace(self, files=placed)

    def batches(self) -> Iterator[Descriptor]:
        """The batches in order; together they hold every row once. None is kept in memory."""
        for file in self.files:
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

    def _row_cuts(self, file: SourceFile) -> Iterator[int]:
        """The number of rows of a file up to the end of each of its batches."""
        if file.uri in self._cuts:
            return iter(self._cuts[file.uri])
        starts = range(0, file.rows, self.batch_rows)
        return (min(start + self.batch_rows, file.rows) for start in starts)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the input, and what was found in it."""

    info: FileInfo
    kind: InputFormat
    found: Examined


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
) -> Plan:
    """Looks at every input file and cuts it into batches of at most `batch_rows` rows and
    `batch_bytes` bytes: estimated bytes of the decoded columns of Parquet files that are read, bytes
    of the lines of other files. A larger row is a batch by itself.

    `columns` are those that the job reads (JobSpec.read_columns; None: all): Parquet files must
    agree on them. `sized` are those whose bytes count, without it the same. `infos` saves a second listing of the input. Copies go under `output_uri`;
    without one, an input that needs a copy cannot be planned. Raises BadInput with one sentence for
    what is missing, broken or changes meanwhile, and for files without a row unless they
    `may_be_empty`; StorageUnavailable for an outage.
    """
    bounds = reading.current()
    bounds.begin()
    files = list(storage.expand(spec_input.uris) if infos is None else infos)
    kinds = [source_files.file_format(info.uri, spec_input.format) for info in files]
    wanted = Wanted(batch_rows, batch_bytes, spec_input.id, columns if sized is None else sized)

    def examine(info: FileInfo, kind: InputFormat, limit: int | None = None) -> _File:
        with reading.held_to(bounds):  # in a thread of its own, too
            found = look(info, kind, limit)
            bounds.add_rows(found.found.rows)
        return found

    def look(info: FileInfo, kind: InputFormat, limit: int | None) -> _File:
        known.check_content(info, kind)
        read = info
        if known.is_streamed(info.uri, kind):
            if output_uri is None:
                raise BadInput(f"{info.uri} must be copied to be planned: name an output directory")
            read = Converter(spec_input, output_uri).copy(info, kind, limit)
        found = known.FORMATS[kind].examine(info, read, wanted, limit)
        _check_unchanged(info)
        return _File(info, kind, found)

    if spec_input.limit is None:
        with ThreadPoolExecutor(min(PLANNING_THREADS, max(1, len(files)))) as threads:
            examined = list(threads.map(storage.carried(examine), files, kinds))
    else:
        examined = _examine_until(spec_input.limit, examine, files, kinds)
    rows_total = sum(file.found.rows for file in examined)
    if not rows_total and not may_be_empty:
        raise BadInput(f"the input has no rows: {', '.join(spec_input.uris)}")
    path = hive.schema_of(spec_input, [info.uri for info in files])
    schema = _merged_schema(
        [file for file in examined if file.found.rows], columns, path, spec_input.id
    )
    found = {file.info.uri: file.found for file in examined}
    scans = {uri: each.scan for uri, each in found.items() if each.scan is not None}
    cuts = {uri: each.cuts for uri, each in found.items() if each.cuts is not None}
    rows = {uri: each.rows for uri, each in found.items()}
    marked = {uri: each.marked for uri, each in found.items() if each.marked}
    sources = _source_files(files, kinds, rows)
    return Plan(sources, schema, rows_total, batch_rows, scans, cuts, marked)


def _merged_schema(
    files: Sequence[_File],
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
    try:
        now = storage.stat(info.uri)
    except FileNotFoundError as error:
        raise BadInput(f"{info.uri} vanished while it was planned: submit again") from error
    if now != info:
        raise BadInput(f"{info.uri} changed while it was planned: submit when it is complete")


def _examine_until(
    limit: int,
    examine: Callable[[FileInfo, InputFormat, int], _File],
    files: Sequence[FileInfo],
    kinds: Sequence[InputFormat],
) -> list[_File]:
    """File by file until there are enough rows: the rest is never opened."""
    examined: list[_File] = []
    for info, kind in zip(files, kinds, strict=True):
        if limit <= 0:
            break
        examined.append(examine(info, kind, limit))
        limit -= examined[-1].found.rows
    return examined


def _source_files(
    files: Sequence[FileInfo], kinds: Sequence[InputFormat], rows: Mapping[str, int]
) -> list[SourceFile]:
    """The files in dataset order, each with the number of its first row."""
    placed, first_row = [], 0
    for info, kind in zip(files, kinds, strict=True):
        count = rows.get(info.uri, 0)
        placed.append(SourceFile(info.uri, kind, info.size, info.fingerprint, count, first_row))
        first_row += count
    return placed
