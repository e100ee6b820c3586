"""Inputs from Python: addresses of files stay addresses, tables and queries become a stream of Arrow."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike, fspath
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.errors import BadInput
from nightshift.common.formats.values import is_kept, to_list
from nightshift.common.text import HALF_CHARACTER, escaped, has_half_characters

FRAME_ROWS = 10_000
"""Rows that a lazy frame or a dataset gives at once."""

DRIVERS = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}
"""ADBC's driver for the scheme of a URI; the package is adbc-driver-NAME."""


@dataclass(frozen=True, slots=True)
class SqlRows:
    """The rows of a query, made by `ns.sql`; they are read once, when a job is submitted."""

    connection: Any = field(repr=False)
    query: str

    @contextmanager
    def reader(self) -> Iterator[pa.RecordBatchReader]:
        """The rows as a stream; a connection that was made of a URI ends with it."""
        with ExitStack() as stack:
            connection = self.connection
            if isinstance(connection, str):
                connection = stack.enter_context(_connected(connection))
            cursor = stack.enter_context(connection.cursor())
            if not hasattr(cursor, "fetch_record_batch"):
                raise BadInput(
                    f"a connection of {type(connection).__module__} gives no Arrow: give ns.sql a "
                    "URI, or a connection of an ADBC driver"
                )
            try:
                cursor.execute(self.query)
            except Exception as error:  # each driver has errors of its own
                raise BadInput(f"the query failed: {' '.join(str(error).split())}") from error
            yield cursor.fetch_record_batch()


def sql(connection: Any, query: str) -> SqlRows:
    """The rows of a query as the input of `ns.run` and `Client.submit`.

    `connection` is an open connection of an ADBC driver, or a URI: postgresql://… or sqlite:///file,
    for which the package adbc-driver-postgresql or adbc-driver-sqlite must be installed. The rows
    are staged in the order in which the database gives them; without ORDER BY that may be another one
    the next time, and then the job is another one. A URI, with its password, is kept nowhere.
    """
    return SqlRows(connection, query)


def uris_of(data: object) -> list[str] | None:
    """The addresses that `data` names, or None where `data` is something else."""
    if isinstance(data, str | PathLike):
        return [str(fspath(data))]
    if isinstance(data, Sequence) and data and all(isinstance(x, str | PathLike) for x in data):
        return [str(fspath(each)) for each in data]
    return None


@contextmanager
def opened(data: object) -> Iterator[pa.RecordBatchReader]:
    """The rows of a table as a stream that is read once.

    Takes what speaks Arrow's PyCapsule stream (Arrow, Polars, DuckDB relations and many more),
    pandas, lazy frames of Polars, datasets of Hugging Face, and `ns.sql`. Raises BadInput for
    everything else, and for columns that Arrow cannot hold.
    """
    try:
        if isinstance(data, SqlRows):
            with data.reader() as reader:
                yield reader
        else:
            yield _stream(data)
    except (pa.ArrowException, OverflowError) as error:
        raise BadInput(f"the rows cannot be read: {' '.join(str(error).split())}") from error


def _stream(data: object) -> pa.RecordBatchReader:
    if _is(data, "pandas", "DataFrame"):
        return _pandas_table(data).to_reader()
    if _is(data, "polars", "DataFrame", "LazyFrame"):
        return _polars(data)
    if _is(data, "pandas", "Series") or _is(data, "polars", "Series"):
        raise BadInput("a Series is one column: give a table, such as series.to_frame()")
    if _is(data, "datasets", "Dataset", "IterableDataset"):
        return _hugging_face(data)
    if _is(data, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise BadInput("the dataset has several splits: give one, such as dataset['train']")
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)]).to_reader()
    raise BadInput(
        f"{type(data).__module__}.{type(data).__qualname__} is no input: give files, a table that "
        "Arrow can read (Arrow, pandas, Polars, DuckDB, Hugging Face datasets), or ns.sql; "
        "pyarrow.Table.from_pylist makes a table of rows in a list"
    )


