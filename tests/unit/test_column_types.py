"""Columns that are passed through come out as they went in, whatever their type."""

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common.errors import BadInput
from nightshift.common.formats import input_rows, output_schema, part_rows
from nightshift.common.formats.parquet.column_types import canonical_type
from nightshift.common.formats.parquet.read import part_metadata
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import to_rows
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.checks import check_jsonl
from nightshift.producer.submit.planning import planner
from nightshift.worker.engines.protocol import Answer
from nightshift.worker.rows.results import RowResults, part_table
from tests.support.parts import read_part

MOMENT = dt.datetime(2024, 2, 29, 12, 30, 1, 123456)
WORDS = pa.array(["a", "b", "a", "c", "d", "e"])

COLUMNS = {
    "string": pa.array(["a", None, ""]),
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "dictionary of large strings": pa.array(
        ["a", None, "b"], pa.large_string()
    ).dictionary_encode(),
    "large string": pa.array(["a", None, "ü"], pa.large_string()),
    "string view": pa.array(["a", None, "a long one that is not kept inline"], pa.string_view()),
    "binary": pa.array([b"\xff\0", None, b""]),
    "large binary": pa.array([b"\xff\0", None, b""], pa.large_binary()),
    "fixed binary": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "half": pa.array([1.5, None, -0.0], pa.float16()),
    "double": pa.array([float("inf"), None, 1e-300]),
    "bool": pa.array([True, None, False]),
    "decimal": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
    "wide decimal": pa.array([Decimal("1.50"), None, None], pa.decimal256(60, 2)),
    "date": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "milliseconds": pa.array([MOMENT.replace(microsecond=0), None, None], pa.timestamp("ms")),
    "zoned": pa.array([MOMENT, None, None], pa.timestamp("us", "America/New_York")),
    "map to nanoseconds": pa.array(
        [[("k", 1)], None, []], pa.map_(pa.string(), pa.timestamp("ns"))
    ),
    "nanoseconds": pa.array([1, None, 2**62], pa.timestamp("ns", "UTC")),
    "time": pa.array([1, None, 86_399_999], pa.time32("ms")),
    "time in nanoseconds": pa.array([1, None, 2], pa.time64("ns")),
    "duration": pa.array([1, None, -5], pa.duration("s")),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int16())),
    "large list": pa.array([["x"], None, []], pa.large_list(pa.large_string())),
    "list of dictionaries": pa.ListArray.from_arrays([0, 2, 2, 6], WORDS.dictionary_encode()),
    "vectors": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
    "vectors of dictionaries": pa.FixedSizeListArray.from_arrays(WORDS.dictionary_encode(), 2),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "map of large strings": pa.array(
        [[("k", "v")], None, []], pa.map_(pa.large_string(), pa.large_string())
    ),
    "struct": pa.array(
        [{"x": 1, "y": [{"z": "q"}]}, None, {"x": None, "y": None}],
        pa.struct([("x", pa.int8()), ("y", pa.large_list(pa.struct([("z", pa.large_string())])))]),
    ),
    "nothing": pa.nulls(3),
    "uuid": pa.array([uuid.UUID(int=7).bytes, None, uuid.UUID(int=2**127).bytes], pa.uuid()),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "1"])),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2]),
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
    ),
}


def spec_of(folder: Path, columns: list[str], **output):
    return parse_spec(
        {
            "name": "test",
            "input": {"uri": f"{folder}/in"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "output": {
                "uri": f"{folder}/out",
                "columns": columns,
                "schema": {"loud": "string"},
                **output,
            },
        },
        "test",
    )


def passed_through(folder: Path, columns: list[str], batch_rows: int = 2) -> pa.Table:
    """The files of `in` through reading, results, parts and collect, as one Parquet file."""
    spec = spec_of(folder, columns)
    plan = planner.plan(spec.input, batch_rows, columns=columns, output_uri=spec.output.uri)
    # As it comes back from the ledger.
    inputs = output_schema.deserialize(output_schema.serialize(plan.schema))
    schema = output_schema.output_schema(spec, inputs)
    assert schema is not None
    schema = output_schema.deserialize(output_schema.serialize(schema))
    whole = []
    for number, batch in enumerate(plan.batches()):
        rows = input_rows.read_rows(spec, batch, columns, ReadCache(2**20), inputs)
        results = RowResults(rows.row_index, rows.table.select(columns))
        results.outcomes = {index: Answer({"loud": "X"}) for index in rows.row_index}
        assert len(to_rows(rows.table)) == len(rows.row_index)
        part = part_table(spec, schema, results)
        assert part.errors == []
        uri = f"{folder}/out/part-{number}.parquet"
        part_rows.write_part(uri, part.table, "parquet", {"job": "1"})
        assert part_metadata(uri) == {"job": "1"}
        again = read_part(uri, "parquet", schema)
        assert again.equals(part.table)
        whole += again.to_batches()
    target = f"{folder}/all.parquet"
    part_rows.write_batches(target, whole, schema, "parquet", {})
    return pq.read_table(target)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_out_as_it_went_in(tmp_path, name):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"c": COLUMNS[name], "text": ["x", "y", "z"]}), path)
    wanted = pq.read_table(path).column("c")
    found = passed_through(tmp_path, ["c"]).column("c")
    assert found.type == wanted.type
    assert found.equals(wanted) or found.to_pylist() == wanted.to_pylist()


