"""Inputs that can only be read from their front: what their copies hold, and what is refused."""

import bz2
import gzip
import json
import random
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common import storage
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats import convert, input_copies, input_rows, streams
from nightshift.common.formats.csv import records
from nightshift.common.formats.csv.types import WHY
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.planning import planner

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
}


def spec_of(folder: Path, uri: str | None = None, **inputs):
    return parse_spec(
        {
            "name": "test",
            "input": {"uri": uri or f"{folder}/in", **inputs},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "output": {"uri": f"{folder}/out"},
        },
        "test",
    )


def put(folder: Path, **files: bytes) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / "in" / name).write_bytes(content)


def plan(spec, batch_rows=100):
    return planner.plan(
        spec.input, batch_rows, columns=spec.read_columns, output_uri=spec.output.uri
    )


def rows_of(spec, planned=None):
    """Every row of the dataset, batch by batch as workers read them; bad ones are messages."""
    planned = planned or plan(spec)
    found = {}
    for batch in planned.batches():
        rows = input_rows.read_rows(
            spec, batch, spec.read_columns, ReadCache(2**20), planned.schema
        )
        assert rows.table.schema.names == rows.bad_table.schema.names
        found |= dict(zip(rows.row_index, rows.table.to_pylist(), strict=True))
        found |= {index: why.message for index, why in rows.bad.items()}
    assert sorted(found) == list(range(planned.rows_total))
    return [found[index] for index in sorted(found)]


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out" / "_input").iterdir())


# ---------------------------------------------------------------- compressed lines


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_compressed_lines_are_rows_and_a_bad_one_names_the_file_that_was_given(tmp_path, suffix):
    lines = [json.dumps({"id": at}) for at in range(3000)]
    lines[2500] = "{broken"
    lines.insert(7, "")
    put(tmp_path, **{f"a.jsonl{suffix}": PACK[suffix]("\n".join(lines).encode())})
    rows = rows_of(spec_of(tmp_path))
    assert len(rows) == 3000
    assert rows[2499] == {"id": 2499}
    assert rows[2500].startswith(f"{tmp_path}/in/a.jsonl{suffix} line 2502: no valid JSON")


def test_a_bad_line_among_the_first_is_refused_by_the_name_of_the_file_that_was_given(tmp_path):
    put(tmp_path, **{"a.jsonl.gz": gzip.compress(b'{"id": 1}\nbroken\n')})
    with pytest.raises(BadInput, match=r"in/a\.jsonl\.gz line 2: no valid JSON"):
        plan(spec_of(tmp_path))


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path):
    members = b"".join(gzip.compress(b'{"id": %d}\n' % at) for at in range(5))
    put(tmp_path, **{"a.jsonl.gz": members})
    assert rows_of(spec_of(tmp_path)) == [{"id": at} for at in range(5)]


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_what_is_cut_off_or_damaged_is_refused_and_leaves_nothing(tmp_path, suffix, kind):
    noise = random.Random(1)
    text = b"id\n" + b"".join(b"%d\n" % noise.getrandbits(60) for _ in range(9000))
    if kind == "jsonl":
        text = b"".join(b'{"id": %s}\n' % line for line in text.split()[1:])
    whole = PACK[suffix](text)
    middle = len(whole) // 2
    for broken, why in (
        (whole[:middle], "is cut off"),
        (whole[:-3], "is cut off"),
        (whole[:4], "is cut off"),
        (whole[:middle] + bytes(200) + whole[middle + 200 :], "is damaged"),
        (b"no such thing at all, just text", "is no "),
        (whole + b"something else", "has something at byte .*, behind its last "),
        (whole + whole[:-3], "is cut off"),
    ):
        put(tmp_path, **{f"a.{kind}{suffix}": broken})
        with pytest.raises(BadInput, match=rf"in/a\.{kind}\{suffix} {why}"):
            plan(spec_of(tmp_path))
        assert copies(tmp_path) == []