def _is(data: object, package: str, *kinds: str) -> bool:
    """Whether `data` is of a class of a package that its owner has imported."""
    module = sys.modules.get(package)
    found = (getattr(module, kind, None) for kind in kinds)
    return any(kind is not None and isinstance(data, kind) for kind in found)


def _polars(frame: Any) -> pa.RecordBatchReader:
    """A frame of Polars in its oldest layout: of categories over views, which Polars gives else,
    Arrow reads no value.
    """
    lazy = hasattr(frame, "collect_batches")
    some = frame.collect_batches(chunk_size=FRAME_ROWS) if lazy else frame.iter_slices(FRAME_ROWS)
    oldest = sys.modules["polars"].CompatLevel.oldest()
    empty = frame.collect_schema().to_frame().to_arrow(compat_level=oldest)
    return _joined((each.to_arrow(compat_level=oldest) for each in some), empty)


def _hugging_face(dataset: Any) -> pa.RecordBatchReader:
    columns = dataset.features
    return _joined(
        dataset.with_format("arrow").iter(batch_size=FRAME_ROWS),
        None if columns is None else columns.arrow_schema.empty_table(),
    )


def _joined(tables: Any, empty: Any) -> pa.RecordBatchReader:
    """Tables that come one after the other, as one stream; `empty` has the columns if none comes."""
    rest = (pa.table(each) for each in tables)
    first = next(rest, None)
    if first is None and empty is None:
        raise BadInput("the dataset has no rows, and so no columns")
    head = pa.table(empty) if first is None else first

    def batches() -> Iterator[pa.RecordBatch]:
        yield from head.to_batches()
        for table in rest:
            if table.schema.names != head.schema.names:
                raise BadInput(
                    f"the dataset has the columns {table.schema.names} in later rows: {SAY}"
                )
            for found, first in zip(table.schema, head.schema, strict=True):
                _refuse_other(found.name, found.type, first.type)
            yield from table.cast(head.schema).to_batches()

    return pa.RecordBatchReader.from_batches(head.schema, batches())


SAY = "give it features, or a table that has one type for each column"


def _refuse_other(name: str, found: pa.DataType, first: pa.DataType) -> None:
    """BadInput where a cast from the type would change values, or leave keys of objects out."""
    types = pa.types
    if found == first or types.is_null(found):
        return
    if types.is_struct(found) and types.is_struct(first):
        known = {child.name: child.type for child in first}
        for child in found:
            if child.name not in known:
                raise BadInput(
                    f"the column {name!r} has the key {child.name!r} in later rows alone: {SAY}"
                )
            _refuse_other(f"{name}.{child.name}", child.type, known[child.name])
        return
    if types.is_list(found) and types.is_list(first):
        _refuse_other(name, found.value_type, first.value_type)
        return
    are_whole = types.is_integer(found) and (types.is_integer(first) or types.is_floating(first))
    # A cast to a whole number or a wider float is safe: Arrow refuses one that loses digits.
    if are_whole or (types.is_floating(found) and first in (pa.int64(), pa.float64())):
        return
    raise BadInput(f"the column {name!r} is {found} in later rows and was {first}: {SAY}")


def _pandas_table(frame: Any) -> pa.Table:
    """A DataFrame as Arrow; an index without a name is left out. BadInput names the column that
    Arrow refuses, or of which Arrow would change a value.
    """
    if frame.columns.has_duplicates:
        name = frame.columns[frame.columns.duplicated()][0]
        raise BadInput(f"the DataFrame has two columns called {name!r}: rename one")
    named = [name for name in frame.index.names if name is not None]
    for name in named:
        if name in frame.columns:
            raise BadInput(f"the DataFrame has a column and an index called {name!r}: rename one")
    parts = _parts(frame, with_index=bool(named))
    try:
        table = pa.Table.from_pandas(frame, preserve_index=bool(named))
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        for part in parts:
            _refuse(part)
        raise BadInput(f"the DataFrame cannot become Arrow: {escaped(str(error))}") from error
    except TypeError as error:  # sparse columns
        raise BadInput(f"the DataFrame cannot become Arrow: {error}") from error
    for part, found in zip(parts, table.columns, strict=True):
        if not _are_all_kept(part.values, found):
            raise BadInput(part.no_one_type())
    return table


