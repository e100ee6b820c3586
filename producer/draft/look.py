"""A look at the first rows of an input: columns with their types, an example and what the sample says of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats.csv.records import OtherDelimiter, other_delimiter
from nightshift.common.formats.values import to_list
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.producer.external_sort.spill import copies_folder
from nightshift.producer.submit.planning.plan_reader import PlanReader
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.submit import survey, within_roots

ROWS = 1_000
"""Most rows that are looked at, the first of the input."""

ENOUGH_BYTES = 32 * 2**20
"""Bytes of rows after which no further batch is read."""

BATCH = {"rows": 100, "bytes": 4 * 2**20}
"""What is read at once, so that rows with large values stay few."""

EXAMPLE_CHARACTERS = 200
"""Longest piece of a value that is kept as its example."""

TEXTS = (pa.string(), pa.large_string(), pa.string_view())


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the sample: `example` is its first value that is not null, as text; `mean_length` the mean number
    of characters of its texts, 0 for other types; `differs` says that no value stands in two rows.
    """

    name: str
    type: str
    example: str | None = None
    nulls: int = 0
    is_text: bool = False
    mean_length: float = 0.0
    is_key: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The columns of an input, in `rows` of its rows, and how many rows could not be read; a `delimiter` of CSV that
    is another than the one of its suffix.
    """

    columns: list[Column]
    rows: int
    bad: int = 0
    delimiter: str | None = None


def look(uri: str, settings: Settings) -> Seen:
    """Looks at an input: a file, a folder, a pattern or a table. BadInput for what `submit` would refuse; nothing
    is written but copies in a folder that is gone afterwards.
    """
    with copies_folder() as copies, within_roots(settings, copies):
        spec, plan, delimiter = _surveyed(uri, settings, copies)
        tables, bad = [], 0
        for table, failed in _first(spec, plan):
            tables.append(table)
            bad += failed
    sample = pa.concat_tables(tables, promote_options="permissive")
    read = set(sample.column_names)
    columns = [
        _column(field.name, field.type, sample.column(field.name))
        if field.name in read
        else Column(field.name, str(field.type))
        for field in plan.schema
    ]
    return Seen(columns, sample.num_rows, bad, delimiter)


def _surveyed(uri: str, settings: Settings, copies: str) -> tuple[JobSpec, Plan, str | None]:
    """A spec and its plan; CSV whose header seems to have another delimiter is read with that."""
    try:
        spec, plan = survey(_everything(uri), settings, copies=copies)
        is_csv = {file.format for file in plan.files} == {"csv"}
        delimiter = other_delimiter(plan.schema.names) if is_csv else None
    except OtherDelimiter as error:
        delimiter = error.delimiter
    if delimiter is not None:
        spec, plan = survey(_everything(uri, delimiter), settings, copies=copies)
    return spec, plan, delimiter


def _everything(uri: str, delimiter: str | None = None) -> JobSpec:
    """A spec that reads all columns of the first rows."""
    return parse_spec(
        {
            "name": "look",
            "input": {"uri": uri, "limit": ROWS, **({"delimiter": delimiter} if delimiter else {})},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "nothing:runs"},
            "output": {"uri": "nowhere"},
            "batch": BATCH,
        },
        uri,
    )


def _first(spec: JobSpec, plan: Plan) -> Iterator[tuple[pa.Table, int]]:
    """Batches of good rows, and how many of each are bad, until there is enough."""
    reader = PlanReader(spec, plan, ENOUGH_BYTES)
    read = 0
    for batch in plan.batches():
        if read >= ENOUGH_BYTES:
            return
        rows = reader.read(batch, None)
        read += rows.table.nbytes
        yield rows.table, len(rows.bad)


def _column(name: str, kind: pa.DataType, values: pa.ChunkedArray) -> Column:
    is_text = kind in TEXTS
    there = (values.cast(pa.large_string()) if is_text else values).drop_null()
    is_key = is_text or pa.types.is_integer(kind)
    return Column(
        name,
        str(kind),
        example=_example(there),
        nulls=values.null_count,
        is_text=is_text,
        mean_length=(pc.mean(pc.utf8_length(there)).as_py() or 0.0) if is_text else 0.0,
        is_key=is_key,
        differs=is_key and pc.count_distinct(there).as_py() == len(values) > 0,
    )


def _example(values: pa.ChunkedArray) -> str | None:
    """The first value as text, cut."""
    if not len(values):
        return None
    [value] = to_list(values.slice(0, 1))
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return str(value)[:EXAMPLE_CHARACTERS]