LINES = b'{"id": 0}\n{"id": 1}\n'
SKIPPED = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
TEXTS = {"jsonl": (b'{"id": 0}\n', b'{"id": 1}\n'), "csv": (b"id\n0\n", b"1\n")}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("suffix", "layout"),
    [
        (".gz", lambda pack, one, two: pack(one + two) + bytes(1_500_000)),
        (".gz", lambda pack, one, two: pack(one) + bytes(512) + pack(two) + bytes(1)),
        (".gz", lambda pack, one, two: pack(b"") + pack(one) + pack(b"") + pack(two)),
        (".bz2", lambda pack, one, two: pack(one + two) + bytes(1_500_000)),
        (".bz2", lambda pack, one, two: pack(one) + pack(b"") + pack(two)),
        (".zst", lambda pack, one, two: pack(one) + pack(two)),
        (".zst", lambda pack, one, two: SKIPPED + pack(one) + SKIPPED + pack(two) + SKIPPED),
        (".zst", lambda pack, one, two: pack(b"") + pack(one) + pack(b"") + pack(two)),
    ],
)
def test_every_member_of_a_sound_file_is_read_and_padding_is_none(tmp_path, suffix, layout, kind):
    put(tmp_path, **{f"a.{kind}{suffix}": layout(PACK[suffix], *TEXTS[kind])})
    assert rows_of(spec_of(tmp_path)) == [{"id": 0}, {"id": 1}]


def with_window(content: bytes, byte: int) -> bytes:
    """A frame of zstd of one raw block, with this byte for its window."""
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x00" + bytes([byte]) + block + content


@pytest.mark.parametrize("before", [b"", PACK[".zst"](b'{"id": 7}\n') + SKIPPED])
def test_a_window_that_is_too_large_to_hold_is_said_with_the_way_out(tmp_path, before):
    put(tmp_path, **{"a.jsonl.zst": before + with_window(LINES, (31 - 10) << 3)})
    with pytest.raises(BadInput, match=r"a\.jsonl\.zst needs a window of 2,048 MiB .* --long=31 "):
        plan(spec_of(tmp_path))
    put(tmp_path, **{"a.jsonl.zst": before + with_window(LINES, ((27 - 10) << 3) + 1)})
    with pytest.raises(BadInput, match=r"needs a window of 144 MiB .* 128 MiB are .* --long=28 "):
        plan(spec_of(tmp_path))
    put(tmp_path, **{"a.jsonl.zst": before + with_window(LINES, (27 - 10) << 3)})
    assert [row["id"] for row in rows_of(spec_of(tmp_path))] == [7, 0, 1][0 if before else 1 :]
    assert len(copies(tmp_path)) == 1


@pytest.mark.parametrize("name", ["b.jsonl.gz", "b.csv", "b.csv.zst", "b.jsonl.bz2"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_an_empty_file_has_no_rows(tmp_path, name, is_packed):
    empty = PACK[Path(name).suffix if Path(name).suffix in PACK else ""](b"")
    put(tmp_path, **{"a.csv": b"id\n1\n", name: empty if is_packed else b""})
    assert rows_of(spec_of(tmp_path)) == [{"id": 1}]
    (tmp_path / "in" / "a.csv").unlink()
    with pytest.raises(BadInput, match="the input has no rows"):
        plan(spec_of(tmp_path))


def test_a_csv_header_that_begins_like_encrypted_parquet_is_a_header(tmp_path):
    put(tmp_path, **{"a.csv": b"PARENT,CHILD\na,b\n"})
    assert rows_of(spec_of(tmp_path)) == [{"PARENT": "a", "CHILD": "b"}]


def test_plain_files_that_are_compressed_inside_are_named(tmp_path):
    put(tmp_path, **{"a.csv": gzip.compress(b"id\n1\n")})
    with pytest.raises(BadInput, match=r"a\.csv is not a CSV file but a gzip file"):
        plan(spec_of(tmp_path))


# ---------------------------------------------------------------- CSV


def test_records_with_quotes_line_ends_nulls_and_a_byte_order_mark(tmp_path):
    put(
        tmp_path,
        **{
            "a.csv": b'\xef\xbb\xbfid,text\r\n1,"two\nlines, ""quoted"""\r\n2,\r\n\r\n3,""\r\n4,caf\xc3\xa9'
        },
    )
    assert rows_of(spec_of(tmp_path)) == [
        {"id": 1, "text": 'two\nlines, "quoted"'},
        {"id": 2, "text": None},
        {"id": 3, "text": ""},
        {"id": 4, "text": "café"},
    ]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", ""], "int64"),
        (["007", "8"], "string"),
        (["+7", "8"], "string"),
        (["1 ", "8"], "string"),
        (["9223372036854775807"], "int64"),
        (["9223372036854775808"], "string"),
        (["1", "2.5"], "double"),
        (["0.30000000000000004", "1e-7", "-0.0001234567890123456"], "double"),
        (["0.123456789012345678901"], "string"),
        (["9007199254740993", "0.5"], "string"),
        (["1e999"], "string"),
        (["1.5", "nan"], "string"),
        (["01.5"], "string"),
        (["true", "FALSE", ""], "bool"),
        (["true", "1"], "string"),
        (["2024-01-01"], "string"),
        (["0x10"], "string"),
        (["", ""], "string"),
    ],
)
def test_a_column_has_the_type_that_all_its_texts_come_back_from(tmp_path, texts, kind):
    lines = ["id,value", *(f"{at},{text}" for at, text in enumerate(texts))]
    put(tmp_path, **{"a.csv": "\n".join(lines).encode()})
    spec = spec_of(tmp_path)
    planned = plan(spec)
    assert planned.schema.field("value").type == pa.type_for_alias(kind)
    values = [row["value"] for row in rows_of(spec, planned)]
    assert [value is None for value in values] == [text == "" for text in texts]
    if kind == "string":
        assert values == [text or None for text in texts]
    elif kind == "int64":
        assert [str(value) for value in values if value is not None] == [t for t in texts if t]
    elif kind == "double":
        assert values == [float(text) for text in texts]


