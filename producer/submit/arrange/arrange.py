"""Arrange: a plan whose batches hold rows with the same beginning, read from a sorted copy of the input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats import arranged, input_copies, reading
from nightshift.common.formats.arranged import OFFSET, Columns
from nightshift.common.formats.format import Wanted
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.parquet import plan as parquet
from nightshift.common.formats.parquet.footer import read_footer
from nightshift.common.spec import JobSpec, VllmEngineSpec, digest
from nightshift.common.storage import FileInfo
from nightshift.common.text import first_few
from nightshift.producer.submit import table_input
from nightshift.producer.submit.arrange import copy
from nightshift.producer.submit.arrange.order import sort_columns
from nightshift.producer.submit.arrange.sample import sharing_sample
from nightshift.producer.submit.arrange.savings import Worth, kept_tokens, worth
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan

READ_ROWS = 4096
READ_BYTES = 16 * 2**20
"""Rows and bytes that are read at once."""

PAGE_ROWS = 65_536

SAID = {"delimiter", "partitioning", "id", "where", "limit"}
"""What a spec says about the rows of its files."""


@dataclass(frozen=True, slots=True)
class ArrangedPlan:
    """A plan whose rows are read from the copy at `uri`, in its order."""

    plan: Plan
    uri: str
    batch_bytes: int
    columns: Sequence[str] | None

    @property
    def files(self) -> list[SourceFile]:
        """The files of the input in dataset order, each with its copy."""
        return [replace(file, arranged=self.uri) for file in self.plan.files]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the input."""
        return self.plan.schema

    @property
    def rows_of_files(self) -> int:
        """How many rows the files have, with those that `input.where` leaves out."""
        return self.plan.rows_of_files

    @property
    def left_out(self) -> int:
        """How many rows of the files `input.where` leaves out."""
        return self.plan.left_out

    @property
    def rows_total(self) -> int:
        """Rows of the input, which are those of the copy."""
        return self.plan.rows_total

    def behind(self, first_row: int) -> "ArrangedPlan":
        """The same plan with its rows numbered from `first_row` on."""
        return replace(self, plan=self.plan.behind(first_row))

    def batches(self) -> Iterator[Descriptor]:
        """The batches in the order of the copy; together they hold every row once."""
        source = self.files[0]
        offsets = _offsets(self.uri)
        held = np.empty(0, np.int64)
        at = 0
        for stop in self._cuts():
            while len(held) < stop - at:
                held = np.concatenate([held, next(offsets)])
            here, held = np.sort(held[: stop - at]) + source.first_row, held[stop - at :]
            rows = _ranges(here)
            yield Descriptor(source, rows, Locator(rows.ranges[0][0], at, stop - at))
            at = stop

    def _cuts(self) -> Iterator[int]:
        """Rows of the copy up to the end of each batch."""
        rows, most = self.rows_total, self.plan.batch_rows
        names = [OFFSET] if self.columns is None else [OFFSET, *self.columns]
        wanted = Wanted(most, self.batch_bytes, sized=names)
        cuts = parquet.cuts(self.uri, read_footer(self.uri), rows, wanted)
        if cuts is not None:
            return iter(cuts)
        return (min(start + most, rows) for start in range(0, rows, most))


def arranged_plan(
    spec: JobSpec, plan: Plan, *, output_uri: str, cache_tokens: int | None
) -> Plan | ArrangedPlan:
    """The plan in the order that `batch.arrange` asks for, with a copy of its rows below the output.

    The schema of `plan` is that of the job. `cache_tokens` are those that the engine's prefix cache
    kept when it was loaded last. Raises BadInput where `prefix` asks for what cannot be done,
    StorageUnavailable.
    """
    wanted = spec.batch.arrange
    if wanted == "none" or plan.rows_total < 2:
        return plan
    try:
        if wanted == "auto" and not judged(spec, plan, cache_tokens).pays:
            return plan
        uri = copy_uri(spec, plan.files, output_uri)
        reading.copies.use(output_uri, uri)
        if not storage.exists(uri):
            _write(spec, plan, uri, output_uri)
            reading.copies.made(output_uri, uri)
    except (BadInput, SourceChanged, StorageUnavailable):
        if wanted == "prefix":
            raise
        return plan  # as it would run without an order
    return ArrangedPlan(plan, uri, spec.batch.bytes, spec.read_columns)


