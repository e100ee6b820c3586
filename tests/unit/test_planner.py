"""Planning: every row in one batch, in order; what is wrong with the input in one sentence."""

import io
import json
import tracemalloc
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats.input_rows import read_file_rows
from nightshift.common.formats.jsonl import plan as line_scan
from nightshift.common.formats.parquet import decoded_size
from nightshift.common.formats.parquet.plan import cut_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import InputSpec, parse_spec
from nightshift.common.spec.sections import BATCH_BYTES
from nightshift.producer.submit.checks import check_columns, check_schema
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan


def planned(uri, rows=10, *, columns=None, batch_bytes=BATCH_BYTES, **options) -> Plan:
    uris = [str(one) for one in uri] if isinstance(uri, list) else str(uri)
    spec = InputSpec.model_validate({"uri": uris, **options})
    return planner.plan(spec, rows, batch_bytes=batch_bytes, columns=columns)


def ids(plan: Plan, column="id") -> list:
    """The ids of every batch in order, each read by itself."""
    found = []
    for descriptor in plan.batches():
        rows = read_file_rows(descriptor, [column], ReadCache(2**20), schema=pa.schema([]))
        assert not rows.bad
        found += rows.table.column(column).to_pylist()
    return found


def write_jsonl(path: Path, rows, end="\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + end)
    return path


# ---------------------------------------------------------------- batches


def test_every_row_is_in_one_batch_and_no_batch_spans_two_files(tmp_path):
    pq.write_table(pa.table({"id": range(25)}), tmp_path / "b.parquet", row_group_size=7)
    write_jsonl(tmp_path / "a.jsonl", [{"id": at} for at in range(100, 112)])
    (tmp_path / "c.jsonl").write_bytes(b"\n\n")
    plan = planned(tmp_path, 10)
    assert [(Path(file.uri).name, file.first_row, file.rows) for file in plan.files] == [
        ("a.jsonl", 0, 12),
        ("b.parquet", 12, 25),
        ("c.jsonl", 37, 0),
    ]
    batches = list(plan.batches())
    assert [batch.rows.ranges for batch in batches] == [
        ((0, 10),), ((10, 12),), ((12, 22),), ((22, 32),), ((32, 37),),
    ]  # fmt: skip
    assert plan.batches_total == len(batches)
    assert plan.rows_total == 37
    assert [batch.locator is None for batch in batches] == [False, False, True, True, True]
    assert ids(plan) == [*range(100, 112), *range(25)]
    assert plan.schema == pa.schema([("id", pa.int64())])


@pytest.mark.parametrize("limit", [1, 9, 10, 11, 30, 31, 55, 60, 1000])
def test_a_limit_holds_over_all_files_and_the_rest_stays_unopened(tmp_path, limit):
    for number, name in enumerate("ab"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": 30 * number + at} for at in range(30)])
    (tmp_path / "z.jsonl").write_bytes(b"broken" if limit <= 60 else b"")
    plan = planned(tmp_path, 10, limit=limit)
    assert ids(plan) == list(range(min(limit, 60)))
    assert len(plan.files) == 3
    assert sum(file.rows for file in plan.files) == plan.rows_total == min(limit, 60)


def test_a_limit_cuts_parquet_too(tmp_path):
    pq.write_table(pa.table({"id": range(25)}), tmp_path / "a.parquet")
    assert ids(planned(tmp_path, 10, limit=13)) == list(range(13))


def test_files_in_memory_stores_are_planned_like_local_ones():
    storage.write_bytes("memory://plan/a.jsonl", b'{"id": 1}\n\n{"id": 2}')
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": [3, 4]}), buffer)
    storage.write_bytes("memory://plan/b.parquet", buffer.getvalue())
    assert ids(planned("memory://plan", 1)) == [1, 2, 3, 4]
    for name in storage.list_names("memory://plan"):
        storage.delete(f"memory://plan/{name}")


@pytest.mark.slow
def test_many_batches_take_little_memory(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 1}] * 100_000)
    tracemalloc.start()
    plan = planned(path, 1)
    assert sum(1 for _ in plan.batches()) == 100_000
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 * 2**20


