"""examples/sentiment: a classifier in PyTorch on a CPU, over reviews it has never seen."""

import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.example import EXAMPLES, Example

pytestmark = pytest.mark.slow

ROWS = 400


def test_reviews_get_their_labels(example: Callable[[str], Example]) -> None:
    sentiment = example("sentiment")
    data = sentiment.folder / "data" / "reviews.parquet"
    maker = EXAMPLES / "reviews" / "make_reviews.py"
    subprocess.run([sys.executable, maker, "--rows", str(ROWS), "--out", data], check=True)
    sentiment.nightshift("run", "job.yaml")
    table = ds.dataset(sentiment.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert table.column_names == [
        "row_index",
        "review_id",
        "product",
        "label",
        "probability",
        "probabilities",
        "prompt_tokens",
        "answered_by",
        "error",
    ]
    labels = [(name, pa.float32()) for name in ("negative", "neutral", "positive")]
    assert table.schema.field("probabilities").type.equals(pa.struct(labels))
    rows = table.to_pylist()
    assert len(rows) == ROWS
    assert all(abs(sum(row["probabilities"].values()) - 1) < 1e-5 for row in rows)
    assert all(row["probability"] == row["probabilities"][row["label"]] for row in rows)
    said = subprocess.run(
        [sys.executable, "score.py", data, "out"],
        cwd=sentiment.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert float(said.split()[0]) > 0.93, said
    sentiment.nightshift("verify", "sentiment")
