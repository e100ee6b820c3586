"""Plans a job: input files to batch descriptors, from metadata; no ledger, no row data kept.

Parquet costs a footer a file. JSONL is scanned once, and of the scan only the byte where each
batch ends is kept: 8 bytes a batch. Of what can only be read from its front a copy is made first.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, InputFormat, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import csv_copy, dataset, hive, registry
from nightshift.common.formats.jsonl import jsonl, openai_batch
from nightshift.common.formats.parquet import parquet
from nightshift.common.spec import GenerateTask, InputSpec, JobSpec
from nightshift.common.storage import FileInfo
from nightshift.producer.submit.convert import Converter
from nightshift.producer.submit.line_scan import Scan, scan_lines

PLANNING_THREADS = 16
"""Files that are looked at side by side: on object stores it is the wait that costs."""


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

    @property
    def batches_total(self) -> int:
        """How many batches there are; none spans two files."""
        return sum(-(-file.rows // self.batch_rows) for file in self.files)

    def batches(self) -> Iterator[Descriptor]:
        """Every row of the dataset in one descriptor, in order; made on the way, not kept."""
        for file in self.files:
            stop = file.first_row + file.rows
            scan = self._scans.get(file.uri)
            offset = scan.start if scan else 0
            for number, first in enumerate(range(file.first_row, stop, self.batch_rows)):
                rows = RowRanges(((first, min(first + self.batch_rows, stop)),))
                if scan is None:
                    yield Descriptor(file, rows)
                    continue
                end = scan.ends[number]
                yield Descriptor(file, rows, Locator(first, offset, end - offset))
                offset = end


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one file before its place in the dataset is."""

    info: FileInfo
    kind: InputFormat
    rows: int
    schema: pa.Schema
    scan: Scan | None
    types: csv_copy.Types | None = None


def plan(
    spec_input: InputSpec,
    batch_rows: int,
    *,
    columns: Sequence[str] | None = None,
    infos: Sequence[FileInfo] | None = None,
    output_uri: str | None = None,
) -> Plan:
    """Looks at every input file and cuts it into batches of at most `batch_rows` rows.

    `columns` are those the job reads (JobSpec.read_columns; None: all): Parquet files must agree
    on them. `infos` saves a second listing of the input. Copies go under `output_uri`, without
    which nothing can be planned that needs them. Raises BadInput with one sentence for what is
    missing, broken, empty or changes meanwhile, StorageUnavailable for an outage.
    """
    files = list(storage.expand(spec_input.uris) if infos is None else infos)
    kinds = [registry.file_format(info.uri, spec_input.format) for info in files]

    def examine(info: FileInfo, kind: InputFormat, limit: int | None = None) -> _Found:
        registry.check_content(info, kind)
        read = info
        if dataset.is_streamed(info.uri, kind):
            if output_uri is None:
                raise BadInput(f"{info.uri} must be copied to be planned: name an output directory")
            read = Converter(spec_input, output_uri).copy(info, kind, limit)
        if kind == "parquet":
            found = _examine_parquet(info, spec_input.id, limit)
        elif kind == "csv":
            found = _examine_csv(info, read, limit)
        else:
            found = _examine_lines(info, kind, read, batch_rows, limit)
        _check_still(info)
        return found

    if spec_input.limit is None:
        found = _side_by_side(examine, files, kinds)
    else:
        found = _up_to(spec_input.limit, examine, files, kinds)
    rows_total = sum(one.rows for one in found)
    if not rows_total:
        raise BadInput(f"the input has no rows: {', '.join(spec_input.uris)}")
    path = hive.schema_of(spec_input, [info.uri for info in files])
    schema = _merged([one for one in found if one.rows], columns, path, spec_input.id)
    scans = {one.info.uri: one.scan for one in found if one.scan is not None}
    return Plan(_placed(files, kinds, found), schema, rows_total, batch_rows, scans)


