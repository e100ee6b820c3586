"""The arranged copy is made: the rows are read once for their order, which DuckDB finds, and once more to
be written in that order; both in bounded memory.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from threading import Lock
from typing import BinaryIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats import arranged, input_rows
from nightshift.common.formats.arranged import Columns
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.parquet.write import regrouped
from nightshift.common.formats.values import table_of, to_list
from nightshift.common.public_text import marked
from nightshift.common.spec import GenerateTask, JobSpec
from nightshift.producer.external_sort.boxes import in_order
from nightshift.producer.external_sort.spill import spill_folder
from nightshift.producer.submit.planning.plan_reader import PlanReader
from nightshift.producer.submit.planning.planner import Plan

MEMORY = "512MB"
"""What DuckDB holds; the rest of the sort is spilled to the folder of temporary files."""

THREADS = 2

CACHE_BYTES = 128 * 2**20

LEAD_CHARACTERS = 512
"""Characters of a row, over all columns that sort it, that DuckDB compares as they are: its sort fails on
rows of more than a few kilobytes with the memory that it gets."""

LEAST_LEAD_CHARACTERS = 16
"""Least characters of one column that are compared, however many columns there are."""

MOST_CHARACTERS = 65_536
"""Beginnings up to this length stand together where they are equal."""

DIGESTED_COLUMNS = 4
"""Columns whose beginnings are compared beyond their lead; of others the whole values are."""

DIGEST_CHARACTERS = 12
"""48 bits: where two digests are equal by chance, two rows are neighbours for nothing."""

COMPARED_KINDS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_decimal128,
)
COMPARED_TYPES = (pa.float32(), pa.float64(), pa.date32(), pa.time64("us"))
"""What DuckDB has of types without others inside, beside moments. It has no half floats, for example."""

Places = np.ndarray[tuple[int], np.dtype[np.uint32]]

PLACE = "\0place"
"""Column of the rows on their way: the place of the row in the copy."""

_sorts = Lock()
"""Held by the sort of this process: a server has the memory of one."""


def write(uri: str, spec: JobSpec, plan: Plan, columns: Columns, by: Sequence[str]) -> None:
    """Writes the copy of a plan's rows to `uri`, unless there is one, whole or not at all, sorted by the
    columns `by` and then by their place. The rows are read in the batches of the plan, twice.

    Raises BadInput for rows that cannot be carried, for files that change meanwhile, StorageUnavailable
    also where the folder of temporary files is full.
    """
    schema = columns.schema(plan.schema)

    def make(sink: BinaryIO) -> None:
        found = places(_key_rows(spec, plan, columns, by), plan.rows_total, plan.rows_of_files)
        rows = in_order(_placed(_rows(spec, plan, columns), found), PLACE, plan.rows_total)
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            ordered = (batch.select(schema.names) for batch in rows)
            for table in regrouped(ordered, schema):
                writer.write_table(table)
            writer.add_key_value_metadata(columns.metadata)

    with one_at_a_time():
        if not storage.exists(uri):  # else another thread has made it meanwhile
            storage.write_again(uri, make)


def _placed(rows: Iterator[pa.RecordBatch], places: Places) -> Iterator[pa.RecordBatch]:
    """The rows with the place of each."""
    for batch in rows:
        place = places[batch.column(arranged.OFFSET).to_numpy()].astype(np.int64)
        yield batch.append_column(PLACE, pa.array(place))


def places(rows: Iterator[pa.RecordBatch], rows_total: int, numbers: int) -> Places:
    """The place in the copy of each row, by its number: `rows` have that first, which is below `numbers`, and then
    the columns that sort them.
    """
    # Four bytes a row: no dataset of one job has 4,294,967,296 rows.
    places = np.empty(numbers, np.uint32)
    placed = 0
    for offsets in _sorted_offsets(rows):
        places[offsets] = np.arange(placed, placed + len(offsets), dtype=np.uint32)
        placed += len(offsets)
    assert placed == rows_total
    return places


def _sorted_offsets(
    rows: Iterator[pa.RecordBatch],
) -> Iterator["np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    """The offsets of the rows in order, sorted by DuckDB, which sees columns by numbers, whatever their
    names are.
    """
    first = next(rows)
    keys = [pa.field(f"c{at}", field.type) for at, field in enumerate(list(first.schema)[1:])]
    plain = pa.schema([pa.field("place", pa.int64()), *keys])
    failed: list[BaseException] = []

    def renamed() -> Iterator[pa.RecordBatch]:
        try:
            for batch in chain([first], rows):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=plain)
        except BaseException as error:
            failed.append(error)  # on its way through Arrow and DuckDB an error becomes another
            raise

    given = pa.RecordBatchReader.from_batches(plain, renamed())
    with spill_folder() as spill:
        options: dict[str, str | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": str(spill / "duckdb"),
        }
        connection = duckdb.connect(config={**options, "preserve_insertion_order": False})
        try:
            connection.register("given", given)
            order = ", ".join([*_compared(keys), "place"])
            found = connection.sql(f"SELECT place FROM given ORDER BY {order}")
            for batch in found.to_arrow_reader():
                yield batch.column(0).to_numpy()
        except (duckdb.Error, pa.ArrowException, OSError):
            if failed:
                raise failed[0] from None
            raise
        finally:
            connection.close()


def _compared(keys: Sequence[pa.Field]) -> Iterator[str]:
    """What DuckDB compares of the columns: short values, so that a row of the sort is small. The digests are
    MD5 and not DuckDB's own hash, since a copy that is gone must come again in the same order.
    """
    types = pa.types
    texts = [key for key in keys if types.is_string(key.type) or types.is_large_string(key.type)]
    lead = max(LEAST_LEAD_CHARACTERS, LEAD_CHARACTERS // max(1, len(texts)))
    for key in keys:
        name, kind = key.name, key.type
        if key in texts:
            yield f"left({name}, {lead})"
            yield _digests(name, lead, fine=texts.index(key) < DIGESTED_COLUMNS)
        elif types.is_binary(kind) or types.is_large_binary(kind):
            yield f"md5_number({name})"
        elif types.is_nested(kind):
            yield f"md5_number({name}::VARCHAR)"
        else:
            yield name


def _digests(name: str, lead: int, *, fine: bool) -> str:
    """The digests of what follows the lead, piece by piece, each a quarter of what stands before: rows with
    the same first pieces stand together.
    """
    starts = [lead]
    while fine and starts[-1] < MOST_CHARACTERS:
        starts.append(starts[-1] + max(64, starts[-1] // 4))
    pieces = []
    for start, stop in zip_longest(starts, starts[1:]):
        length = "" if stop is None else f", {stop - start}"
        digest = f"left(md5(substr({name}, {start + 1}{length})), {DIGEST_CHARACTERS})"
        pieces.append(f"CASE WHEN length({name}) > {start} THEN {digest} END")
    return f"concat({', '.join(pieces)})"


def _rows(spec: JobSpec, plan: Plan, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of a plan in dataset order, with the columns of the copy."""
    reader = PlanReader(spec, plan, CACHE_BYTES)
    names = [*columns.plain, *columns.as_json]
    read = names if spec.read_columns is None else spec.read_columns
    # A value that does not fit is an error of the row only in a column that the job reads.
    others = [name for name in names if name not in (*read, spec.input.id)]
    schema = columns.schema(plan.schema)
    for batch in plan.batches():
        rows = reader.read(batch, read)
        table = rows.whole()
        more = table
        if others:
            more = reader.read(batch, others).whole()
        wanted = rows.numbers
        failures = [rows.bad.get(index) for index in wanted]
        values = {
            arranged.OFFSET: pa.array(wanted, pa.int64()),
            arranged.KIND: pa.array([each and str(each.kind) for each in failures], pa.string()),
            arranged.WHY: pa.array([each and each.message for each in failures], pa.string()),
        }
        texts = _json_texts(spec, batch, table, [n for n in columns.as_json if n not in others])
        texts |= _json_texts(spec, batch, more, [n for n in columns.as_json if n in others])
        for name in columns.plain:
            column = (more if name in others else table).column(name)
            values[name] = column.cast(schema.field(name).type)
        yield from table_of(values | texts, len(wanted)).select(schema.names).to_batches()