def test_a_type_is_that_of_all_files_and_rows_however_late_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    many = b"".join(b"%d,%d\n" % (at, at) for at in range(3000))
    put(
        tmp_path,
        **{
            "a.csv": b"id,code\n" + many,
            "b.csv.gz": gzip.compress(b"id,code\n" + many + b"9,007\n"),
            "c.tsv": b"id\tcode\n2.5\t8\n",
        },
    )
    rows = rows_of(spec_of(tmp_path))
    assert len(rows) == 6002
    assert rows[17] == {"id": 17.0, "code": "17"}
    assert rows[6000] == {"id": 9.0, "code": "007"}
    assert rows[6001] == {"id": 2.5, "code": "8"}


def test_where_parquet_says_the_type_a_text_that_does_not_fit_is_a_bad_row(tmp_path):
    put(tmp_path, **{"a.csv": b"id,n\nx,1\ny,two\n"})
    pq.write_table(
        pa.table({"id": ["p"], "n": pa.array([5], pa.int64())}), tmp_path / "in/b.parquet"
    )
    good, bad, other = rows_of(spec_of(tmp_path))
    assert (good, other) == ({"id": "x", "n": 1}, {"id": "p", "n": 5})
    assert (
        bad
        == f"{tmp_path}/in/a.csv row 2: column 'n' holds \"two\", which does not fit its type int64"
    )


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "7", 7),
        (pa.int64(), "007", ...),
        (pa.int64(), "0x10", ...),
        (pa.int64(), "7.0", ...),
        (pa.int8(), "300", ...),
        (pa.float64(), "1.50", 1.5),
        (pa.float64(), "9007199254740993", ...),
        (pa.float64(), "0.123456789012345678901", ...),
        (pa.float64(), "1e400", ...),
        (pa.float32(), "1e300", ...),
        (pa.float32(), "0.5", 0.5),
        (pa.bool_(), "TRUE", True),
        (pa.bool_(), "1", ...),
        (pa.date32(), "2026-07-14", date(2026, 7, 14)),
        (pa.date32(), "soon", ...),
        (pa.decimal128(5, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(5, 2), "1.555", ...),
        (pa.list_(pa.string()), "spam", ...),
    ],
)
def test_a_text_is_not_changed_to_fit_the_type_of_a_parquet_file(tmp_path, kind, text, value):
    put(tmp_path, **{"a.csv": f"id,n\nw,\nx,{text}\n".encode()})
    pq.write_table(pa.table({"id": ["p"], "n": pa.nulls(1, kind)}), tmp_path / "in/b.parquet")
    empty, found, _ = rows_of(spec_of(tmp_path))
    assert empty == {"id": "w", "n": None}
    if value is ...:
        assert found.startswith(f"{tmp_path}/in/a.csv row 2: column 'n' holds \"{text}\", which")
    else:
        assert found == {"id": "x", "n": value}