def _merged(
    found: Sequence[_Found],
    columns: Sequence[str] | None,
    path: pa.Schema,
    id_column: str | None,
) -> pa.Schema:
    """The columns of all files and those of their path; BadInput where one is used and in both."""
    known = [one.types for one in found if one.types is not None]
    types = csv_copy.common_types(known, id_column)
    in_files = registry.merge_schemas(
        (
            (
                one.info.uri,
                one.kind,
                one.schema
                if one.types is None
                else csv_copy.schema_of({name: types[name] for name in one.types}),
            )
            for one in found
        ),
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


def check_columns(spec: JobSpec, schema: pa.Schema) -> None:
    """Every column that the spec names exists in the data; BadInput says which does not."""
    named = [("input.columns", name) for name in spec.input.columns or ()]
    named += [("output.columns", name) for name in spec.output.columns]
    if spec.input.id is not None:
        named.insert(0, ("input.id", spec.input.id))
    if isinstance(spec.task, GenerateTask) and spec.task.sampling.max_tokens_column is not None:
        named.append(("task.sampling.max_tokens_column", spec.task.sampling.max_tokens_column))
    named += [("the template", name) for name in sorted(spec.task.columns)]
    for place, name in named:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise BadInput(
                f"{place} names the column {name!r}{hint}, which the input does not have: it has "
                f"{_listed(schema.names)}"
            )


def check_images(spec: JobSpec, schema: pa.Schema) -> None:
    """A column of images holds bytes or URIs; BadInput names one that holds something else."""
    if not isinstance(spec.task, GenerateTask):
        return
    held = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string)
    for name in sorted(spec.task.image_columns):
        kind = schema.field(name).type
        if not any(is_held(kind) for is_held in (*held, pa.types.is_large_string)):
            raise BadInput(
                f"task.messages has images of the column {name!r}, which is {kind}: it must hold "
                "the bytes of image files, or URIs as text"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _examine_parquet(info: FileInfo, id_column: str | None, limit: int | None) -> _Found:
    footer = parquet.read_footer(info.uri)
    nulls = parquet.known_nulls(footer, id_column) if id_column is not None else 0
    if nulls:
        raise BadInput(
            f"{info.uri}: the id column {id_column!r} has {nulls} nulls; every row needs an id"
        )
    rows = footer.starts[-1] if limit is None else min(limit, footer.starts[-1])
    return _Found(info, "parquet", rows, parquet.input_schema(footer), None)


def _examine_csv(info: FileInfo, copy: FileInfo, limit: int | None) -> _Found:
    footer = parquet.read_footer(copy.uri)
    types = csv_copy.types_of(footer)
    rows = footer.starts[-1] if limit is None else min(limit, footer.starts[-1])
    return _Found(info, "csv", rows, csv_copy.schema_of(types), None, types)


def _examine_lines(
    info: FileInfo, kind: InputFormat, read: FileInfo, batch_rows: int, limit: int | None
) -> _Found:
    head = jsonl.HEAD_ROWS if limit is None else min(limit, jsonl.HEAD_ROWS)
    is_batch_file = kind == "openai"
    schema = openai_batch.SCHEMA if is_batch_file else jsonl.head_schema(read.uri, head, info.uri)
    scan = scan_lines(read.uri, batch_rows, limit)
    return _Found(info, kind, scan.rows, schema, scan)


def _check_still(info: FileInfo) -> None:
    try:
        now = storage.stat(info.uri)
    except FileNotFoundError as error:
        raise BadInput(f"{info.uri} vanished while it was planned: submit again") from error
    if now != info:
        raise BadInput(f"{info.uri} changed while it was planned: submit when it is complete")


def _side_by_side(
    examine: Callable[[FileInfo, InputFormat], _Found],
    files: Sequence[FileInfo],
    kinds: Sequence[InputFormat],
) -> list[_Found]:
    with ThreadPoolExecutor(min(PLANNING_THREADS, max(1, len(files)))) as pool:
        return list(pool.map(examine, files, kinds))


def _up_to(
    limit: int,
    examine: Callable[[FileInfo, InputFormat, int], _Found],
    files: Sequence[FileInfo],
    kinds: Sequence[InputFormat],
) -> list[_Found]:
    """File by file until there are enough rows: the rest is never opened."""
    found: list[_Found] = []
    for info, kind in zip(files, kinds, strict=True):
        if limit <= 0:
            break
        found.append(examine(info, kind, limit))
        limit -= found[-1].rows
    return found


def _placed(
    files: Sequence[FileInfo], kinds: Sequence[InputFormat], found: Sequence[_Found]
) -> list[SourceFile]:
    rows = {one.info.uri: one.rows for one in found}
    placed, first_row = [], 0
    for info, kind in zip(files, kinds, strict=True):
        count = rows.get(info.uri, 0)
        placed.append(SourceFile(info.uri, kind, info.size, info.fingerprint, count, first_row))
        first_row += count
    return placed