ALIKE = frozenset({bool, bytes, float, int, str})
"""Types of which Arrow keeps each value where a column holds no other type."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A column or a level of the index of a DataFrame, and what makes its values alike."""

    name: object
    values: Any
    said: str
    mend: str

    def no_one_type(self) -> str:
        """That Arrow has no type for the values, and what helps."""
        kinds = sorted({type(value).__name__ for value in self.values.dropna()})
        held = f"values of {' and '.join(kinds)}" if len(kinds) > 1 else f"{kinds[0]} values"
        return f"{self.said} holds {held}, which are no one type of Arrow: {self.mend}"


def _parts(frame: Any, *, with_index: bool) -> list[_Part]:
    """The columns and levels that Arrow makes columns of, in its order."""
    parts: list[_Part] = []
    for at, name in enumerate(frame.columns):
        mend = f"make them alike, such as with frame[{name!r}].astype(str), or leave the column out"
        parts.append(_Part(name, frame.iloc[:, at], f"the column {name!r} of the DataFrame", mend))
    for at, name in enumerate(frame.index.names if with_index else ()):
        values = frame.index.get_level_values(at).to_series()
        level = at if name is None else name
        mend = f"leave it out with frame.reset_index({level!r}, drop=True), or make a column of it"
        parts.append(_Part(name, values, f"the index {level!r} of the DataFrame", mend))
    return parts


def _are_all_kept(column: Any, found: pa.ChunkedArray) -> bool:
    """Whether Arrow gives back the values of a column: of texts beside bytes Arrow makes bytes, of
    moments beside days days, of periods numbers, and from some moments it drops the zone.
    """
    kind = getattr(column.dtype, "categories", column).dtype
    if kind.name != "object" and not isinstance(found.type, pa.BaseExtensionType):
        return True
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    held = column.dropna()
    kinds = set(map(type, held))
    if len(kinds) <= 1 and kinds <= ALIKE:
        return True
    if kinds == {np.ndarray}:  # without a look at each of their numbers
        numbers = {each.dtype for each in held}
        if len(numbers) == 1 and next(iter(numbers)).kind in "biuf":
            return True
    for start in range(0, len(column), FRAME_ROWS):
        values = column.iloc[start : start + FRAME_ROWS]
        given = values.astype(object).where(values.notna(), None)
        got = to_list(found.slice(start, FRAME_ROWS))
        if not all(is_kept(*pair, found.type) for pair in zip(given, got, strict=True)):
            return False
    return True


def _refuse(part: _Part) -> None:
    """BadInput where Arrow holds no column of this name or of these values."""
    if has_half_characters(str(part.name)):
        raise BadInput(f"the name '{escaped(str(part.name))}' of the DataFrame {HALF_CHARACTER}")
    try:
        pa.array(part.values, from_pandas=True)
    except UnicodeError as error:
        raise BadInput(f"{part.said} {HALF_CHARACTER}, which no file can hold") from error
    except (pa.ArrowException, OverflowError) as error:
        raise BadInput(part.no_one_type()) from error


def _connected(uri: str) -> Any:
    scheme, _, rest = uri.partition("://")
    if scheme not in DRIVERS or not rest:
        raise BadInput(
            f"ns.sql takes URIs of {', '.join(sorted(set(DRIVERS)))}: for another database give a "
            "connection of its ADBC driver"
        )
    package = f"adbc_driver_{DRIVERS[scheme]}"
    try:
        driver = import_module(f"{package}.dbapi")
    except ImportError as error:
        name = package.replace("_", "-")
        raise BadInput(f"ns.sql of {scheme}:// needs {name}: run pip install {name}") from error
    # The driver of SQLite takes a path.
    address = rest.removeprefix("/") if scheme == "sqlite" else uri
    try:
        return driver.connect(address)
    except driver.Error as error:
        raise BadInput(f"ns.sql cannot connect: {' '.join(str(error).split())}") from None