def test_a_record_of_another_width_is_a_bad_row_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 500)
    lines = [f"{at},v" for at in range(5000)]
    strange = {1200, 1201, 1202, 3333, 4999}
    for at in strange:
        lines[at] = f"{at},v,w" if at % 2 else "lonely"
    put(tmp_path, **{"a.csv": "\n".join(["id,value", *lines]).encode()})
    rows = rows_of(spec_of(tmp_path))
    for at, row in enumerate(rows):
        if at in strange:
            fields = 3 if at % 2 else 1
            said = f"{tmp_path}/in/a.csv row {at + 1}: {fields} fields in place of 2"
            assert row == said
        else:
            assert row == {"id": at, "value": "v"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            b"id,value\n1,2\n3\n",
            r"a\.csv row 2: 1 fields in place of 2: correct it, or set input.d",
        ),
        (b"id,id\n1,2\n", r"a\.csv: its header names the column 'id' more than once"),
        (b"id,\n1,2\n", r"a\.csv: column 2 of its header has no name"),
        (b"id,\0why\n1,2\n", r"a\.csv: its header names a column '.x00why', which is reserved"),
        ("id,näme\n1,2\n".encode("latin-1"), r"a\.csv line 1: not UTF-8: .*iconv"),
        (
            "id,name\n1,Jürgen\n".encode("latin-1"),
            r"a\.csv line 2: not UTF-8: .*iconv -f CP1252 -t UTF-8 \S*/a\.csv > a-utf8\.csv`",
        ),
        ("id,name\n1,x\n".encode("utf-16"), r"a\.csv"),
        (b'id,name\n1,"' + b"x" * 5000 + b"\n", r"a\.csv is no CSV in UTF-8 with records of at "),
    ],
)
def test_what_is_no_csv_is_refused_with_one_sentence(tmp_path, monkeypatch, content, why):
    monkeypatch.setattr(records, "BLOCK_BYTES", 2000)
    put(tmp_path, **{"a.csv": content})
    with pytest.raises(BadInput, match=why) as caught:
        plan(spec_of(tmp_path))
    assert "\n" not in str(caught.value)
    assert copies(tmp_path) == []


@pytest.mark.parametrize("text", ['"oops', 'oops,"', '"'])
def test_a_quote_that_nothing_closes_is_refused_and_swallows_no_rows(tmp_path, monkeypatch, text):
    monkeypatch.setattr(records, "BLOCK_BYTES", 2**17)
    lines = [f'{at},"say ""{at}""\n5"" disk"' for at in range(5000)]
    lines[1999] = f"1999,{text}"
    put(tmp_path, **{"a.csv": "\n".join(["id,text", *lines[:1999], *["7,x"] * 9]).encode()})
    assert len(rows_of(spec_of(tmp_path))) == 2008
    put(tmp_path, **{"a.csv": "\n".join(["id,text", *lines[:2000], *["7,x"] * 3000]).encode()})
    for limit in (None, 2000, 4000):
        with pytest.raises(BadInput, match=r"a\.csv row 2000: a quote opens a field that is open"):
            plan(spec_of(tmp_path, limit=limit))
    assert len(rows_of(spec_of(tmp_path, limit=1999))) == 1999
    monkeypatch.setattr(records, "BLOCK_BYTES", 5000)
    with pytest.raises(BadInput, match=r"a\.csv is no CSV .* maybe of an open quote"):
        plan(spec_of(tmp_path))


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b'id,x\n1,"a"', 1),
        (b'id,x\n1,"a""b"', 1),
        (b'id,x\n1,5" disk\n2,a"', 2),
        (b'id,x\n1,"a" b"\n2,c', 2),
        (b'\xef\xbb\xbf"id",x\n1,"a\n"\r\n', 1),
        (b'id,x\n1,"a""', None),
        (b'id,x\n1,"', None),
        (b'id,x\n1,5"\n2,"5\n', None),
        (b'id,x\n"1,2', None),
        (b'id,"x\n1,2\n', None),
    ],
)
def test_which_quotes_are_open_at_the_end(tmp_path, content, rows):
    put(tmp_path, **{"a.csv": content})
    if rows is not None:
        assert plan(spec_of(tmp_path)).rows_total == rows
        return
    with pytest.raises(
        BadInput,
        match=r"a quote opens a field that is open at the end|opens a quote that nothing closes",
    ):
        plan(spec_of(tmp_path))


