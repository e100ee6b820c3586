"""The arranged copy is made: one pass over the rows, sorted by DuckDB in bounded memory."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats import arranged, input_rows
from nightshift.common.formats.arranged import Columns
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.parquet.writer import regrouped
from nightshift.common.formats.values import table_of, to_list
from nightshift.common.spec import JobSpec
from nightshift.producer.planning.planner import Plan

MEMORY = "1GB"
"""What DuckDB holds; the rest of a sort is spilled to the folder of temporary files."""

THREADS = 2

CACHE_BYTES = 128 * 2**20

OUT_ROWS = 2048
"""Rows that come out of the sort at once, as DuckDB has them in memory."""


def write(uri: str, spec: JobSpec, plan: Plan, columns: Columns, by: Sequence[str]) -> None:
    """Writes the copy of a plan's rows to `uri`, whole or not at all, sorted by the columns `by` and then
    by their place. Its batches are those in which the rows are read.

    Raises BadInput for rows that cannot be carried, for files that change meanwhile, StorageUnavailable
    also where the folder of temporary files is full.
    """
    schema = columns.schema(plan.schema)

    def make(sink: BinaryIO) -> None:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table in regrouped(_sorted(_rows(spec, plan, columns), schema, by), schema):
                writer.write_table(table)
            writer.add_key_value_metadata(columns.metadata)

    with _errors():
        storage.write_whole(uri, make, replace=True)


def _sorted(
    rows: Iterator[pa.RecordBatch], schema: pa.Schema, by: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The same rows in order; DuckDB sees columns by numbers, whatever their names are."""
    plain = pa.schema([(f"c{at}", field.type) for at, field in enumerate(schema)])
    numbers = [schema.names.index(name) for name in [*by, arranged.OFFSET] if name in schema.names]
    failed: list[BaseException] = []

    def renamed() -> Iterator[pa.RecordBatch]:
        try:
            for batch in rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=plain)
        except BaseException as error:
            failed.append(error)  # on its way through Arrow and DuckDB an error becomes another
            raise

    given = pa.RecordBatchReader.from_batches(plain, renamed())
    with tempfile.TemporaryDirectory(prefix="nightshift-arrange-") as spill:
        options: dict[str, str | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": spill,
        }
        connection = duckdb.connect(config={**options, "preserve_insertion_order": False})
        try:
            connection.register("given", given)
            order = ", ".join(f"c{number}" for number in numbers)
            found = connection.sql(f"SELECT * FROM given ORDER BY {order}")
            for batch in found.to_arrow_reader(OUT_ROWS):
                table = pa.Table.from_batches([batch]).cast(plain)
                yield from pa.Table.from_arrays(table.columns, schema=schema).to_batches()
        except (duckdb.Error, pa.ArrowException, OSError):
            if failed:
                raise failed[0] from None
            raise
        finally:
            connection.close()


def _rows(spec: JobSpec, plan: Plan, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of a plan in dataset order, with the columns of the copy."""
    cache = ReadCache(CACHE_BYTES)
    names = [*columns.plain, *columns.as_json]
    read = names if spec.read_columns is None else spec.read_columns
    # A value that does not fit is an error of the row only in a column that the job reads.
    others = [name for name in names if name not in (*read, spec.input.id)]
    schema = columns.schema(plan.schema)
    for batch in plan.batches():
        rows = input_rows.read_rows(spec, batch, read, cache, plan.schema)
        table = rows.whole()
        more = table
        if others:
            more = input_rows.read_rows(spec, batch, others, cache, plan.schema).whole()
        wanted = sorted([*rows.row_index, *rows.bad])
        failures = [rows.bad.get(index) for index in wanted]
        values = {
            arranged.OFFSET: pa.array(wanted, pa.int64()),
            arranged.KIND: pa.array([each and str(each.kind) for each in failures], pa.string()),
            arranged.WHY: pa.array([each and each.message for each in failures], pa.string()),
        }
        texts = {}
        if columns.as_json and batch.source.format == "jsonl":
            # Out of a table objects come with the keys of all that were read together.
            texts = input_rows.json_texts(spec, batch, columns.as_json)
        for name in names:
            column = (more if name in others else table).column(name)
            if name in columns.as_json:
                found = texts[name] if texts else map(_json, to_list(column))
                values[name] = pa.array(found, pa.string())
            else:
                values[name] = column.cast(schema.field(name).type)
        yield from table_of(values, len(wanted)).select(schema.names).to_batches()


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except SourceChanged as error:
        raise BadInput(f"{error}") from error
    except (duckdb.OutOfMemoryException, duckdb.IOException, MemoryError) as error:
        raise StorageUnavailable(f"the rows cannot be sorted: {_first_line(error)}") from error
    except (duckdb.Error, pa.ArrowException, TypeError) as error:
        raise BadInput(
            f"the rows cannot be arranged: {_first_line(error)}; batch.arrange none runs them in the "
            "order of the dataset"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
