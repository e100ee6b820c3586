"""examples/csv and examples/s3: what comes in, from where, and that rows that fail are rows."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pyarrow.dataset as ds
import pytest

from tests.support.example import Example
from tests.support.object_store import ObjectStore, close_client

pytestmark = pytest.mark.slow

BUCKET = "nightshift-demo"


def test_compressed_csv_is_typed_and_keeps_what_is_no_number(
    example: Callable[[str], Example],
) -> None:
    csv = example("csv")
    csv.nightshift("run", "orders.yaml")
    rows = ds.dataset(csv.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert rows.column("zip").to_pylist() == [
        "01067", "10115", "20095", None, "50667", "80331", "04109",
    ]  # fmt: skip
    assert rows.column("amount").to_pylist() == [49.9, 129.0, 310.5, None, 12.0, 75.0, 220.25]
    assert rows.column("gift").to_pylist() == [False, False, True, None, False, True, False]
    lines = rows.column("line").to_pylist()
    assert lines[1] == "1002: chair, oak to 10115, 129.00"
    assert lines[2] == "1003: table\nwith drawer to 20095, 310.50"
    assert lines[3] == "1004: desk to None, no amount"


def test_a_record_that_is_none_is_a_failed_row(example: Callable[[str], Example]) -> None:
    csv = example("csv")
    lines = [f"{at},{at:05d},lamp,1.5,true" for at in range(1500)]
    lines[1200] = "1200,too,few"
    text = "\n".join(["order,zip,item,amount,gift", *lines])
    (csv.folder / "orders.csv.gz").write_bytes(gzip.compress(text.encode()))
    csv.nightshift("run", "orders.yaml", "--batch-rows", "400", exit_code=1)
    rows = ds.dataset(csv.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert rows.num_rows == 1500
    said = {
        "kind": "bad_record",
        "message": f"{csv.folder}/orders.csv.gz row 1201: 3 fields in place of 5",
    }
    assert rows.column("error").to_pylist() == [None] * 1200 + [said] + [None] * 299
    csv.nightshift("verify", "orders")


def test_folders_of_keys_are_columns(example: Callable[[str], Example]) -> None:
    csv = example("csv")
    csv.nightshift("run", "by-day.yaml")
    rows = ds.dataset(csv.folder / "out-by-day", format="parquet").to_table().sort_by("order")
    assert rows.column("day").to_pylist() == ["2024-03-01"] * 3 + ["2024-03-02"] * 2
    assert rows.column("country").to_pylist() == ["DE", "DE", "AT", "DE", "DE"]
    assert rows.column("line").to_pylist()[2] == "3: table to 1010, AT, no amount"
    assert "2024-03-02" in csv.nightshift("sample", "by-day", "-n", "5")


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    found = ObjectStore()
    yield found
    found.close()


def test_a_folder_of_objects_goes_in_and_lines_come_out(
    example: Callable[[str], Example], store: ObjectStore
) -> None:
    s3 = example("s3")
    s3.environment |= store.environment
    subprocess.run(
        [sys.executable, "make_documents.py", f"s3://{BUCKET}/documents", "--rows", "11000"],
        cwd=s3.folder,
        env=s3.environment,
        check=True,
    )
    s3.nightshift("run", "job.yaml")
    s3.nightshift("collect", "documents", "--to", f"s3://{BUCKET}/all.jsonl")
    client = store.filesystem()
    names = [name.rpartition("/")[2] for name in client.ls(f"{BUCKET}/counted", detail=False)]
    parts = [name for name in names if name.startswith("part-")]
    assert len(parts) == 6
    assert sorted(set(names) - set(parts)) == ["_manifest.json", "_owner.json"]
    rows = [json.loads(line) for line in client.cat_file(f"{BUCKET}/all.jsonl").splitlines()]
    assert [row["id"] for row in rows] == [
        f"{file:02d}-{row:06d}" for file in range(3) for row in range(11_000)
    ]
    assert all(0 < row["words"] <= 30 and row["error"] is None for row in rows)
    close_client(client)