# ---------------------------------------------------------------- the one rule for lines

LINE = st.one_of(
    st.sampled_from([b"", b" ", b"\t \t", b"\r", b"\x0c", b"\x0b\r"]),
    st.builds(
        lambda value, pad, end: pad + json.dumps({"v": value}, ensure_ascii=False).encode() + end,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        st.sampled_from([b"", b" ", b"\t"]),
        st.sampled_from([b"", b"\r", b"  "]),
    ),
)


def naive_rows(content: bytes) -> list[str]:
    """The obvious reader, sharing no code with ours."""
    text = content.removeprefix(b"\xef\xbb\xbf")
    return [json.loads(line)["v"] for line in text.split(b"\n") if line.strip()]


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(LINE, max_size=40),
    bom=st.booleans(),
    newline=st.booleans(),
    batch_rows=st.integers(1, 45),
    batch_bytes=st.sampled_from([1, 20, 60, 2**25]),
    chunk_bytes=st.sampled_from([1, 7, 30, 65536]),
    data=st.data(),
)
def test_planner_and_reader_agree_on_every_line(
    tmp_path, monkeypatch, lines, bom, newline, batch_rows, batch_bytes, chunk_bytes, data
):
    """The batches' rows are those of a naive reader, once each and in order; so is any subset."""
    monkeypatch.setattr(line_scan, "CHUNK_BYTES", chunk_bytes)
    content = (b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + (b"\n" if newline else b"")
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    reference = naive_rows(content)
    if not reference:
        with pytest.raises(BadInput, match="no rows"):
            planned(path, batch_rows)
        return
    plan = planned(path, batch_rows, batch_bytes=batch_bytes)
    assert plan.batches_total == len(list(plan.batches()))
    seen: list[str] = []
    for descriptor in plan.batches():
        assert 1 <= len(descriptor.rows) <= batch_rows
        assert descriptor.locator.byte_length <= batch_bytes or len(descriptor.rows) == 1
        rows = read_file_rows(descriptor, ["v"], ReadCache(0), schema=pa.schema([]))
        assert rows.row_index == list(descriptor.rows)
        assert not rows.bad
        seen += rows.table.column("v").to_pylist()
        some = data.draw(st.sets(st.sampled_from(rows.row_index), min_size=1))
        part = Descriptor(descriptor.source, RowRanges.from_indices(some), descriptor.locator)
        subset = read_file_rows(part, ["v"], ReadCache(0), schema=pa.schema([]))
        assert subset.row_index == sorted(some)
        assert subset.table.column("v").to_pylist() == [reference[index] for index in sorted(some)]
    assert seen == reference
    assert plan.rows_total == len(reference)


# ---------------------------------------------------------------- bad input


def test_a_broken_line_near_the_top_names_file_and_line(tmp_path):
    lines = [json.dumps({"id": at}) for at in range(1200)]
    lines[500] = ""
    lines[700] = '{"id": '
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BadInput, match=r"a\.jsonl line 701: no valid JSON"):
        planned(path)


def test_a_broken_line_further_down_is_left_to_the_worker(tmp_path):
    lines = [json.dumps({"id": at}) for at in range(1200)]
    lines[1100] = "broken"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    assert planned(path).rows_total == 1200


def test_a_line_that_is_no_object_is_bad_input(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"id": 1}, [1]])
    with pytest.raises(BadInput, match=r"line 2: a JSON array"):
        planned(tmp_path)


def test_no_rows_at_all_are_bad_input(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n \n")
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "b.parquet")
    with pytest.raises(BadInput, match="no rows"):
        planned(tmp_path)