def test_records_of_another_width_end_the_reading_early(tmp_path, monkeypatch):
    """No row of it is right, so Arrow hands out nothing before the end."""
    many = b"".join(b"%d;x,y,z\n" % at for at in range(20_000))
    put(tmp_path, **{"a.csv": b"id;x\n" + many})
    seen = 0
    read = records._WithLastRecord.read

    def counted(stream, size):
        nonlocal seen
        data = read(stream, size)
        seen += len(data)
        return data

    monkeypatch.setattr(records._WithLastRecord, "read", counted)
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    with pytest.raises(
        BadInput, match=r"row 1: 3 fields in place of 1: correct it, or write input\.d"
    ):
        plan(spec_of(tmp_path))
    assert seen < 50_000


def test_records_of_another_width_without_a_right_one_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(records, "MOST_WRONG", 300)
    good, strange = b"1,2\n" * 1500, b"1\n"
    put(tmp_path, **{"a.csv": b"id,x\n" + good + strange * 300})
    assert len(rows_of(spec_of(tmp_path))) == 1800
    put(tmp_path, **{"a.csv": b"id,x\n" + good + strange * 9000})
    with pytest.raises(BadInput, match=r"row 1501: 1 fields in place of 2, and so on in more than"):
        plan(spec_of(tmp_path))


@pytest.mark.parametrize("header", [b"id,x", b"id,x\n", b"\xef\xbb\xbfid,x", b'id,"x"'])
def test_a_header_alone_is_no_rows_with_or_without_its_line_end(tmp_path, header):
    put(tmp_path, **{"a.csv": b"id,x\n1,2\n", "b.csv": header})
    assert rows_of(spec_of(tmp_path)) == [{"id": 1, "x": 2}]
    (tmp_path / "in" / "a.csv").unlink()
    with pytest.raises(BadInput, match="the input has no rows"):
        plan(spec_of(tmp_path))


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [
        ("a.tsv", "\t"),
        ("A.TSV.gz", "\t"),
        ("a.csv.tsv.bz2", "\t"),
        ("my.tsv.backup.csv", ","),
        ("my.tsv.csv.gz", ","),
        ("x.tsv/a.csv", ","),
    ],
)
def test_the_suffix_alone_says_that_fields_are_separated_by_tabs(name, delimiter):
    assert records.delimiter_of(f"s3://bucket/{name}", None) == delimiter


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1.10", "1.1"], "string"),
        (["12E4", "1200e2"], "string"),
        (["-0", "0"], "string"),
        (["true", "TRUE"], "string"),
        (["1", "-20"], "int64"),
    ],
)
def test_ids_are_whole_numbers_or_texts(tmp_path, texts, kind):
    put(tmp_path, **{"a.csv": "\n".join(["key,x", *(f"{text},1.50" for text in texts)]).encode()})
    spec = spec_of(tmp_path, id="key")
    planned = plan(spec)
    assert planned.schema.field("key").type == pa.type_for_alias(kind)
    rows = rows_of(spec, planned)
    assert [str(row["key"]) for row in rows] == texts
    assert {row["x"] for row in rows} == {1.5}


def test_files_with_other_columns_are_refused_where_these_are_used(tmp_path):
    put(tmp_path, **{"a.csv": b"id,x\n1,2\n", "b.csv": b"id,y\n1,2\n"})
    with pytest.raises(BadInput, match="which other input files have"):
        plan(spec_of(tmp_path))
    assert rows_of(spec_of(tmp_path, id="id", columns=["id"])) == [{"id": 1}, {"id": 1}]


def test_the_delimiter_may_be_said(tmp_path):
    put(tmp_path, **{"a.csv": b'id;text\n1;"a;b"\n2;c,d\n'})
    rows = rows_of(spec_of(tmp_path, delimiter=";"))
    assert [row["text"] for row in rows] == ["a;b", "c,d"]
    for wrong in ("", ";;", '"', "\n", "é"):
        with pytest.raises(BadInput, match=r"input\.delimiter"):
            spec_of(tmp_path, delimiter=wrong)


FIELD = st.one_of(
    st.none(),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["true", "false", "007", "-0", "1e5"]),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.integers(2, 3).flatmap(lambda n: st.lists(st.tuples(*[FIELD] * n), min_size=1)))
