"""Writes documents as Parquet files below a URI: `make_documents.py s3://bucket/prefix`."""

import argparse
import random

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = [
    "night",
    "shift",
    "row",
    "batch",
    "lease",
    "part",
    "ledger",
    "worker",
    "engine",
    "window",
    "dataset",
    "job",
]


def documents(file: int, rows: int) -> pa.Table:
    chance = random.Random(file)
    return pa.table(
        {
            "id": [f"{file:02d}-{row:06d}" for row in range(rows)],
            "text": [" ".join(chance.choices(WORDS, k=chance.randint(1, 30))) for _ in range(rows)],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("--files", type=int, default=3)
    parser.add_argument("--rows", type=int, default=25_000, help="rows a file")
    given = parser.parse_args()
    store, path = fsspec.url_to_fs(given.uri.rstrip("/"))
    store.makedirs(path, exist_ok=True)
    for file in range(given.files):
        with store.open(f"{path}/documents-{file:02d}.parquet", "wb") as sink:
            pq.write_table(documents(file, given.rows), sink)


if __name__ == "__main__":
    main()
