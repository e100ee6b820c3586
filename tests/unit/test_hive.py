"""Folders called key=value are columns: which, of what type, and when they are."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import hive, input_rows
from nightshift.common.formats.hive import with_partitioning
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import InputSpec, JobSpec, parse_spec
from nightshift.producer.submit.checks import check_columns
from nightshift.producer.submit.planning import planner


def tree(folder: Path, *names: str) -> Path:
    """A file of two rows under each name, with an id that tells the file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"id": f"{path.name}-{at}", "text": "x"} for at in range(2)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        match path.name.partition(".")[2]:
            case "parquet":
                pq.write_table(pa.Table.from_pylist(rows), path)
            case "jsonl":
                path.write_text(lines)
            case "jsonl.gz":
                path.write_bytes(gzip.compress(lines.encode()))
            case "csv":
                path.write_text("id,text\n" + "".join(f"{row['id']},x\n" for row in rows))
    return folder


def spec_of(folder: Path, uri: str = "", *, columns=None, **inputs) -> JobSpec:
    spec = parse_spec(
        {
            "name": "test",
            "input": {"uri": uri or str(folder / "in"), "columns": columns, **inputs},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "output": {"uri": f"{folder}/out"},
        },
        "test",
    )
    return with_partitioning(spec, storage.expand(spec.input.uris))


def read(spec: JobSpec) -> pa.Table:
    planned = planner.plan(spec.input, 10, columns=spec.read_columns, output_uri=spec.output.uri)
    check_columns(spec, planned.schema)
    tables = [
        input_rows.read_rows(spec, batch, spec.read_columns, ReadCache(2**20), planned.schema).table
        for batch in planned.batches()
    ]
    return pa.concat_tables(tables)


def test_folders_become_columns_of_every_format(tmp_path):
    tree(
        tmp_path / "in",
        "day=2024-01-01/n=1/a.parquet",
        "day=2024-01-02/n=20/b.jsonl",
        "day=a%20b%3D/n=-3/c.csv",
        "day=__HIVE_DEFAULT_PARTITION__/n=4/d.jsonl.gz",
    )
    table = read(spec_of(tmp_path))
    assert table.schema == pa.schema(
        [("id", pa.string()), ("text", pa.string()), ("day", pa.string()), ("n", pa.int64())]
    )
    rows = {row["id"]: (row["day"], row["n"]) for row in table.to_pylist()}
    assert rows == {
        "a.parquet-0": ("2024-01-01", 1), "a.parquet-1": ("2024-01-01", 1),
        "b.jsonl-0": ("2024-01-02", 20), "b.jsonl-1": ("2024-01-02", 20),
        "c.csv-0": ("a b=", -3), "c.csv-1": ("a b=", -3),
        "d.jsonl.gz-0": (None, 4), "d.jsonl.gz-1": (None, 4),
    }  # fmt: skip


def test_what_pyarrow_writes_as_partitions_comes_back(tmp_path):
    table = pa.table(
        {
            "id": list(range(6)),
            "lang": ["de", "en", "ü/?%", "a=b", None, "de"],
            "year": [2024, 2024, 2025, None, 1, 2025],
        }
    )
    flavor = ds.partitioning(pa.schema([table.field("lang"), table.field("year")]), flavor="hive")
    ds.write_dataset(table, tmp_path / "in", format="parquet", partitioning=flavor)
    found = read(spec_of(tmp_path)).sort_by("id")
    assert found.select(table.column_names).to_pydict() == table.to_pydict()


def test_only_the_columns_that_are_asked_for_are_there_also_none_of_the_file(tmp_path):
    tree(tmp_path / "in", "day=1/a.jsonl", "day=2/b.jsonl", "day=2/c.csv")
    table = read(spec_of(tmp_path, columns=["day", "text"]))
    assert table.column_names == ["day", "text"]
    assert read(spec_of(tmp_path, columns=["day"])).to_pydict() == {"day": [1, 1, 2, 2, 2, 2]}
    assert read(spec_of(tmp_path, columns=["id"])).column_names == ["id"]
    with pytest.raises(BadInput, match=r"'dya' \(did you mean 'day'\?\)"):
        read(spec_of(tmp_path, columns=["dya"]))


def test_leading_zeros_stay_as_they_are(tmp_path):
    tree(tmp_path / "in", "month=01/a.jsonl", "month=11/b.jsonl")
    assert read(spec_of(tmp_path)).column("month").to_pylist() == ["01", "01", "11", "11"]


