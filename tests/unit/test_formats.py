"""Formats: every row asked for comes back, good or bad; parts come back as they were written."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats import part_rows, source_files
from nightshift.common.formats.input_rows import read_file_rows
from nightshift.common.formats.jsonl import read as reader
from nightshift.common.formats.parquet.read import part_metadata
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import InputSpec
from nightshift.common.states import RowErrorKind
from nightshift.common.storage import streams
from nightshift.producer.submit.planning import planner
from tests.support.parts import read_part

BIG = 64 * 2**20


def planned_schema(*uris, columns=None) -> pa.Schema:
    """The columns of a whole dataset, as a submit finds them."""
    spec_input = InputSpec.model_validate({"uri": [str(uri) for uri in uris]})
    return planner.plan(spec_input, 10, columns=columns).schema


def source_of(uri, kind, rows, first_row=0) -> SourceFile:
    info = storage.stat(str(uri))
    return SourceFile(info.uri, kind, info.size, info.fingerprint, rows, first_row)


def parquet_file(path, table, first_row=0, **options) -> SourceFile:
    pq.write_table(table, path, **options)
    return source_of(path, "parquet", table.num_rows, first_row)


def jsonl_batch(path, lines, ranges=None, first_row=0) -> Descriptor:
    """A descriptor over a file of these lines (bytes, or values to encode)."""
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(encoded))
    rows = sum(bool(line.strip()) for line in encoded)
    source = source_of(path, "jsonl", rows, first_row)
    asked = RowRanges.of(*(ranges or [(first_row, first_row + rows)]))
    return Descriptor(source, asked, Locator(first_row, 0, source.size))


def read(descriptor, columns=None, **options):
    """Reads, and holds the promise that no row is lost."""
    cache = options.pop("cache", ReadCache(BIG))
    rows = read_file_rows(descriptor, columns, cache, **{"schema": pa.schema([]), **options})
    assert sorted([*rows.row_index, *rows.bad]) == list(descriptor.rows)
    assert rows.row_index == sorted(rows.row_index)
    assert rows.table.num_rows == len(rows.row_index)
    assert rows.bad_table.num_rows == len(rows.bad)
    assert rows.bad_table.schema == rows.table.schema
    rows.table.validate(full=True)
    return rows


def messages(rows) -> dict[int, str]:
    return {index: why.message for index, why in rows.bad.items()}


# ---------------------------------------------------------------- Parquet


@pytest.fixture
def numbers(tmp_path) -> SourceFile:
    """100 rows in row groups of 30, the second file of a dataset whose first one has 1,000."""
    table = pa.table(
        {"id": range(100), "text": [f"t{at}" for at in range(100)], "unused": [0] * 100}
    )
    return parquet_file(tmp_path / "n.parquet", table, 1000, row_group_size=30)


def test_any_rows_come_out_of_any_row_groups(numbers):
    asked = RowRanges.of((1000, 1001), (1028, 1062), (1099, 1100))
    rows = read(Descriptor(numbers, asked), ["text", "id"])
    assert rows.row_index == list(asked)
    assert rows.table.column_names == ["text", "id"]
    assert rows.table.column("id").to_pylist() == [index - 1000 for index in asked]


def test_all_columns_and_no_columns_keep_the_number_of_rows(numbers):
    descriptor = Descriptor(numbers, RowRanges.of((1010, 1015)))
    assert read(descriptor).table.column_names == ["id", "text", "unused"]
    assert read(descriptor, []).table.to_pylist() == [{}] * 5


def test_a_row_group_is_decoded_once_for_all_its_batches(tmp_path, monkeypatch):
    decoded = []
    decode = pq.ParquetFile.read_row_group

    def noted(file, group, **options):
        decoded.append(group)
        return decode(file, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    source = parquet_file(
        tmp_path / "a.parquet", pa.table({"id": range(10_000)}), row_group_size=5000
    )
    cache = ReadCache(BIG)
    for start in range(0, 10_000, 256):
        stop = min(start + 256, 10_000)
        rows = read(Descriptor(source, RowRanges.of((start, stop))), ["id"], cache=cache)
        assert rows.table.column("id").to_pylist() == list(range(start, stop))
    assert decoded == [0, 1]


@pytest.mark.parametrize("limit_bytes", [0, 20_000, 60_000, 10**6])
def test_row_groups_beyond_the_cache_are_read_in_pieces_and_never_kept(tmp_path, limit_bytes):
    table = pa.table({"id": range(20_000), "s": ["same text"] * 20_000})
    source = parquet_file(tmp_path / "a.parquet", table, row_group_size=15_000)
    cache = ReadCache(limit_bytes)
    for ranges in [[(0, 3)], [(4090, 4100), (14_990, 15_010)], [(19_999, 20_000)], [(0, 20_000)]]:
        asked = RowRanges.of(*ranges)
        rows = read(Descriptor(source, asked), None, cache=cache)
        assert rows.table.column("id").to_pylist() == list(asked)
        assert cache.held_bytes <= limit_bytes


def test_what_other_writers_choose_becomes_plain_types(tmp_path):
    table = pa.table(
        {
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "l": pa.array(["x", None, "z"], pa.large_string()),
        }
    )
    source = parquet_file(tmp_path / "a.parquet", table)
    found = read(Descriptor(source, RowRanges.of((1, 3)))).table
    assert found.schema == pa.schema([("d", pa.string()), ("l", pa.string())])
    assert found.to_pylist() == [{"d": "b", "l": None}, {"d": "a", "l": "z"}]
    assert planned_schema(source.uri) == found.schema


def test_a_null_id_is_a_bad_record_and_its_other_columns_stay(tmp_path):
    table = pa.table({"id": ["a", None, "c"], "text": ["x", "y", "z"]})
    source = parquet_file(tmp_path / "a.parquet", table, 10)
    rows = read(Descriptor(source, RowRanges.of((10, 13))), ["text", "id"], id_column="id")
    assert rows.row_index == [10, 12]
    assert rows.bad[11].kind is RowErrorKind.BAD_RECORD
    assert messages(rows) == {11: f"{source.uri} row 2: id is null"}
    assert rows.bad_table.to_pylist() == [{"text": "y", "id": None}]


def test_text_that_is_not_utf8_is_one_bad_record(tmp_path):
    text = pa.array([b"fine", b"\xff\xfe", b"too"]).view(pa.string())
    source = parquet_file(tmp_path / "a.parquet", pa.table({"id": [1, 2, 3], "text": text}))
    rows = read(Descriptor(source, RowRanges.of((0, 3))))
    assert rows.table.to_pylist() == [{"id": 1, "text": "fine"}, {"id": 3, "text": "too"}]
    assert messages(rows) == {1: f"{source.uri} row 2: column 'text' is not valid UTF-8"}
    assert rows.bad_table.to_pylist() == [{"id": 2, "text": None}]


@pytest.mark.parametrize("kind", ["list", "struct"])
def test_nested_text_that_is_not_utf8_spoils_its_own_row_alone(tmp_path, kind):
    text = pa.array([b"fine", b"\xff\xfe", b"too"]).view(pa.string())
    if kind == "list":
        nested = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text)
    else:
        nested = pa.StructArray.from_arrays([text], ["word"])
    source = parquet_file(tmp_path / "a.parquet", pa.table({"id": [1, 2, 3], "nested": nested}))
    rows = read(Descriptor(source, RowRanges.of((0, 3))))
    assert rows.table.column("id").to_pylist() == [1, 3]
    assert list(rows.bad) == [1]


def test_a_damaged_row_group_makes_its_rows_bad_and_spares_the_others(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(60)}), path, row_group_size=30, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    with path.open("r+b") as handle:
        handle.seek(chunk.data_page_offset)
        handle.write(b"\xff" * 30)
    rows = read(Descriptor(source_of(path, "parquet", 60), RowRanges.of((20, 40))), ["id"])
    assert rows.table.column("id").to_pylist() == list(range(30, 40))
    assert {why.kind for why in rows.bad.values()} == {RowErrorKind.BAD_RECORD}
    assert "row group 0 is damaged" in rows.bad[20].message


def test_a_column_that_does_not_exist_is_bad_input(numbers):
    with pytest.raises(BadInput, match="no column 'txt'"):
        read(Descriptor(numbers, RowRanges.of((1000, 1001))), ["txt"])


# ---------------------------------------------------------------- the cache


def test_two_threads_load_one_entry_once():
    cache, loads, started, go = ReadCache(100), [], threading.Event(), threading.Event()

    def load() -> str:
        loads.append(1)
        started.set()
        assert go.wait(60)
        return "value"

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "k", load, len)
        assert started.wait(60)
        others = [pool.submit(cache.get, "k", load, len) for _ in range(3)]
        go.set()
        assert {future.result() for future in [first, *others]} == {"value"}
    assert loads == [1]


def test_the_least_used_entry_is_dropped_first():
    cache = ReadCache(10)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda: "1234", len)
    loaded = []
    for key in ("a", "c", "b"):
        cache.get(key, lambda key=key: loaded.append(key) or "1234", len)
    assert loaded == ["b"]
    assert cache.held_bytes == 8


def test_a_load_that_fails_is_tried_again_by_the_next():
    cache = ReadCache(10)

    def fail() -> str:
        raise StorageUnavailable("down")

    with pytest.raises(StorageUnavailable):
        cache.get("k", fail, len)
    with pytest.raises(TypeError):
        cache.get("k", lambda: 3, len)
    assert cache.get("k", lambda: "up", len) == "up"


# ---------------------------------------------------------------- changed files


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_that_changed_or_went_is_named(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        descriptor = Descriptor(parquet_file(path, pa.table({"id": [1, 2]})), RowRanges.of((0, 2)))
    else:
        descriptor = jsonl_batch(path, [{"id": 1}, {"id": 2}])
    cache = ReadCache(BIG)
    read(descriptor, cache=cache)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match=path.name):
        read(descriptor, cache=cache)
    path.unlink()
    with pytest.raises(SourceChanged, match="gone"):
        read(descriptor, cache=cache)


def test_a_planned_place_that_has_too_few_rows_is_a_changed_source(tmp_path, numbers):
    descriptor = jsonl_batch(tmp_path / "a.jsonl", [{"id": 1}], ranges=[(0, 2)])
    with pytest.raises(SourceChanged):
        read(descriptor)
    with pytest.raises(SourceChanged):
        read(Descriptor(numbers, RowRanges.of((1099, 1101))))


def test_an_outage_while_reading_is_no_damage(numbers, monkeypatch):
    def down(self, buffer):
        raise StorageUnavailable("down")

    monkeypatch.setattr(streams._Source, "readinto", down)
    with pytest.raises(StorageUnavailable):
        read(Descriptor(numbers, RowRanges.of((1000, 1001))))


# ---------------------------------------------------------------- JSONL


def test_blank_lines_are_no_rows_and_the_error_names_the_line(tmp_path):
    lines = [b"", b'{"a": 1}', b"  \t", b"\r", b'{"a": 2}\r', b"{broken", b'{"a": 4}']
    rows = read(jsonl_batch(tmp_path / "a.jsonl", lines, first_row=7))
    assert rows.row_index == [7, 8, 10]
    assert rows.table.to_pylist() == [{"a": 1}, {"a": 2}, {"a": 4}]
    assert rows.bad[9].kind is RowErrorKind.BAD_RECORD
    assert rows.bad[9].message.startswith(f"{tmp_path}/a.jsonl line 6: no valid JSON")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[1, 2]", "a JSON array, not an object"),
        (b"null", "a JSON null, not an object"),
        (b'"text"', "a JSON string, not an object"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 8"),
        (b'{"a": 1} x', "no valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": 1, "a": 2}', "the key 'a' is repeated in an object"),
        (b'{"m": [{"x": {"b" : 1, "\\u0062" : 1}}]}', "the key 'b' is repeated in an object"),
        (b'{"m": {"\\ud800": 1, "\\ud801": 2}}', "two keys of an object differ in half"),
        (b'{"s": "\\ud800", "a": ' + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        ('{"a": 1}'.encode("utf-16-le"), "no valid JSON"),
    ],
)
def test_a_line_that_is_no_object_is_one_bad_record(tmp_path, line, why):
    rows = read(jsonl_batch(tmp_path / "a.jsonl", [{"a": 1}, line, {"a": 3}]))
    assert rows.table.to_pylist() == [{"a": 1}, {"a": 3}]
    assert why in rows.bad[1].message
    assert "line 2" in rows.bad[1].message


def test_surrogates_nuls_and_large_texts_are_good_rows(tmp_path):
    lines = [
        b'{"a": "\\ud800 and \\udc00"}',
        b'{"a": "\\ud83d\\ude00"}',
        b'{"a": "nul \\u0000"}',
        {"a": "x" * 2**20},
        {"a": ""},
        b'{"b\\ud800": ["\\uDFFF"]}',
    ]
    rows = read(jsonl_batch(tmp_path / "a.jsonl", lines))
    assert rows.bad == {}
    assert rows.table.column("a").to_pylist() == [
        "\ufffd and \ufffd", "😀", "nul \x00", "x" * 2**20, "", None,
    ]  # fmt: skip
    assert rows.table.column("b\ufffd").to_pylist()[-1] == ["\ufffd"]


def test_the_line_is_named_by_its_row_where_counting_would_cost_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "COUNTED_BYTES", 5)
    descriptor = jsonl_batch(tmp_path / "a.jsonl", [{"a": 1}, b"x"])
    late = Descriptor(descriptor.source, RowRanges.of((1, 2)), Locator(1, 9, 1))
    assert "row 2, after byte 9" in read(late).bad[1].message


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1, None, 2], pa.int64(), None),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, None], pa.bool_(), None),
        ([1, "a", None], pa.string(), ["1", "a", None]),
        ([1, True], pa.string(), ["1", "true"]),
        ([2.5, True], pa.string(), ["2.5", "true"]),
        ([2**63, 1], pa.string(), [str(2**63), "1"]),
        ([2**60 + 1, 0.5], pa.string(), [str(2**60 + 1), "0.5"]),
        ([None, None], pa.string(), None),
        ([[], [1], None], pa.list_(pa.int64()), None),
        ([[], []], pa.list_(pa.string()), None),
        ([[1], ["a"]], pa.list_(pa.string()), [["1"], ["a"]]),
        ([{"x": 1}, {"y": "z"}], pa.struct([("x", pa.int64()), ("y", pa.string())]),
         [{"x": 1, "y": None}, {"x": None, "y": "z"}]),
        ([{"x": 1}, {"x": "s"}], pa.struct([("x", pa.string())]), [{"x": "1"}, {"x": "s"}]),
        ([{"x": 1}, [1]], pa.string(), ['{"x": 1}', "[1]"]),
        ([{}, {}], pa.string(), ["{}", "{}"]),
    ],
)  # fmt: skip
def test_a_columns_type_is_what_its_values_share(tmp_path, values, kind, found):
    lines = [{"a": value} for value in values]
    rows = read(jsonl_batch(tmp_path / "a.jsonl", lines))
    assert rows.bad == {}
    assert rows.table.schema.field("a").type == kind
    assert rows.table.column("a").to_pylist() == (values if found is None else found)
    path = tmp_path / "out.parquet"
    part_rows.write_part(str(path), rows.table, "parquet", {})
    assert pq.read_table(path).column("a").to_pylist() == rows.table.column("a").to_pylist()


def test_nan_and_infinity_are_numbers(tmp_path):
    rows = read(jsonl_batch(tmp_path / "a.jsonl", [b'{"a": NaN}', b'{"a": -Infinity}', {"a": 1}]))
    assert str(rows.table.column("a").to_pylist()) == "[nan, -inf, 1.0]"


def test_deep_nesting_is_kept_as_text(tmp_path):
    deep = "[" * 200 + "]" * 200
    rows = read(jsonl_batch(tmp_path / "a.jsonl", [f'{{"a": {deep}}}'.encode()]))
    assert rows.bad == {}
    assert rows.table.num_rows == 1


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int64(), "17", ...),
        (pa.int64(), 1.5, ...),
        (pa.int64(), "x", ...),
        (pa.int64(), True, ...),
        (pa.int64(), 2**63, ...),
        (pa.int64(), float("inf"), ...),
        (pa.int32(), 2**40, ...),
        (pa.float64(), 1, 1.0),
        (pa.float64(), 2**60 + 1, ...),
        (pa.float64(), False, ...),
        (pa.bool_(), 1, ...),
        (pa.bool_(), "true", ...),
        (pa.string(), 5, "5"),
        (pa.string(), {"x": [1]}, '{"x": [1]}'),
        (pa.list_(pa.int64()), "x", ...),
        (pa.list_(pa.int64()), [1, "x"], ...),
        (pa.list_(pa.string()), [1, None], ["1", None]),
        (pa.struct([("x", pa.int64())]), {"x": "5"}, ...),
        (pa.struct([("x", pa.int64())]), "x", ...),
        (pa.timestamp("us", "UTC"), "2024-05-01T10:00:00Z", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        (pa.date32(), "soon", ...),
    ],
)
def test_values_are_brought_to_the_planned_type_or_are_bad(tmp_path, kind, value, found):
    schema = pa.schema([("id", pa.int64()), ("a", kind)])
    lines = [{"id": 1}, {"id": 2, "a": value}, {"id": 3, "a": None}]
    rows = read(
        jsonl_batch(tmp_path / "a.jsonl", lines), ["a", "id"], schema=schema, id_column="id"
    )
    assert rows.table.schema == pa.schema([("a", kind), ("id", pa.int64())])
    if found is ...:
        assert rows.row_index == [0, 2]
        assert rows.bad[1].kind is RowErrorKind.BAD_TYPE
        assert "line 2: column 'a' holds " in rows.bad[1].message
        assert rows.bad_table.to_pylist() == [{"a": None, "id": 2}]
    else:
        assert rows.table.column("a").to_pylist() == [None, found, None]


def test_keys_that_come_late_in_a_nested_object_are_kept(tmp_path):
    schema = pa.schema([("meta", pa.struct([("title", pa.string())]))])
    lines = [{"meta": {"title": "a"}}, {"meta": {"title": "b", "year": 1999}}]
    rows = read(jsonl_batch(tmp_path / "a.jsonl", lines), ["meta"], schema=schema)
    assert rows.table.column("meta").to_pylist()[1] == {"title": "b", "year": 1999}


def test_without_columns_new_keys_are_read_too_and_missing_ones_are_null(tmp_path):
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = read(jsonl_batch(tmp_path / "a.jsonl", [{"a": 1}, {"a": 2, "c": 3}]), schema=schema)
    assert rows.table.to_pylist() == [
        {"a": 1, "b": None, "c": None},
        {"a": 2, "b": None, "c": 3},
    ]


def test_a_row_without_its_id_is_a_bad_record_with_its_line(tmp_path):
    lines = [{"id": 1, "a": "x"}, b"", {"id": None, "a": "y"}, {"a": "z"}]
    rows = read(jsonl_batch(tmp_path / "a.jsonl", lines), ["a", "id"], id_column="id")
    assert rows.row_index == [0]
    assert messages(rows) == {
        1: f"{tmp_path}/a.jsonl line 3: id is null",
        2: f"{tmp_path}/a.jsonl line 4: id is null",
    }


def test_no_columns_of_jsonl_still_find_the_bad_lines(tmp_path):
    rows = read(jsonl_batch(tmp_path / "a.jsonl", [{"a": 1}, b"x", {"a": 3}]), [])
    assert rows.table.to_pylist() == [{}, {}]
    assert list(rows.bad) == [1]


# ---------------------------------------------------------------- what a file is


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"),
        ("a.PQ", "parquet"),
        ("s3://b/a.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.NDJSON.ZST", "jsonl"),
        ("a.csv", "csv"),
        ("a.tsv.bz2", "csv"),
    ],
)
def test_the_suffix_tells_the_format(name, kind):
    assert source_files.file_format(name) == kind


@pytest.mark.parametrize("name", ["a.gz", "a.jsonl.xz", "a.txt", "noname", "a.json"])
def test_other_suffixes_are_refused_with_what_works(name):
    with pytest.raises(BadInput, match=r"\.parquet, \.pq, \.jsonl, \.ndjson"):
        source_files.file_format(name)
    assert source_files.file_format(name, "jsonl") == "jsonl"


def test_parquet_with_another_compression_around_it_is_refused():
    with pytest.raises(BadInput, match=r"a\.parquet\.gz: Parquet is compressed inside"):
        source_files.file_format("a.parquet.gz")


def test_content_that_is_not_what_the_suffix_says_is_bad_input(tmp_path):
    table = tmp_path / "table.jsonl"
    pq.write_table(pa.table({"a": [1]}), table)
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(b"\x1f\x8b\x08\x00")
    text = tmp_path / "text.parquet"
    text.write_bytes(b'{"a": 1}\n')
    secret = tmp_path / "secret.parquet"
    secret.write_bytes(b"PARE" + bytes(20) + b"PARE")
    for path, why in (
        (table, "Parquet"),
        (packed, "gzip"),
        (text, "not a Parquet file"),
        (secret, "encrypted Parquet is not supported"),
    ):
        with pytest.raises(BadInput, match=f"{path.name}.*{why}"):
            planned_schema(path)


def test_a_parquet_file_that_was_cut_off_is_bad_input(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    whole = path.read_bytes()
    for size in (0, 4, 11, 100, len(whole) - 9, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BadInput, match=r"a\.parquet"):
            planned_schema(path)
    path.write_bytes(b"PAR1" + b"\xff" * 100 + b"\x20\0\0\0PAR1")
    with pytest.raises(BadInput, match=r"a\.parquet.*damaged"):
        planned_schema(path)


def test_parquet_files_must_agree_on_the_used_columns(tmp_path):
    one, two, three = (str(tmp_path / f"{name}.parquet") for name in "abc")
    pq.write_table(pa.table({"id": [1], "x": [1], "y": pa.nulls(1)}), one)
    pq.write_table(pa.table({"id": [1], "x": ["s"], "y": ["s"]}), two)
    pq.write_table(pa.table({"x": [1], "y": ["s"]}), three)
    with pytest.raises(BadInput, match=r"'x' is string in .*b\.parquet but int64 in .*a\.parquet"):
        planned_schema(one, two)
    schema = planned_schema(one, two, columns=["id", "y"])
    assert schema.field("y").type == pa.string()
    with pytest.raises(BadInput, match=r"c\.parquet has no column 'id'"):
        planned_schema(one, three, columns=["id"])
    rows = read(
        Descriptor(source_of(one, "parquet", 1), RowRanges.of((0, 1))), ["y"], schema=schema
    )
    assert rows.table.schema == pa.schema([("y", pa.string())])


def test_a_doubled_parquet_column_is_bad_input_where_it_is_used(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table([[1], [2], [3]], names=["a", "b", "a"]), path)
    with pytest.raises(BadInput, match="'a' more than once"):
        planned_schema(path)
    assert "b" in planned_schema(path, columns=["b"]).names


def test_jsonl_files_are_merged(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 1, "c": null}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 2.5, "b": "x", "d": [{}]}\n')
    schema = planned_schema(tmp_path)
    assert schema == pa.schema(
        [
            ("a", pa.float64()),
            ("b", pa.string()),
            ("c", pa.string()),
            ("d", pa.list_(pa.string())),
        ]
    )


# ---------------------------------------------------------------- parts

PART = pa.table(
    {
        "row_index": pa.array([3, 4, 5], pa.int64()),
        "output": pa.array(["grün\n", None, "nul\x00"]),
        "when": pa.array([datetime(2024, 5, 1, 1, 2, 3, 4, tzinfo=UTC), None, None]),
        "ns": pa.array([1_700_000_000_123_456_789, None, 0], pa.timestamp("ns")),
        "ms": pa.array([1_700_000_000_005, None, 0], pa.timestamp("ms")),
        "zoned": pa.array([1_700_000_000_005, None, 0], pa.timestamp("ms", "Europe/Rome")),
        "clock": pa.array([time(1, 2, 3, 4), None, time(1, 2, 3)], pa.time64("us")),
        "raw": pa.array([b"\x00\xff", b"", None]),
        "price": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
        "tokens": pa.array([1, None, 3], pa.int32()),
        "score": pa.array([0.5, None, 1.0]),
        "ok": pa.array([True, False, None]),
        "tags": pa.array([["a"], [], None]),
        "error": pa.array([None, {"kind": "too_long", "message": "x"}, None]),
    }
)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_part_comes_back_as_it_was_written(tmp_path, kind):
    uri = f"{tmp_path}/new/part.{kind}"
    facts = part_rows.write_part(uri, PART, kind, {"job": "7"})
    assert facts == storage.Written(storage.stat(uri).size, storage.checksum(uri))
    assert read_part(uri, kind, PART.schema) == PART
    batches = list(part_rows.iter_part_batches(uri, kind, PART.schema, batch_rows=2))
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert pa.Table.from_batches(batches) == PART


def test_a_parquet_part_carries_its_provenance_and_schema(tmp_path):
    uri = f"{tmp_path}/part.parquet"
    part_rows.write_part(uri, PART, "parquet", {"job": "7", "model": "ü"})
    assert part_metadata(uri) == {"job": "7", "model": "ü"}
    assert pq.read_schema(uri).remove_metadata() == PART.schema
    assert pq.read_table(uri).schema.metadata[b"nightshift.job"] == b"7"
    assert read_part(uri, "parquet", PART.schema) == PART


@pytest.mark.parametrize(("rows", "compression"), [(1, "UNCOMPRESSED"), (1000, "ZSTD")])
def test_a_part_is_compressed_where_there_is_something_to_compress(tmp_path, rows, compression):
    uri = f"{tmp_path}/part.parquet"
    table = pa.table({"row_index": range(rows), "output": ["a few words of an answer"] * rows})
    part_rows.write_part(uri, table, "parquet", {})
    assert pq.read_metadata(uri).row_group(0).column(1).compression == compression
    assert read_part(uri, "parquet", table.schema) == table


def test_a_jsonl_part_is_plain_json(tmp_path):
    uri = f"{tmp_path}/part.jsonl"
    part_rows.write_part(
        uri, PART.append_column("n", [[float("nan"), 1.0, float("inf")]]), "jsonl", {}
    )
    lines = (tmp_path / "part.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    first = json.loads(lines[0])
    assert "grün" in lines[0]
    assert first["when"] == "2024-05-01T01:02:03.000004+00:00"
    assert first["ns"] == "2023-11-14T22:13:20.123456789"
    assert first["raw"] == "AP8="
    assert first["price"] == "1.50"
    assert first["error"] is None
    assert [json.loads(line)["n"] for line in lines] == [None, 1.0, None]
    assert isinstance(first["tokens"], int)


def test_a_line_of_a_jsonl_part_is_one_line_for_every_reader(tmp_path):
    said = "a\x85b\u2028c\u2029d"
    table = pa.table({said: [said, "grün"]})
    part_rows.write_part(f"{tmp_path}/part.jsonl", table, "jsonl", {})
    lines = (tmp_path / "part.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)[said] for line in lines] == [said, "grün"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_part_without_rows_is_a_part(tmp_path, kind):
    uri = f"{tmp_path}/part.{kind}"
    part_rows.write_part(uri, PART.slice(0, 0), kind, {})
    assert read_part(uri, kind, PART.schema) == PART.slice(0, 0)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_damaged_or_missing_part_is_told_apart(tmp_path, kind):
    uri = f"{tmp_path}/part.{kind}"
    with pytest.raises(FileNotFoundError):
        read_part(uri, kind, PART.schema)
    part_rows.write_part(uri, PART, kind, {})
    storage.write_bytes(uri, storage.read_range(uri, 0, storage.stat(uri).size - 6))
    with pytest.raises(BadInput, match="part"):
        read_part(uri, kind, PART.schema)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_stream_of_batches_is_one_file(tmp_path, kind):
    table = pa.table({"row_index": range(200_000)})
    uri = f"{tmp_path}/all.{kind}"
    rows = part_rows.write_batches(uri, table.to_batches(500), table.schema, kind, {})
    assert rows == 200_000
    assert read_part(uri, kind, table.schema) == table
    if kind == "parquet":
        assert pq.read_metadata(uri).num_row_groups == 4


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_no_batches_are_a_file_without_row_groups(tmp_path, kind):
    uri = f"{tmp_path}/all.{kind}"
    assert part_rows.write_batches(uri, [], PART.schema, kind, {}) == 0
    assert read_part(uri, kind, PART.schema) == PART.schema.empty_table()
    if kind == "parquet":
        assert pq.read_metadata(uri).num_row_groups == 0