def test_nulls_in_the_id_column_that_the_footer_knows_are_bad_input(tmp_path):
    pq.write_table(pa.table({"id": [1, None], "x": [None, None]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a\.parquet: the id column 'id' has 1 nulls"):
        planned(tmp_path, id="id")
    assert planned(tmp_path).rows_total == 2


def test_a_file_that_grows_while_it_is_planned_is_bad_input(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 1}])
    before = storage.expand([str(path)])
    write_jsonl(path, [{"id": 1}, {"id": 2}])
    with pytest.raises(BadInput, match=r"a\.jsonl changed while"):
        planner.plan(InputSpec(uri=str(path)), 10, infos=before)


def test_one_bad_file_among_many_is_named(tmp_path):
    for number in range(30):
        write_jsonl(tmp_path / f"{number}.jsonl", [{"id": number}])
    (tmp_path / "17.jsonl").write_bytes(b"no")
    with pytest.raises(BadInput, match=r"17\.jsonl line 1"):
        planned(tmp_path)


def test_files_need_to_agree_only_on_the_columns_that_are_used(tmp_path):
    pq.write_table(pa.table({"id": [1], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "x": ["s"]}), tmp_path / "b.parquet")
    with pytest.raises(BadInput, match="'x'"):
        planned(tmp_path)
    assert planned(tmp_path, columns=["id"]).rows_total == 2


# ---------------------------------------------------------------- columns


def generate(prompt="{{ text }}", **sections):
    return parse_spec(
        {
            "name": "job",
            "input": {"uri": "x", **sections.get("input", {})},
            "task": {"kind": "generate", "prompt": prompt},
            "engine": {"backend": "vllm", "model": "m"},
            "output": {"uri": "out", **sections.get("output", {})},
        },
        "test",
    )


SCHEMA = pa.schema([("review_id", pa.int64()), ("text", pa.string()), ("meta", pa.string())])


def test_columns_that_exist_are_fine_nested_ones_by_their_root():
    check_columns(generate("{{ meta.title }} {{ text }}", input={"id": "review_id"}), SCHEMA)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            generate("Rate:\n" + "so " * 30 + "{{ txt }}!"),
            "the template task.prompt, '…so so so so so so so so so {{ txt }}!', names the column 'txt' "
            ".did you mean 'text'?",
        ),
        (generate(input={"id": "reviewid"}), "input.id names the column 'reviewid'"),
        (generate(input={"columns": ["zzz"]}), "input.columns names the column 'zzz', which"),
        (generate(output={"columns": ["metas"]}), "output.columns names the column 'metas'"),
    ],
)
def test_a_column_that_the_data_lacks_is_bad_input_with_what_there_is(spec, said):
    with pytest.raises(BadInput, match=said.replace("?", r"\?")) as caught:
        check_columns(spec, SCHEMA)
    assert "it has review_id, text, meta" in str(caught.value)


@pytest.mark.parametrize("prompt", ["Say {text}", "Say {{ '{' }}{ meta }", "a {x} {text}"])
def test_a_column_in_single_braces_is_refused_where_no_other_column_is_named(prompt):
    with pytest.raises(BadInput, match="single braces"):
        check_schema(generate(prompt), SCHEMA)


@pytest.mark.parametrize(
    "prompt",
    ["Say something", "Write {name}", "{{ text }} as {meta}", '{"text": 1}', "{# text #}x"],
)
def test_other_braces_stay_as_they_are(prompt):
    check_schema(generate(prompt), SCHEMA)


def test_source_files_say_what_they_were_when_planned(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 1}])
    info = storage.stat(str(path))
    assert planned(path).files == [
        SourceFile(str(path), "jsonl", info.size, info.fingerprint, 1, 0)
    ]


# ---------------------------------------------------------------- large rows


