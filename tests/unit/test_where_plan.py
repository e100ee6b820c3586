"""A plan with `input.where`: the rows that match, each in one batch, and nothing read that cannot match."""

import gzip
import json
import tracemalloc
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common.errors import BadInput
from nightshift.common.formats import reading
from nightshift.common.formats.input_rows import read_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.reading import Reading
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.producer.estimate.row_sample import sample_rows
from nightshift.producer.submit.arrange.sample import sharing_sample
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan
from tests.support.conditions import CONDITIONS as RANDOM_CONDITIONS
from tests.support.conditions import ROWS, table_of_rows


def spec_of(folder: Path, where: str, **of_input) -> JobSpec:
    data = {
        "name": "t",
        "input": {"uri": str(folder / "in"), "id": "id", "where": where, **of_input},
        "task": {"kind": "generate", "prompt": "{{ text }}"},
        "engine": {"backend": "vllm", "model": "m"},
        "output": {"uri": str(folder / "out")},
    }
    return parse_spec(data, "t")


def planned(spec: JobSpec, rows: int = 10, **options) -> Plan:
    options = {"columns": spec.read_columns, "output_uri": spec.output.uri} | options
    return planner.plan(spec.input, rows, **options)


def read(spec: JobSpec, plan: Plan) -> list[tuple[int, int]]:
    """Row index and id of every row of the batches, each batch read by itself."""
    found = []
    for batch in plan.batches():
        rows = read_rows(spec, batch, ["id"], ReadCache(2**20), plan.schema)
        assert not rows.bad
        found += zip(rows.row_index, rows.table.column("id").to_pylist(), strict=True)
    return found


def table_of(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "lang": [("de", "en", None, "fr")[each % 4] for each in ids],
            "stars": pa.array([each % 6 for each in ids], pa.int64()),
            "text": [f"text {each}\n" + "x" * (each % 50) for each in ids],
        }
    )


def write(path: Path, table: pa.Table, group: int = 17) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    elif path.suffix == ".csv":
        pc.write_csv(table, path)
    else:
        lines = "\n\n".join(json.dumps(row) for row in table.to_pylist()).encode() + b"\n"
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


