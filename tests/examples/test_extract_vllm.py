"""examples/extract: JSON of a schema from a real model, as typed columns."""

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds

from tests.support.example import Example


def test_reviews_become_typed_columns(example: Callable[[str], Example]) -> None:
    example("reviews")  # its model
    extract = example("extract")
    extract.nightshift("run", "job.yaml")
    rows = ds.dataset(extract.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert rows.num_rows == 24
    assert rows.column("error").null_count == 24
    kinds = pa.struct([("sentiment", pa.string()), ("stars", pa.int64())])
    assert rows.schema.field("parsed").type == kinds
    found = rows.column("parsed").to_pylist()
    assert found == [json.loads(text) for text in rows.column("output").to_pylist()]
    labels = rows.column("label").to_pylist()
    right = sum(one["sentiment"] == label for one, label in zip(found, labels, strict=True))
    assert right >= 20
    extract.nightshift("verify", "extract")
    extract.nightshift("collect", "extract", "--to", "all.jsonl")
    lines = (extract.folder / "all.jsonl").read_text().splitlines()
    assert [json.loads(line)["parsed"] for line in lines] == found