def judged(spec: JobSpec, plan: Plan, cache_tokens: int | None) -> Worth:
    """What a sample says of an order of these rows. Raises BadInput where there is no such order, and
    for an engine whose prefix cache is not vLLM's.
    """
    by = list(takewhile(lambda name: _is_text(plan, name), _sorted_by(spec, plan)))
    if not by:
        raise BadInput("requests that begin with an image are not judged")
    engine = spec.engine
    if not isinstance(engine, VllmEngineSpec) or spec.task.runner != "generate":
        raise BadInput("an order is judged for vLLM's prefix cache alone")
    if engine.args.get("enable_prefix_caching") is False:
        raise BadInput("the engine has no prefix cache (enable_prefix_caching)")
    unread = _unread_bytes(spec, plan)
    if unread:
        raise BadInput(
            f"a sorted copy would carry {first_few(unread)}, binary values that the job does not read"
        )
    cache_tokens = kept_tokens(engine.args, cache_tokens)
    if cache_tokens == 0:
        raise BadInput("the engine reported no prefix cache at its last load")
    return worth(sharing_sample(spec, plan, by), cache_tokens)


def restore(spec: JobSpec, files: Sequence[SourceFile], schema: pa.Schema) -> None:
    """Makes missing arranged copies of a planned job again; raises what `arranged_plan` raises."""
    copies: dict[str, list[SourceFile]] = {}
    for file in files:
        if file.arranged is not None:
            copies.setdefault(file.arranged, []).append(file)
    for uri, own in copies.items():
        if not storage.exists(uri):
            plan = _plan_of(spec, own, spec.output.uri, schema)
            _write(spec, plan, uri, spec.output.uri)


def copy_uri(spec: JobSpec, files: Sequence[SourceFile], output_uri: str) -> str:
    """Where the copy of these files lies: its name is made of the files, of what the spec says about
    reading them, and of the order.
    """
    facts = [(file.uri, file.size, file.fingerprint, file.rows) for file in files]
    read = spec.input.model_dump(mode="json", include=SAID)
    shown = [spec.task.model_dump(mode="json"), spec.read_columns]
    folder = input_copies.folder(output_uri)
    return f"{folder}/{digest([arranged.VERSION, facts, read, shown])[:16]}{arranged.SUFFIX}"


def _sorted_by(spec: JobSpec, plan: Plan) -> list[str]:
    """The columns by which the rows are sorted; BadInput where they cannot be arranged."""
    by = sort_columns(spec, plan.schema)
    if not by:
        raise BadInput("batch.arrange sorts rows by the columns of their requests, which show none")
    if spec.read_columns is None and not _is_stable(plan):
        raise BadInput(
            "batch.arrange carries rows of JSON lines with the columns that are known at submit: name "
            "those that the function gets in input.columns"
        )
    return by


def _is_text(plan: Plan, name: str) -> bool:
    """Whether a sample of the column is small; images would take gigabytes."""
    kind = plan.schema.field(name).type
    return not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _unread_bytes(spec: JobSpec, plan: Plan) -> list[str]:
    """Columns of images and the like that the job does not read."""
    read = plan.schema.names if spec.read_columns is None else spec.read_columns
    return [name for name in plan.schema.names if name not in read and not _is_text(plan, name)]


def _is_stable(plan: Plan) -> bool:
    """Whether each row has the types of the schema, which only Parquet says."""
    return all(FORMATS[file.format].says_columns for file in plan.files if file.rows)


def _write(spec: JobSpec, plan: Plan, uri: str, output_uri: str) -> None:
    by = _sorted_by(spec, plan)
    columns = Columns.of(plan.schema, stable=_is_stable(plan))
    copy.write(uri, spec, _plan_of(spec, plan.files, output_uri, plan.schema), columns, by)


def _plan_of(
    spec: JobSpec, files: Sequence[SourceFile], output_uri: str, schema: pa.Schema
) -> Plan:
    """A plan of the same files in pieces that are good to read with all columns that a copy carries, its
    rows numbered from 0.
    """
    columns = Columns.of(schema, stable=False)
    names = [*columns.plain, *columns.as_json]
    found = planner.plan(
        spec.input,
        READ_ROWS,
        batch_bytes=READ_BYTES,
        columns=spec.read_columns,
        sized=names,
        infos=[FileInfo(file.uri, file.size, file.fingerprint) for file in files],
        output_uri=output_uri,
        known=schema,
        copy_table=table_input.copier(),
    )
    return replace(found, schema=schema)


def _offsets(uri: str) -> Iterator["np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    with storage.open_input(uri, sequential=True) as handle:
        for batch in pq.ParquetFile(handle).iter_batches(PAGE_ROWS, columns=[OFFSET]):
            yield batch.column(0).to_numpy()


def _ranges(ascending: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> RowRanges:
    """Distinct row indices as ranges."""
    ends = np.flatnonzero(np.diff(ascending) != 1)
    starts = ascending[np.concatenate([[0], ends + 1])]
    stops = ascending[np.concatenate([ends, [len(ascending) - 1]])] + 1
    return RowRanges(tuple(zip(starts.tolist(), stops.tolist(), strict=True)))