def test_an_id_may_come_from_the_path(tmp_path):
    tree(tmp_path / "in", "day=1/a.jsonl")
    assert read(spec_of(tmp_path, id="day")).column("day").to_pylist() == [1, 1]


@pytest.mark.parametrize(
    ("uri", "keys"),
    [
        ("in", ["a", "b"]),
        ("in/a=1", ["b"]),
        ("in/a=1/b=2/x.jsonl", []),
        ("in/*", ["a", "b"]),
        ("in/a=*/b=2/*.jsonl", ["a", "b"]),
        ("in/a=1/b=*/x.jsonl", ["b"]),
        ("in/**/*.jsonl", ["a", "b"]),
    ],
)
def test_keys_count_below_the_folder_that_the_input_names(tmp_path, uri, keys):
    tree(tmp_path / "in", "a=1/b=2/x.jsonl")
    found = read(spec_of(tmp_path, f"{tmp_path}/{uri}"))
    assert found.column_names == ["id", "text", *keys]


@pytest.mark.parametrize(
    "names",
    [
        ["a.jsonl", "b.jsonl"],
        ["k=1/a.jsonl", "b.jsonl"],
        ["k=1/a.jsonl", "other=1/b.jsonl"],
        ["k=1/l=2/a.jsonl", "l=2/k=1/b.jsonl"],
        ["k=1/k=2/a.jsonl"],
        ["=1/a.jsonl"],
    ],
)
def test_folders_that_do_not_agree_are_no_columns_and_refused_where_they_were_promised(
    tmp_path, names
):
    tree(tmp_path / "in", *names)
    assert read(spec_of(tmp_path)).column_names == ["id", "text"]
    with pytest.raises(BadInput, match=r"input\.partitioning is hive, but .*jsonl lies in"):
        spec_of(tmp_path, partitioning="hive")


def test_partitions_can_be_left_alone_and_a_column_in_both_places_is_refused(tmp_path):
    tree(tmp_path / "in", "text=path/a.jsonl")
    with pytest.raises(BadInput, match=r"'text' is in the files and in their path.*none"):
        read(spec_of(tmp_path))
    assert read(spec_of(tmp_path, columns=["id"])).column_names == ["id"]
    alone = spec_of(tmp_path, partitioning="none")
    assert read(alone).column("text").to_pylist() == ["x", "x"]


def test_a_key_in_later_rows_of_a_jsonl_file_gives_way_to_the_path(tmp_path):
    path = tree(tmp_path / "in", "k=1/a.jsonl") / "k=1/a.jsonl"
    lines = path.read_text().splitlines()[:1] * 1100 + ['{"id": "late", "text": "x", "k": 9}']
    path.write_text("\n".join(lines))
    assert set(read(spec_of(tmp_path)).column("k").to_pylist()) == {1}


def test_the_spec_that_is_kept_says_what_was_found_and_others_keep_their_identity(tmp_path):
    tree(tmp_path / "in", "k=1/a.jsonl")
    assert spec_of(tmp_path).input.partitioning == "hive"
    plain = spec_of(tmp_path, f"{tmp_path}/in/k=1/a.jsonl")
    assert "partitioning" not in plain.model_dump(mode="json")["input"]
    assert "delimiter" not in plain.model_dump(mode="json")["input"]


def test_objects_have_partitions_too():
    spec = InputSpec(uri=["s3://bucket/data", "s3://bucket/more/k=*/x"], partitioning="hive")
    assert hive.columns(spec, "s3://bucket/data/k=a%2Fb/l=2/f.parquet") == {"k": "a/b", "l": "2"}
    assert hive.columns(spec, "s3://bucket/more/k=3/x/f.parquet") == {"k": "3"}


@pytest.mark.parametrize("name", ["k=%FF", "k=%C3", "%FF=1", "k=a%ED%A0%80"])
def test_a_folder_that_is_not_utf8_is_refused_by_name(tmp_path, name):
    tree(tmp_path / "in", f"{name}/a.jsonl", f"{name.replace('FF', '41')}/b.jsonl")
    with pytest.raises(BadInput, match=f"in/{name}/.*is not UTF-8 after percent-decoding"):
        spec_of(tmp_path)
    spec = spec_of(tmp_path, partitioning="none")
    assert read(spec).column_names == ["id", "text"]