def _key_rows(
    spec: JobSpec, plan: Plan, columns: Columns, by: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The offset of each row of a plan in dataset order, and the columns that sort the rows."""
    reader = PlanReader(spec, plan, CACHE_BYTES)
    names = [name for name in by if name not in columns.empty]
    chats = _chats(spec, plan.schema)
    for batch in plan.batches():
        rows = reader.read(batch, by)
        table = rows.whole()
        offsets = pa.array(rows.numbers, pa.int64())
        texts = _json_texts(spec, batch, table, [n for n in names if n in columns.as_json])
        for name in chats:
            told = (json.dumps(each, default=str) for each in to_list(table.column(name)))
            texts.setdefault(name, pa.array(told, pa.string()))
        values = {
            name: texts[name]
            if name in texts
            else comparable(table.column(name), plan.schema.field(name).type)
            for name in names
        }
        yield from table_of({arranged.OFFSET: offsets} | values, len(offsets)).to_batches()


def _chats(spec: JobSpec, schema: pa.Schema) -> list[str]:
    """The column of chats that are lists: as text, chats with the same first messages stand together."""
    name = spec.task.messages_column if isinstance(spec.task, GenerateTask) else None
    return [name] if name is not None and pa.types.is_nested(schema.field(name).type) else []


def comparable(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """What DuckDB is given of a column: values of types that it lacks as texts, equal ones of equal values."""
    if _compares(kind):
        return column.cast(kind)
    return pa.array([None if each is None else repr(each) for each in to_list(column)], pa.string())


def _compares(kind: pa.DataType) -> bool:
    """Whether DuckDB has this type. It has no nanoseconds beside time zones."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _compares(kind.value_type)
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(_compares(field.type) for field in kind)
    if types.is_timestamp(kind):
        return kind.tz is None or kind.unit != "ns"
    return kind in COMPARED_TYPES or any(is_of(kind) for is_of in COMPARED_KINDS)


def _json_texts(
    spec: JobSpec, batch: Descriptor, table: pa.Table, names: Sequence[str]
) -> dict[str, pa.Array]:
    """The values of nested columns as JSON text."""
    if names and FORMATS[batch.source.format].may_have_more:
        # Out of a table objects come with the keys of all that were read together.
        found = input_rows.json_texts(spec, batch, names)
        return {name: pa.array(found[name], pa.string()) for name in names}
    return {name: pa.array(map(_json, to_list(table.column(name))), pa.string()) for name in names}


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Sorts inside while no other thread does. Raises BadInput for rows that cannot be carried, StorageUnavailable
    also where the folder of temporary files is full.
    """
    with _errors(), _sorts:
        yield


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except SourceChanged as error:
        raise BadInput(f"{marked(error)}") from error
    except (duckdb.OutOfMemoryException, duckdb.IOException, MemoryError, OSError) as error:
        raise StorageUnavailable(f"the rows cannot be sorted: {_first_line(error)}") from error
    except (duckdb.Error, pa.ArrowException, TypeError) as error:
        raise BadInput(
            f"the rows cannot be arranged: {_first_line(error)}; batch.arrange none runs them in the "
            "order of the dataset"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
