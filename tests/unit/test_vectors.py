"""Vectors as one NumPy file: the rows that have one, in order, with their ids beside it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.producer.results import vectors


def batches(dtype: str) -> tuple[list[pa.RecordBatch], np.ndarray]:
    """Two record batches, one of them a slice, with three rows that failed."""
    numbers = np.arange(30, dtype=dtype).reshape(10, 3)
    failed = np.array([row in (0, 4, 9) for row in range(10)])
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(numbers.reshape(-1)), 3, mask=pa.array(failed)
    )
    table = pa.table(
        {
            "row_index": pa.array(range(10), pa.int64()),
            "id": [f"r{row}" for row in range(10)],
            "embedding": column,
            "prompt_tokens": pa.array([1] * 10, pa.int32()),
        }
    )
    whole = table.to_batches()[0]
    return [whole.slice(0, 3), whole.slice(3)], numbers[~failed]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("id_column", ["id", None])
def test_the_file_is_numpys_own_and_the_ids_are_its_rows(
    dtype: str, id_column: str | None, tmp_path: Path
) -> None:
    given, wanted = batches(dtype)
    target = tmp_path / "deep" / "x.npy"
    assert vectors.write(str(target), given, given[0].schema, id_column) == 7
    found = np.load(target, mmap_mode="r")
    assert found.dtype == np.dtype(dtype)
    assert np.array_equal(found, wanted)
    ids = pq.read_table(tmp_path / "deep" / "x.ids.parquet")
    assert ids.column("row_index").to_pylist() == [1, 2, 3, 5, 6, 7, 8]
    assert ids.column_names == ["row_index", *([id_column] if id_column else [])]


def test_a_job_without_a_vector_gives_an_empty_array(tmp_path: Path) -> None:
    given, _ = batches("float32")
    target = tmp_path / "x.npy"
    assert vectors.write(str(target), [], given[0].schema, "id") == 0
    assert np.load(target).shape == (0, 3)


def test_a_job_that_embeds_nothing_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="job 7 has no vectors"):
        vectors.check(pa.schema([("row_index", pa.int64()), ("output", pa.string())]), 7)
