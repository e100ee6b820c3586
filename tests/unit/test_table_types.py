"""Which types the parts of a table are written in, and that each reader of tables gets their values back."""

import datetime as dt
import re
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput, OutputRefused
from nightshift.common.formats import input_rows, output_schema, part_rows
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.formats.parquet.column_types import input_field, written_schema
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.table_types import (
    NoTableType,
    TableFormat,
    for_table,
    table_type,
    without_misfits,
)
from nightshift.common.ledger import Ledger
from nightshift.common.row_errors import Failure
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.producer.results import vectors as vectors_file
from nightshift.producer.submit import checks
from nightshift.producer.submit.planning import planner
from nightshift.worker.engines.protocol import Answer
from nightshift.worker.job_cache import JobCache, KnownJob
from nightshift.worker.outages import PatientLedger
from nightshift.worker.rows.prompts import Renderer
from nightshift.worker.rows.results import RowResults, part_table
from nightshift.worker.telemetry.recorder import Recorder
from tests.support import lakes
from tests.support.parts import read_part

FORMATS: tuple[TableFormat, ...] = ("delta", "iceberg")

ROWS = 6

FIRST, LAST = dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29, 23, 59, 59, 999999)
"""Moments that Python's type has in every zone."""


def _moments(unit: str, zone: str | None = None) -> pa.Array:
    extremes = pa.array([FIRST, None, LAST, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)])
    return (
        extremes.cast(pa.timestamp(unit), safe=False)
        .cast(pa.int64())
        .cast(pa.timestamp(unit, zone))
    )