def test_small_dictionaries_that_differ_by_row_group_and_file_are_one(tmp_path):
    """More values than an index of 8 bits has."""
    (tmp_path / "in").mkdir()
    kind = pa.dictionary(pa.int8(), pa.string())
    for file in range(3):
        texts = pa.array([f"{file}-{at}" for at in range(300)])
        table = pa.table(
            {"c": pa.chunked_array([texts[at : at + 100].cast(kind) for at in (0, 100, 200)])}
        )
        with pq.ParquetWriter(tmp_path / "in" / f"{file}.parquet", table.schema) as writer:
            for batch in table.to_batches():
                writer.write_batch(batch)
    found = passed_through(tmp_path, ["c"], batch_rows=250).column("c")
    assert found.type == pa.dictionary(pa.int32(), pa.string())
    assert found.to_pylist() == [f"{file}-{at}" for file in range(3) for at in range(300)]


def test_files_that_write_the_same_differently_come_out_plain(tmp_path):
    (tmp_path / "in").mkdir()
    for number, array in enumerate(
        [WORDS.dictionary_encode(), WORDS.cast(pa.large_string()), WORDS, pa.nulls(6)]
    ):
        pq.write_table(pa.table({"c": array}), tmp_path / "in" / f"{number}.parquet")
    found = passed_through(tmp_path, ["c"]).column("c")
    assert found.type == pa.string()
    assert found.to_pylist() == WORDS.to_pylist() * 3 + [None] * 6
    pq.write_table(pa.table({"c": [1]}), tmp_path / "in" / "9.parquet")
    with pytest.raises(BadInput, match=r"'c' is int64 in .*9\.parquet but string in"):
        passed_through(tmp_path, ["c"])


def test_python_sees_values_and_not_layouts(tmp_path):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    shown = {"dictionary": "a", "uuid": uuid.UUID(int=7), "vectors": [1.0, 2.0], "half": 1.5}
    shown |= {"map": [("k", 1)], "json": "{}", "duration": dt.timedelta(seconds=1)}
    pq.write_table(pa.table({name: COLUMNS[name] for name in shown}), path)
    spec = spec_of(tmp_path, [])
    plan = planner.plan(spec.input, 10)
    rows = input_rows.read_rows(spec, next(plan.batches()), None, ReadCache(2**20), plan.schema)
    assert to_rows(rows.table)[0] == shown


NOT_IN_JSON = {
    "fixed binary",
    "uint64",
    "time",
    "time in nanoseconds",
    "duration",
    "vectors",
    "vectors of dictionaries",
    "map",
    "map to nanoseconds",
    "map of large strings",
    "uuid",
    "tensor",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_json_lines_bring_back_what_they_take(tmp_path, name):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"c": COLUMNS[name]}), path)
    spec = spec_of(tmp_path, ["c"], format="jsonl")
    plan = planner.plan(spec.input, 10)
    rows = input_rows.read_rows(spec, next(plan.batches()), ["c"], ReadCache(2**20), plan.schema)
    table = rows.table.cast(plan.schema)
    if name in NOT_IN_JSON:
        with pytest.raises(BadInput, match="which JSON lines cannot bring back"):
            check_jsonl(spec, plan.schema)
        return
    check_jsonl(spec, plan.schema)
    uri = f"{tmp_path}/part.jsonl"
    part_rows.write_part(uri, table, "jsonl", {})
    found = read_part(uri, "jsonl", plan.schema)
    assert found.schema.field("c").type == table.schema.field("c").type
    if name != "double":  # infinity becomes null
        assert to_rows(found) == to_rows(table)


def value_of(kind: pa.DataType, number: int):
    """Some value of a plain type."""
    types = pa.types
    if types.is_struct(kind):
        return {child.name: value_of(child.type, number) for child in kind}
    if types.is_map(kind):
        return [("k", value_of(kind.item_type, number)), ("l", None)]
    if types.is_list(kind):
        return [value_of(kind.value_type, number), None][: number + 1]
    if types.is_decimal(kind):
        return Decimal(number) / 8
    return (
        pa.scalar(number)
        .cast(pa.string() if types.is_binary(kind) else _counted(kind))
        .cast(kind)
        .as_py()
    )


def _counted(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind == pa.date32() else kind


NAMES = st.text("abc", min_size=1, max_size=3)
KINDS = st.recursive(
    st.sampled_from(
        [
            pa.string(), pa.large_string(), pa.int64(), pa.uint8(), pa.float32(), pa.bool_(),
            pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.duration("ms"),
            pa.decimal128(9, 3), pa.dictionary(pa.int32(), pa.string()), pa.time64("us"),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(lambda f: pa.struct(list(f.items()))),
    ),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=KINDS)
def test_any_nesting_comes_out_as_it_went_in(tmp_path_factory, kind):
    folder = tmp_path_factory.mktemp("any")
    (folder / "in").mkdir()
    plain = canonical_type(kind)
    column = pa.array([value_of(plain, 0), None, value_of(plain, 1)], plain).cast(kind)
    pq.write_table(pa.table({"c": column}), folder / "in" / "a.parquet")
    wanted = pq.read_table(folder / "in" / "a.parquet").column("c")
    found = passed_through(folder, ["c"]).column("c")
    assert found.type == wanted.type
    assert found.to_pylist() == wanted.to_pylist()