@pytest.mark.parametrize(
    ("groups", "rows", "size", "cuts"),
    [
        ([(10, 1000)], 4, 400, None),
        ([(10, 1000)], 10, 300, [3, 6, 9, 10]),
        ([(10, 1000)], 2, 300, None),
        ([(3, 3000), (6, 60)], 4, 100, [1, 2, 3, 7, 9]),
        ([(6, 60), (3, 300)], 100, 100, [6, 7, 8, 9]),
        ([(4, 40), (4, 400)], 3, 100, [3, 4, 5, 6, 7, 8]),
        ([(2, 0), (2, 2000)], 10, 100, [2, 3, 4]),
        ([(0, 0), (5, 500)], 5, 250, [2, 4, 5]),
        ([], 5, 250, None),
    ],
)
def test_batches_end_where_their_rows_or_their_bytes_are_full(groups, rows, size, cuts):
    found = cut_rows(groups, rows, size)
    assert (found if found is None else list(found)) == cuts


@pytest.mark.parametrize("nested", [False, True])
def test_a_document_that_many_rows_share_counts_for_each_of_them(tmp_path, nested):
    """A dictionary holds each document once: by the footer 4,096 rows of 60 kB were 0.6 MB."""
    documents = [f"{number} ".ljust(1000, "x") for number in range(10)]
    texts = pa.array(documents).take(pa.array([row % 10 for row in range(5000)]))
    column = pa.ListArray.from_arrays(list(range(5001)), texts) if nested else texts
    table = pa.table({"id": range(5000), "context": column})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2000)
    plan = planned(tmp_path / "a.parquet", 4096, columns=["id", "context"], batch_bytes=100_000)
    assert 90 < max(len(batch.rows) for batch in plan.batches()) <= 100
    assert ids(plan) == list(range(5000))
    assert planned(tmp_path / "a.parquet", 4096, columns=["id"]).batches_total == 2


def test_rows_without_a_document_count_for_none(tmp_path):
    texts = ["x" * 5000 if row % 100 == 0 else None for row in range(1000)]
    pq.write_table(pa.table({"id": range(1000), "text": texts}), tmp_path / "a.parquet")
    plan = planned(tmp_path / "a.parquet", 1000, columns=["id", "text"], batch_bytes=100_000)
    assert plan.batches_total == 1


@pytest.mark.parametrize(
    "written",
    [
        {"compression": "none"},
        {"compression": "zstd", "write_page_checksum": True},
        {"data_page_version": "2.0", "write_page_index": True},
        {"row_group_size": 100},
    ],
)
def test_the_header_of_a_dictionary_tells_the_mean_of_its_values(tmp_path, written):
    texts = ["x" * 100, "y" * 300, None] * 200
    table = pa.table({"text": texts, "plain": texts, "none": pa.nulls(600, pa.string())})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_dictionary=["text", "none"], **written)
    group = pq.read_metadata(path).row_group(0)
    assert decoded_size.value_bytes(str(path), group, None) == {"text": 204}
    assert decoded_size.value_bytes(str(path), group, ["plain"]) == {}


def test_duckdb_writes_headers_of_dictionaries_that_are_understood(tmp_path):
    path = tmp_path / "a.parquet"
    duckdb.sql(f"COPY (SELECT repeat('x', 96 + range % 2) t FROM range(9999)) TO '{path}'")
    group = pq.read_metadata(path).row_group(0)
    assert decoded_size.value_bytes(str(path), group, None) == {"t": 100.5}


@given(st.binary(max_size=64))
def test_other_content_than_the_header_of_a_dictionary_has_no_mean(content):
    assert decoded_size.mean_of_header(content) is None or content[0] & 15 == decoded_size.I32


def test_a_batch_of_large_documents_is_bounded_by_its_bytes(tmp_path):
    """256 rows of 1 MB each would be one batch of 256 MB."""
    rng = np.random.default_rng(1)
    pages = [rng.bytes(10_000) for _ in range(60)]
    table = pa.table({"id": range(60), "page": pages, "other": pages})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=25)
    plan = planned(tmp_path / "a.parquet", 256, columns=["id", "page"], batch_bytes=101_000)
    assert plan.batches_total == len(list(plan.batches()))
    assert max(len(batch.rows) for batch in plan.batches()) == 10
    assert ids(plan) == list(range(60))
    assert (
        planned(tmp_path / "a.parquet", 256, columns=["id"], batch_bytes=101_000).batches_total == 1
    )