def test_whatever_the_texts_are_each_comes_back(tmp_path_factory, columns):
    """A typed value says the same number as its text, and a string is the text itself."""
    folder = tmp_path_factory.mktemp("any")
    names = [f"c{at}" for at in range(len(columns[0]))]
    quoted = [
        ",".join("" if text is None else '"' + text.replace('"', '""') + '"' for text in record)
        for record in columns
    ]
    put(folder, **{"a.csv": "\n".join([",".join(names), *quoted, ""]).encode()})
    rows = rows_of(spec_of(folder))
    assert len(rows) == len(columns)
    for record, row in zip(columns, rows, strict=True):
        for text, value in zip(record, row.values(), strict=True):
            match value:
                case bool():
                    assert text.lower() == str(value).lower()
                case int():
                    assert text == str(value)
                case float():
                    assert float(text) == value
                case _:
                    assert text == value


# ---------------------------------------------------------------- copies


def test_a_second_plan_makes_no_copy_again_and_other_options_make_another(tmp_path, monkeypatch):
    put(tmp_path, **{"a.csv": b"id,x\n1,2\n", "b.jsonl.gz": gzip.compress(b'{"id": 1, "x": 2}\n')})
    plan(spec_of(tmp_path))
    before = {name: storage.stat(f"{tmp_path}/out/_input/{name}") for name in copies(tmp_path)}
    monkeypatch.setattr(convert.Converter, "_make", None)
    plan(spec_of(tmp_path))
    assert {n: storage.stat(f"{tmp_path}/out/_input/{n}") for n in copies(tmp_path)} == before
    monkeypatch.undo()
    with pytest.raises(BadInput, match="no column"):
        plan(spec_of(tmp_path, delimiter=";"))
    assert len(copies(tmp_path)) == 3


@pytest.mark.parametrize("limit", [1, 10, 1500, 2999, 3000, 5000])
def test_a_limit_ends_the_copying_early(tmp_path, limit, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1000)
    put(
        tmp_path,
        **{
            "a.csv.gz": gzip.compress(b"id\n" + b"".join(b"%d\n" % at for at in range(1500))),
            "b.jsonl.gz": gzip.compress(b"".join(b'{"id":%d}\n\n' % at for at in range(1500))),
            "c.jsonl.gz": b"not opened",
        },
    )
    if limit > 3000:
        (tmp_path / "in" / "c.jsonl.gz").unlink()
    spec = spec_of(tmp_path, limit=limit)
    rows = rows_of(spec)
    assert rows == [{"id": at % 1500} for at in range(min(limit, 3000))]
    sizes = [path.stat().st_size for path in (tmp_path / "out" / "_input").glob("*.jsonl")]
    assert sum(sizes) <= max(0, limit - 1500) * 13


@pytest.mark.parametrize("name", ["a.csv", "b.jsonl.gz"])
def test_a_copy_under_a_limit_is_found_again_and_made_again_as_it_was(tmp_path, name, monkeypatch):
    """A worker that reads it meanwhile must not see another file."""
    put(
        tmp_path,
        **{
            "a.csv": b"id\n1\n2\n3\n",
            "b.jsonl.gz": gzip.compress(b'{"id": 4}\n{"id": 5}\n{"id": 6}\n'),
        },
    )
    spec = spec_of(tmp_path, limit=5)
    planned = plan(spec)
    before = {each: storage.stat(f"{tmp_path}/out/_input/{each}") for each in copies(tmp_path)}
    assert len(before) == 2
    with monkeypatch.context() as patch:
        patch.setattr(convert.Converter, "_make", None)
        plan(spec)
        convert.Converter(spec.input, spec.output.uri).restore(planned.files)
    assert {each: storage.stat(f"{tmp_path}/out/_input/{each}") for each in before} == before
    lost = next(each for each in before if name in each)
    (tmp_path / "out" / "_input" / lost).unlink()
    convert.Converter(spec.input, spec.output.uri).restore(planned.files)
    assert copies(tmp_path) == sorted(before)
    assert rows_of(spec, planned) == [{"id": at} for at in range(1, 6)]
    plan(spec_of(tmp_path, limit=4))
    assert len(copies(tmp_path)) == 4