SUFFIXES = ["parquet", "jsonl", "jsonl.gz", "csv"]
CONDITIONS = [
    "lang = 'de' AND stars >= 3",
    "lang IS NULL",
    "id = 77",
    "id < 30 OR id > 180",
    "NOT (stars < 5)",
    "lang NOT IN ('de', 'en')",
    "text LIKE '%1_%'",
    "TRUE",
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("where", CONDITIONS)
def test_the_rows_are_those_of_duckdb_and_keep_their_row_index(tmp_path, suffix, where):
    write(tmp_path / "in" / f"a.{suffix}", table_of(0, 100))
    write(tmp_path / "in" / f"b.{suffix}", table_of(100, 101))
    spec = spec_of(tmp_path, where)
    plan = planned(spec)
    every = duckdb.from_arrow(table_of(0, 201))
    matching = [row[0] for row in every.filter(where).order("id").project("id").fetchall()]
    assert read(spec, plan) == [(each, each) for each in matching]
    assert (plan.rows_total, plan.left_out) == (len(matching), 201 - len(matching))
    assert [(file.first_row, file.rows) for file in plan.files] == [(0, 100), (100, 101)]
    assert sum(file.rows_taken for file in plan.files) == len(matching)
    batches = list(plan.batches())
    assert plan.batches_total == len(batches)
    assert max(len(batch.rows) for batch in batches) <= 10
    if suffix in ("parquet", "csv"):
        # Full batches, but the last of each file.
        assert len(batches) == sum(-(-file.rows_taken // 10) for file in plan.files)
    else:
        assert len(batches) <= 2 * (len(matching) // 10 + 1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    least=st.integers(0, 31),
    rows=st.integers(1, 9),
    size=st.sampled_from([1, 100, 1000, 2**20]),
    limit=st.none() | st.integers(1, 40),
    suffix=st.sampled_from(["parquet", "jsonl"]),
)
def test_every_matching_row_is_in_one_batch_and_a_limit_takes_the_first(
    tmp_path, ids, least, rows, size, limit, suffix
):
    folder = tmp_path / "in"
    for file in folder.glob("*"):
        file.unlink()
    for at in range(0, len(ids), 25):
        own = pa.table(
            {"id": ids[at : at + 25], "text": ["x" * each for each in ids[at : at + 25]]}
        )
        write(folder / f"{at:03}.{suffix}", own, group=7)
    matching = [(at, each) for at, each in enumerate(ids) if each >= least][:limit]
    spec = spec_of(tmp_path, f"id >= {least}", **({} if limit is None else {"limit": limit}))
    if not matching:
        with pytest.raises(BadInput, match=r"no row matches input\.where, of "):
            planned(spec, rows, batch_bytes=size)
        return
    plan = planned(spec, rows, batch_bytes=size)
    assert read(spec, plan) == matching
    assert plan.rows_total == len(matching)
    assert plan.rows_of_files - plan.left_out == len(matching)
    if limit is not None and len(matching) == limit:
        assert plan.rows_of_files == matching[-1][0] + 1
    shifted = [index for batch in plan.behind(1000).batches() for index in batch.rows]
    assert shifted == [1000 + index for index, _ in matching]


def test_a_few_matches_make_full_batches_within_a_bounded_window(tmp_path):
    write(tmp_path / "in" / "a.jsonl", table_of(0, 2000))
    plan = planned(spec_of(tmp_path, "stars = 1 AND lang = 'en'"), 20)
    batches = list(plan.batches())
    assert plan.rows_total == 167
    assert len(batches) <= 10
    small = list(
        planned(spec_of(tmp_path, "stars = 1 AND lang = 'en'"), 20, batch_bytes=1000).batches()
    )
    assert max(batch.locator.byte_length for batch in small) <= 4000


def test_row_groups_that_cannot_match_are_not_decoded(tmp_path):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(table_of(0, 100), path, row_group_size=10, compression="none")
    metadata = pq.read_metadata(path)
    content = bytearray(path.read_bytes())
    for group in (0, 1, 2, 3, 4, 7, 8, 9):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            content[start : start + chunk.total_compressed_size] = bytes(
                chunk.total_compressed_size
            )
    path.write_bytes(content)
    spec = spec_of(tmp_path, "id BETWEEN 55 AND 61")
    assert read(spec, planned(spec)) == [(each, each) for each in range(55, 62)]


def test_only_the_columns_of_the_condition_are_read(tmp_path):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(table_of(0, 100), path, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(3)
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    assert planned(spec_of(tmp_path, "stars = 5")).rows_total == 16


def test_a_row_without_a_truth_value_for_its_damage_stays_and_fails_by_itself(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    good = [json.dumps({"id": at, "stars": at % 5, "text": "x"}) for at in range(1000)]
    bad = ['{"id": 1000, "stars": "many", "text": "x"}', "no JSON", '{"id": 1002, "stars": null}']
    (folder / "a.jsonl").write_text("\n".join([*good, *bad, '{"id": 1003, "stars": 1}']) + "\n")
    spec = spec_of(tmp_path, "stars = 4")
    plan = planned(spec, 100)
    assert plan.rows_total == 200 + 2
    found = [index for batch in plan.batches() for index in batch.rows]
    assert found[-3:] == [999, 1000, 1001]
    last = list(plan.batches())[-1]
    rows = read_rows(spec, last, ["id", "stars"], ReadCache(0), plan.schema)
    assert {index: why.kind.value for index, why in rows.bad.items()} == {
        1000: "bad_type",
        1001: "bad_record",
    }


def test_a_damaged_row_group_that_may_match_stays_whole(tmp_path):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(table_of(0, 20), path, row_group_size=10, compression="none")
    chunk = pq.read_metadata(path).row_group(1).column(2)
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    plan = planned(spec_of(tmp_path, "stars = 5"))
    assert [index for batch in plan.batches() for index in batch.rows] == [5, *range(10, 20)]


def test_a_condition_on_the_path_of_a_file_reads_no_rows(tmp_path):
    for lang in ("de", "en", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / "in" / f"lang={lang}" / "a.parquet"
        write(path, table_of(0, 20).drop_columns("lang"))
        content = bytearray(path.read_bytes())
        content[4:200] = bytes(196)
        path.write_bytes(content)
    spec = spec_of(tmp_path, "lang = 'de'", partitioning="hive")
    plan = planned(spec, 8)
    assert [len(batch.rows) for batch in plan.batches()] == [8, 8, 4]
    assert {Path(batch.source.uri).parent.name for batch in plan.batches()} == {"lang=de"}
    assert [file.left_out for file in plan.files] == [20, 0, 20]
    assert planned(spec_of(tmp_path, "lang IS NULL", partitioning="hive")).rows_total == 20
    both = spec_of(tmp_path, "lang = 'en' AND id >= 0", partitioning="hive")
    assert planned(both).rows_total == 20


def test_the_types_of_a_condition_are_those_of_all_files_of_a_dataset(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("id,code,text\n1,7,x\n2,8,y\n")
    (folder / "b.csv").write_text("id,code,text\n3,a,x\n4,8,y\n")
    spec = spec_of(tmp_path, "code = '8'")
    assert read(spec, planned(spec)) == [(1, 2), (3, 4)]
    with pytest.raises(BadInput, match="code, which is string, with the number 8"):
        planned(spec_of(tmp_path, "code = 8"))


def test_a_column_of_lines_without_a_value_so_far_has_texts(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"id": at, "text": "x", "note": None} for at in range(1000)]
    rows += [{"id": 1000, "text": "x", "note": "late"}, {"id": 1001, "text": "x", "note": 5}]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [
        index
        for batch in planned(spec_of(tmp_path, "note = 'late'")).batches()
        for index in batch.rows
    ] == [1000]
    assert planned(spec_of(tmp_path, "note IS NOT NULL")).rows_total == 2


def test_files_of_lines_and_tables_are_held_against_one_condition(tmp_path):
    write(tmp_path / "in" / "a.jsonl", table_of(0, 50))
    write(tmp_path / "in" / "b.parquet", table_of(50, 50))
    write(tmp_path / "in" / "c.csv", table_of(100, 50))
    spec = spec_of(tmp_path, "stars = 3")
    assert [index for index, _ in read(spec, planned(spec))] == [
        at for at in range(150) if at % 6 == 3
    ]


def test_parquet_files_must_agree_on_the_columns_of_the_condition(tmp_path):
    write(tmp_path / "in" / "a.parquet", table_of(0, 5))
    text = table_of(5, 5).set_column(2, "stars", pa.array(["1"] * 5))
    write(tmp_path / "in" / "b.parquet", text)
    with pytest.raises(BadInput, match="stars"):
        planned(spec_of(tmp_path, "stars = 3"))


def test_a_condition_on_fields_inside_of_a_column(tmp_path):
    rows = [
        {"id": at, "text": "x", "o": {"x": at % 3, "y": None} if at % 4 else None}
        for at in range(24)
    ]
    for name in ("parquet", "jsonl"):
        folder = tmp_path / name
        write(folder / "in" / f"a.{name}", pa.Table.from_pylist(rows))
        spec = spec_of(folder, "o.x = 2 OR o IS NULL")
        wanted = [at for at in range(24) if not at % 4 or at % 3 == 2]
        assert [index for index, _ in read(spec, planned(spec))] == wanted


def test_samples_are_drawn_among_the_rows_that_match(tmp_path):
    write(tmp_path / "in" / "a.parquet", table_of(0, 3000))
    write(tmp_path / "in" / "b.jsonl", table_of(3000, 3000))
    spec = spec_of(tmp_path, "stars = 4")
    plan = planned(spec, 50)
    drawn = sample_rows(plan, spec, 100, 7)
    assert len(set(drawn.row_index)) == 100
    assert {index % 6 for index in drawn.row_index} == {4}
    assert sharing_sample(spec, plan, ["text"]).rows_total == 1000


@pytest.mark.slow
def test_a_plan_for_somebody_else_is_bounded_while_it_looks_for_rows(tmp_path):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    large = pa.table({"id": range(3000), "text": ["x" * 200_000] * 3000})
    pq.write_table(large, path, compression="zstd", use_dictionary=False)
    spec = spec_of(tmp_path, "text = 'y' OR text LIKE 'x%'")
    with reading.held_to(Reading(most_ratio=10)), pytest.raises(BadInput, match="times its size"):
        planned(spec)


@pytest.mark.slow
def test_a_plan_keeps_ranges_alone_however_large_the_rows_are(tmp_path):
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(
        pa.table({"id": range(200_000), "text": ["x"] * 200_000}), path, row_group_size=20_000
    )
    spec = spec_of(tmp_path, "id <> 7")
    planned(spec)
    tracemalloc.start()
    try:
        plan = planned(spec, 1000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.batches_total == 200
    assert kept < 2 * 2**20


def test_a_file_that_changes_while_it_is_looked_through_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "in" / "a.parquet"
    write(path, table_of(0, 100))
    real = planner.Filter.match_all

    def late(self, looked):
        write(path, table_of(0, 101))
        real(self, looked)

    monkeypatch.setattr(planner.Filter, "match_all", late)
    with pytest.raises(BadInput, match="submit again"):
        planned(spec_of(tmp_path, "stars = 1"))


def _by_pyarrow(table: pa.Table, path: Path, size: int) -> None:
    pq.write_table(table, path, row_group_size=size)


def _without_statistics(table: pa.Table, path: Path, size: int) -> None:
    pq.write_table(table, path, row_group_size=size, write_statistics=False)


def _with_some_statistics(table: pa.Table, path: Path, size: int) -> None:
    encoded = [name for name in table.column_names if name not in ("f", "m", "z")]
    pq.write_table(
        table, path, row_group_size=size, write_statistics=["i", "s"], use_dictionary=encoded
    )


def _by_duckdb(table: pa.Table, path: Path, size: int) -> None:
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(f"COPY given TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {2048 * size})")


def _by_polars(table: pa.Table, path: Path, size: int) -> None:
    import polars

    polars.from_arrow(table).write_parquet(path, row_group_size=size, statistics="full")


def _with_cut_statistics(table: pa.Table, path: Path, size: int) -> None:
    """By arrow-rs, which cuts the greatest and the least text of a group."""
    import deltalake

    properties = deltalake.WriterProperties(max_row_group_size=size, statistics_truncate_length=4)
    folder = path.with_suffix(".table")
    deltalake.write_deltalake(folder, table, writer_properties=properties)
    (file,) = folder.rglob("*.parquet")
    file.rename(path)


WRITERS = [
    _by_pyarrow,
    _without_statistics,
    _with_some_statistics,
    _by_duckdb,
    _by_polars,
    _with_cut_statistics,
]


@pytest.mark.slow
@settings(
    max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    where=RANDOM_CONDITIONS,
    files=st.lists(
        st.tuples(ROWS, st.sampled_from(WRITERS), st.integers(1, 3)), min_size=1, max_size=3
    ),
)
def test_the_rows_of_a_plan_are_those_of_duckdb_over_the_whole_dataset(
    tmp_path_factory, where, files
):
    folder = tmp_path_factory.mktemp("where")
    (folder / "in").mkdir()
    tables = []
    for number, (rows, writer, size) in enumerate(files):
        ordered = sorted(rows, key=lambda row: (row["s"] or "", row["i"] or 0))
        tables.append(table_of_rows(ordered))
        writer(tables[-1], folder / "in" / f"{number}.parquet", size)
    whole = pa.concat_tables(tables)
    whole = whole.append_column("id", pa.array(range(len(whole)), pa.int64()))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("whole", whole)
        query = f"SELECT id FROM whole WHERE {where} ORDER BY id"
        expected = [row[0] for row in connection.execute(query).fetchall()]
    spec = spec_of(folder, where, id=None)
    plan = planned(spec, columns=["s"], may_be_empty=True)
    assert [index for batch in plan.batches() for index in batch.rows] == expected
    assert plan.left_out == len(whole) - len(expected)


def test_a_column_of_another_type_in_one_file_is_refused(tmp_path):
    write(tmp_path / "in" / "a.parquet", table_of(0, 10))
    other = table_of(10, 10).set_column(2, "stars", pa.array(["x"] * 10))
    write(tmp_path / "in" / "b.parquet", other)
    with pytest.raises(BadInput, match="stars"):
        planned(spec_of(tmp_path, "stars > 3"))