def _extension(kind: pa.BaseExtensionType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


LEAVES = {
    **{
        f"int{bits}": pa.array([-(2 ** (bits - 1)), None, 2 ** (bits - 1) - 1], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"uint{bits}": pa.array([0, None, 2**bits - 1], f"uint{bits}") for bits in (8, 16, 32)},
    "half": pa.array(np.array([65504, -0.0, np.nan, np.inf, 6e-8], np.float16)),
    "float": pa.array([3.4028234663852886e38, None, float("nan"), -0.0, 1e-45], pa.float32()),
    "double": pa.array([1.7976931348623157e308, None, float("-inf"), 5e-324]),
    "bool": pa.array([True, None, False]),
    "string": pa.array(["", None, "ü\0\U0010ffff", "a" * 100]),
    "large string": pa.array(["", None, "b"], pa.large_string()),
    "string view": pa.array(["", None, "a long one that is not kept inline"], pa.string_view()),
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "dictionary of numbers": pa.array([1, None, 2**40]).dictionary_encode(),
    "binary": pa.array([b"", None, b"\xff\0"]),
    "large binary": pa.array([b"", None, b"\xff\0"], pa.large_binary()),
    "binary view": pa.array([b"", None, b"\xff\0"], pa.binary_view()),
    "fixed binary": pa.array([b"\xff\0", None, b"ab"], pa.binary(2)),
    "decimal": pa.array([Decimal("9" * 36 + ".99"), None, Decimal("-0.01")], pa.decimal128(38, 2)),
    "whole decimal": pa.array([Decimal("-" + "9" * 38), None], pa.decimal128(38, 0)),
    "fraction": pa.array([Decimal("0." + "9" * 38), None], pa.decimal128(38, 38)),
    "decimal of 32 bits": pa.array([Decimal("999.99"), None], pa.decimal32(5, 2)),
    "decimal of 64 bits": pa.array([Decimal("-" + "9" * 18), None], pa.decimal64(18, 0)),
    "decimal of 256 bits": pa.array([Decimal("9" * 38), None], pa.decimal256(38, 0)),
    "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "day in milliseconds": pa.array([dt.date(1, 1, 1), None], pa.date64()),
    **{f"moment in {unit}": _moments(unit) for unit in ("s", "ms", "us")},
    **{f"moment in UTC in {unit}": _moments(unit, "UTC") for unit in ("s", "ms", "us")},
    "moment in Rome": _moments("us", "Europe/Rome"),
    "moment at an offset": _moments("ms", "+02:00"),
    "time in s": pa.array([0, None, 86_399], pa.time32("s")),
    "time in ms": pa.array([0, None, 86_399_999], pa.time32("ms")),
    "time in us": pa.array([0, None, 86_399_999_999], pa.time64("us")),
    "uuid": _extension(pa.uuid(), [b"\0" * 16, None, b"\xff" * 16]),
    "json": _extension(pa.json_(), ["{}", None, "1"]),
    "vector": pa.array([[1, -0.0], None, [3.4e38, 4]], pa.list_(pa.float32(), 2)),
    "half vector": pa.FixedSizeListArray.from_arrays(np.arange(6, dtype=np.float16), 2),
    "tensor": _extension(pa.fixed_shape_tensor(pa.float32(), [2]), [[1, 2], None, [5, 6]]),
}

REFUSED = {
    "both": [
        pa.uint64(),
        pa.duration("us"),
        pa.timestamp("ns"),
        pa.timestamp("ns", "UTC"),
        pa.time64("ns"),
        pa.decimal256(39, 0),
        pa.decimal128(5, -2),
        pa.null(),
        pa.struct([]),
        pa.list_view(pa.int32()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int32(), pa.uint64()),
    ],
    "delta": [pa.time32("s"), pa.time32("ms"), pa.time64("us")],
    "iceberg": [],
}
"""Parquet has none of `struct[]`, `decimal128(5, -2)`, run ends and intervals. The libraries refuse the
others, or take them and cannot read them: `uint64` as long, and `timestamp[ns]` in Delta.
"""


def _listed(inner: pa.Array, kind: Any = pa.list_) -> pa.Array:
    """Lists: all values, null, none, then one value each."""
    size = len(inner)
    offsets = [0, size, size, size, *(size for _ in range(ROWS - 3))]
    missing = pa.array([row == 1 for row in range(ROWS)])
    large = kind is pa.large_list
    array = pa.LargeListArray if large else pa.ListArray
    ends = pa.array(offsets, pa.int64() if large else pa.int32())
    return array.from_arrays(ends, inner, mask=missing)


def _object(inner: pa.Array, beside: str = "v") -> pa.Array:
    """Structs of the value and of a text; one is null."""
    texts = pa.array(["x", None] * (len(inner) // 2 + 1)).slice(0, len(inner))
    missing = pa.array([row == 1 for row in range(len(inner))])
    return pa.StructArray.from_arrays([inner, texts], names=[beside, "other"], mask=missing)


def _map(inner: pa.Array) -> pa.Array:
    size = len(inner)
    offsets = pa.array([0, None, size, *(size for _ in range(ROWS - 2))], pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.array([f"k{at}" for at in range(size)]), inner)


NESTED = {
    "{}": lambda leaf: leaf,
    "list of {}": _listed,
    "large list of {}": partial(_listed, kind=pa.large_list),
    "struct of {}": _object,
    "map to {}": _map,
    "list of structs of {}": lambda leaf: _listed(_object(leaf)),
    "struct of lists of {}": lambda leaf: _object(_listed(leaf), "list"),
    "map to lists of {}": lambda leaf: _map(_listed(leaf)),
    "map to structs of {}": lambda leaf: _map(_object(leaf)),
    "list of lists of structs of {}": lambda leaf: _listed(_listed(_object(leaf))),
    "struct of structs of {}": lambda leaf: _object(_object(leaf, "element")),
}


def _column(pattern: str, leaf: pa.Array) -> pa.Array:
    made = NESTED[pattern](leaf)
    short = ROWS - len(made)
    return pa.concat_arrays([made, pa.nulls(short, made.type)]) if short else made


@pytest.fixture(scope="module", params=FORMATS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every accepted type, alone and nested: as the writer wrote them, and as each reader reads them."""
    kind: TableFormat = request.param
    folder = tmp_path_factory.mktemp(kind)
    columns = {
        pattern.format(name): _column(pattern, leaf)
        for pattern in NESTED
        for name, leaf in LEAVES.items()
        if table_type(leaf.type, kind) is not None
    }
    fields = [input_field(name, column.type) for name, column in columns.items()]
    schema = for_table(pa.schema(fields), kind)
    table = pa.table(
        [column.cast(field.type) for column, field in zip(columns.values(), schema, strict=True)],
        schema=schema,
    )
    part_rows.write_part(f"{folder}/part.parquet", table, "parquet", {"job": "1"})
    readers = lakes.table_of(kind, folder, written_schema(schema), ["part.parquet"])
    return kind, table, f"{folder}/part.parquet", readers


@pytest.mark.slow
def test_every_column_comes_back_to_us_as_it_was(both: Any) -> None:
    _, table, part, _ = both
    again = read_part(part, "parquet", table.schema)
    for name in table.column_names:
        assert again.column(name).type == table.column(name).type
        assert repr(again.column(name).to_pylist()) == repr(table.column(name).to_pylist()), name


@pytest.mark.parametrize("reader", ["file", "to_pyarrow_table", "scan", "DuckDB"])
@pytest.mark.slow
def test_every_reader_of_the_table_gets_every_value(both: Any, reader: str) -> None:
    kind, table, part, readers = both
    if kind == "iceberg" and reader == "to_pyarrow_table":
        return
    found = pq.read_table(part) if reader == "file" else readers[reader]()
    assert found.num_rows == ROWS
    for name, field in zip(table.column_names, written_schema(table.schema), strict=True):
        wanted, got = lakes.values(table.column(name).cast(field.type)), found.column(name)
        is_blurred = kind == "iceberg" and reader != "file" and "structs" in name
        blur = lakes.blurred if is_blurred else list
        assert blur(lakes.values(got)) == blur(wanted), name


def test_pyiceberg_alone_reads_a_null_list_of_structs_as_an_empty_one(tmp_path: Path) -> None:
    """docs/tables.md says so: a version of pyiceberg that reads null may be said there."""
    column = pa.array([[{"a": 1}], None, []], pa.list_(pa.struct([("a", pa.int64())])))
    pq.write_table(pa.table({"c": column}), tmp_path / "part.parquet")
    assert pq.read_table(tmp_path / "part.parquet").column("c").to_pylist() == column.to_pylist()
    readers = lakes.table_of("iceberg", tmp_path, pa.schema([("c", column.type)]), ["part.parquet"])
    assert readers["scan"]().column("c").to_pylist() == [[{"a": 1}], [], []]


@pytest.mark.parametrize("kind", FORMATS)
def test_types_that_no_reader_would_get_back_are_refused(kind: TableFormat) -> None:
    for refused in REFUSED["both"] + REFUSED[kind]:
        nested = (
            pa.list_(refused),
            pa.map_(pa.string(), refused),
            pa.struct([("fine", pa.int64()), ("not", pa.list_(pa.struct([("v", refused)])))]),
        )
        for each in (refused, *nested):
            assert table_type(each, kind) is None, each
    assert table_type(pa.map_(pa.uint64(), pa.string()), kind) is None


@pytest.mark.parametrize("kind", FORMATS)
def test_a_type_of_a_table_stays_as_it_is(kind: TableFormat) -> None:
    for leaf in LEAVES.values():
        found = table_type(leaf.type, kind)
        assert found is None or table_type(found, kind) == found


@pytest.mark.parametrize(
    ("kind", "columns", "refused"),
    [
        ("delta", [("a", pa.int64()), ("A", pa.int64())], "'a'"),
        ("delta", [("s", pa.struct([("Yes", pa.float32()), ("yes", pa.float32())]))], "'s.yes'"),
        ("delta", [("s.yes", pa.int64()), ("s", pa.struct([("yes", pa.float32())]))], None),
        ("iceberg", [("s.yes", pa.int64()), ("s", pa.struct([("yes", pa.float32())]))], "'s.yes'"),
        ("iceberg", [("a", pa.int64()), ("A", pa.int64())], None),
    ],
)
def test_two_names_that_are_one_in_the_table_are_refused(
    kind: TableFormat, columns: list[tuple[str, pa.DataType]], refused: str | None, tmp_path: Path
) -> None:
    """As the libraries do, which would do so when all rows are done."""
    schema = pa.schema(columns)
    pq.write_table(schema.empty_table(), tmp_path / "part.parquet")
    if refused is None:
        for_table(schema, kind)
        assert lakes.table_of(kind, tmp_path, schema, ["part.parquet"])["scan"]().num_rows == 0
        return
    with pytest.raises(NoTableType, match=refused):
        for_table(schema, kind)
    with pytest.raises(Exception, match=r"(?i)duplicate field name|multiple fields"):
        lakes.table_of(kind, tmp_path, schema, ["part.parquet"])


# ---------------------------------------------------------------- jobs

TABLES = {
    "delta": {"format": "delta", "uri": "lake"},
    "iceberg": {"format": "iceberg", "catalog": "c", "name": "n.t"},
}


def job(kind: TableFormat, task: dict[str, Any], folder: str = "x", **output: Any) -> JobSpec:
    backends = {"function": {"backend": "function", "callable": "rules:shout"}}
    engine = backends.get(task["kind"], {"backend": "vllm", "model": "m"})
    return parse_spec(
        {
            "name": "test",
            "input": {"uri": f"{folder}/in"},
            "task": task,
            "engine": engine,
            "output": {"uri": f"{folder}/lake/out", "table": TABLES[kind], **output},
        },
        "test",
    )


FUNCTION = {"kind": "function"}


@pytest.mark.parametrize("kind", FORMATS)
def test_vectors_are_lists_in_the_table_and_vectors_for_us(
    kind: TableFormat, tmp_path: Path
) -> None:
    spec = job(kind, {"kind": "embed", "text": "{{ t }}", "dtype": "float16"})
    vectors = np.arange(6, dtype=np.float16).reshape(2, 3)
    schema = output_schema.inferred_schema(spec, pa.schema([]), [{"embedding": vectors[0]}])
    assert schema is not None
    schema = output_schema.deserialize(output_schema.serialize(schema))
    answers = {row: Answer({"embedding": vector}) for row, vector in enumerate(vectors)}
    results = RowResults(range(3), pa.table({"none": pa.nulls(3)}).select([]), dict(answers))
    results.failures[2] = Failure(RowErrorKind.BAD_RECORD, "bad")
    part = part_table(spec, schema, results).table
    uri = f"{tmp_path}/part.parquet"
    part_rows.write_part(uri, part, "parquet", {})
    assert pq.read_schema(uri).field("embedding").type == pa.list_(pa.float32())
    assert read_part(uri, "parquet", schema).equals(part)
    vectors_file.check(schema, 1)
    target = f"{tmp_path}/x.npy"
    batches = part_rows.iter_part_batches(uri, "parquet", schema)
    assert vectors_file.write(target, batches, schema, None) == 2
    assert np.array_equal(np.load(target), vectors)


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_without_an_answer_have_the_types_of_the_others(
    kind: TableFormat, tmp_path: Path
) -> None:
    """The bare parts, and the error parts of the reaper."""
    inputs = pa.schema([input_field("n", pa.uint8()), input_field("d", pa.large_string())])
    spec = job(kind, FUNCTION, columns=["n", "d"])
    bare = output_schema.bare_schema(spec, inputs)
    whole = output_schema.inferred_schema(spec, inputs, [{"x": np.float16(1)}])
    assert whole is not None
    passed = pa.table({"n": pa.array([255], pa.uint8()), "d": ["a"]})
    dead = Failure(RowErrorKind.BATCH_DEAD, "dead")
    wanted = table_type(pa.uint8(), kind)
    for name, schema in (("bare", bare), ("whole", whole)):
        uri = f"{tmp_path}/{name}.parquet"
        table = part_rows.failures_table(schema, [0], passed, dead)
        part_rows.write_part(uri, table, "parquet", {})
        found = pq.read_table(uri)
        assert found.schema.types[:3] == [pa.int64(), wanted, pa.string()]
        assert found.column("n").to_pylist() == [255]
    assert pq.read_schema(f"{tmp_path}/whole.parquet").field("x").type == pa.float32()


@pytest.mark.parametrize(
    ("kind", "column", "says"),
    [
        ("delta", pa.uint64(), "'c' is uint64, which a Delta table has no type for: leave"),
        ("iceberg", pa.duration("s"), "'c' is duration[s], which an Iceberg table has no type for"),
        ("delta", pa.time64("us"), "'c' is time64"),
        ("iceberg", pa.null(), "'c' has no value in any file"),
    ],
)
def test_a_column_that_the_table_has_no_type_for_is_refused_at_submit(
    kind: TableFormat, column: pa.DataType, says: str
) -> None:
    inputs = pa.schema([input_field("c", column)])
    with pytest.raises(BadInput, match=re.escape(says)):
        checks.check_table_types(job(kind, FUNCTION, columns=["c"]), inputs)
    checks.check_table_types(job(kind, FUNCTION), inputs)


def test_a_declared_type_that_the_table_lacks_is_refused_at_submit() -> None:
    with pytest.raises(BadInput, match=r"'x' is duration\[us\].*output\.schema"):
        checks.check_table_types(
            job("delta", FUNCTION, schema={"x": "duration[us]"}), pa.schema([])
        )
    checks.check_table_types(
        job("delta", FUNCTION, schema={"x": "list<halffloat>[3]"}), pa.schema([])
    )


def test_answers_of_a_type_that_the_table_lacks_pause_the_job() -> None:
    """A person changes the function, or names a type: no row is lost meanwhile."""
    cache = JobCache(PatientLedger(Ledger("postgresql://localhost/none"), Recorder()))
    spec = job("delta", FUNCTION)
    known = KnownJob(1, Owner("ledger", "job"), spec, pa.schema([]), Renderer(spec.task), {}, None)
    results = RowResults(range(1), pa.table({}), {0: Answer({"took": dt.timedelta(1)})})
    with pytest.raises(OutputRefused, match=r"'took' is duration\[us\].*output\.schema"):
        cache.output_schema(known, results)


# ---------------------------------------------------------------- moments that do not fit

FAR = 2**62


def test_a_moment_that_the_table_cannot_hold_fails_its_row_alone(tmp_path: Path) -> None:
    """In worker and reaper alike: else a part could not be written, and the job would never end."""
    (tmp_path / "in").mkdir()
    moments = pa.array([0, FAR, None, 5], pa.timestamp("ms"))
    nested = pa.array(
        [[{"at": value}] for value in (0, 1, FAR, 2)],
        pa.list_(pa.struct([("at", pa.timestamp("ms"))])),
    )
    table = pa.table({"id": [f"r{row}" for row in range(4)], "at": moments, "nested": nested})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    columns = ["id", "at", "nested"]
    spec = job("delta", FUNCTION, str(tmp_path), columns=columns)
    plan = planner.plan(spec.input, 10, columns=columns, output_uri=spec.output.uri)
    (batch,) = plan.batches()
    rows = input_rows.read_rows(spec, batch, columns, ReadCache(2**20), plan.schema)
    assert rows.row_index == [0, 3]
    assert {row: failure.kind for row, failure in rows.bad.items()} == dict.fromkeys(
        (1, 2), RowErrorKind.BAD_TYPE
    )
    assert "'at'" in rows.bad[1].message
    assert rows.bad_table.column("id").to_pylist() == ["r1", "r2"]
    assert rows.bad_table.column("at").to_pylist() == [None, None]
    schema = output_schema.bare_schema(spec, plan.schema)
    dead = Failure(RowErrorKind.BATCH_DEAD, "dead")
    part = part_rows.failures_table(schema, range(4), rows.whole(), dead)
    part_rows.write_part(f"{tmp_path}/part.parquet", part, "parquet", {})
    plain = parse_spec(
        {
            **spec.model_dump(mode="json", by_alias=True),
            "output": {"uri": spec.output.uri, "columns": columns},
        },
        "test",
    )
    assert input_rows.read_rows(plain, batch, columns, ReadCache(2**20), plan.schema).bad == {}


def test_only_values_that_do_not_fit_are_taken_out() -> None:
    table = pa.table({"at": pa.array([FAR, 1], pa.timestamp("ms")), "n": [1, 2]})
    found, why = without_misfits(table, ["at", "n"], "iceberg")
    assert found.column("at").cast(pa.int64()).to_pylist() == [None, 1]
    assert found.column("n").to_pylist() == [1, 2]
    assert list(why) == [0]