def test_what_changes_while_it_is_copied_leaves_no_copy(tmp_path, monkeypatch):
    put(tmp_path, **{"a.csv": b"id\n1\n"})
    header = records.header

    def change(uri, head, delimiter):
        put(tmp_path, **{"a.csv": b"id\n1\n2\n"})
        return header(uri, head, delimiter)

    monkeypatch.setattr(records, "header", change)
    with pytest.raises(BadInput, match=r"a\.csv changed while it was read: submit when it is"):
        plan(spec_of(tmp_path))
    assert copies(tmp_path) == []


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_limit_counts_no_blank_line_however_it_comes(tmp_path, start, suffix, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK_BYTES", 8)
    text = (
        start + b"\n" + b" " * 50 + b"\r\n" + b'{"id": 1, "text": "longer"}\n\n{"id": 2}\n{"id": 3}'
    )
    put(tmp_path, **{f"a.jsonl{suffix}": PACK[suffix](text)})
    for limit in (1, 2, 3, 4):
        rows = rows_of(spec_of(tmp_path, limit=limit))
        assert [row["id"] for row in rows] == [1, 2, 3][:limit]


def test_a_copy_that_is_gone_is_told_and_says_how_it_comes_back(tmp_path):
    put(tmp_path, **{"a.csv": b"id\n1\n"})
    spec = spec_of(tmp_path)
    planned = plan(spec)
    (tmp_path / "out" / "_input" / copies(tmp_path)[0]).unlink()
    with pytest.raises(
        SourceChanged, match=r"in/a\.csv that is read, is gone; run `nightshift retry JOB"
    ):
        rows_of(spec, planned)


def test_the_sweep_leaves_the_copies_of_the_job_alone(tmp_path):
    put(tmp_path, **{"a.csv": b"id\n1\n"})
    spec = spec_of(tmp_path)
    source = plan(spec).files[0]
    folder = tmp_path / "out" / "_input"
    (folder / ".half.parquet.3f").write_bytes(b"x")
    (folder / "of-another-submit.parquet").write_bytes(b"x")
    wanted = input_copies.copy_of(spec.input, spec.output.uri, source)
    assert wanted is not None
    convert.sweep(spec.output.uri, {wanted})
    assert [f"{folder}/{name}" for name in copies(tmp_path)] == [wanted]
    convert.sweep(spec.output.uri, set())
    assert not folder.exists()
    convert.sweep(spec.output.uri, set())


def test_a_crash_in_the_middle_leaves_nothing_that_counts(tmp_path):
    put(tmp_path, **{"a.csv": b"id\n1\n"})
    code = f"""
import os
from nightshift.common.formats.csv import types
from nightshift.common.spec import InputSpec
from nightshift.producer.submit.planning import planner
types.encoded_types = lambda _: os._exit(9)
planner.plan(InputSpec(uri="{tmp_path}/in"), 1000, output_uri="{tmp_path}/out")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    left = copies(tmp_path)
    assert [name[0] for name in left] == ["."]
    spec = spec_of(tmp_path)
    assert rows_of(spec) == [{"id": 1}]
    storage.delete_all(storage.left_unfinished(f"{tmp_path}/out/_input"))
    assert [name[0] == "." for name in copies(tmp_path)] == [False]


@pytest.mark.slow
def test_copies_are_made_in_bounded_memory(tmp_path):
    """A file of 900 MB, highly compressed, in less than that beyond the libraries, whose pools keep what
    they had."""
    (tmp_path / "in").mkdir()
    with gzip.open(tmp_path / "in" / "a.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"id,text\n")
        block = b"".join(b"%d,%s\n" % (at, b"x" * 990) for at in range(1000))
        for _ in range(900):
            file.write(block)
    code = f"""
import resource
from nightshift.producer.submit.planning import planner
from nightshift.common.spec import InputSpec
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plan = planner.plan(InputSpec(uri="{tmp_path}/in"), 1000, output_uri="{tmp_path}/out")
print(plan.rows_total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, mebibytes = map(int, said.stdout.split())
    assert rows == 900_000
    assert mebibytes < 750
    assert pq.ParquetFile(next((tmp_path / "out/_input").iterdir())).num_row_groups > 4


def test_the_copy_of_csv_holds_the_texts_as_they_stand(tmp_path):
    put(tmp_path, **{"a.csv": b"id,x\n1,007\n2,1.50\n"})
    plan(spec_of(tmp_path))
    table = pq.read_table(tmp_path / "out" / "_input" / copies(tmp_path)[0])
    assert table.drop_columns(WHY).to_pylist() == [
        {"id": "1", "x": "007"},
        {"id": "2", "x": "1.50"},
    ]
