"""The vectors of an embed job as one NumPy file, and beside it a file that names their rows."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_rows

SUFFIX = ".npy"

COPY_BYTES = 4 * 2**20


def ids_uri(target: str) -> str:
    """The file beside the vectors: x.ids.parquet for x.npy."""
    return f"{target[: -len(SUFFIX)]}.ids.parquet"


def check(schema: pa.Schema, job_id: int) -> None:
    """BadInput for a job without vectors."""
    found = "embedding" in schema.names and schema.field("embedding").type
    if not found or not pa.types.is_fixed_size_list(found):
        raise BadInput(f"job {job_id} has no vectors: {SUFFIX} is for task.kind embed")


def write(
    target: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, id_column: str | None
) -> int:
    """Writes the vectors (N, dimensions) to `target` and their row_index and id, in the same order,
    to `ids_uri`; returns N. A failed row, which has no vector, is in neither file.

    The vectors wait in a temporary file, since the header before them has their number.
    """
    kind = schema.field("embedding").type
    names = ["row_index", *([id_column] if id_column else [])]
    folder = Path(target).parent
    with tempfile.TemporaryFile(dir=folder if folder.is_dir() else None) as spool:
        ids = _spooled(batches, names, spool)
        rows = part_rows.write_batches(
            ids_uri(target),
            ids,
            pa.schema([schema.field(name) for name in names]),
            "parquet",
            {},
        )
        spool.seek(0)
        descr = np.dtype(kind.value_type.to_pandas_dtype()).str

        def copy(sink: BinaryIO) -> None:
            facts = {"descr": descr, "fortran_order": False, "shape": (rows, kind.list_size)}
            np.lib.format.write_array_header_1_0(sink, facts)  # type: ignore[no-untyped-call]
            shutil.copyfileobj(spool, sink, COPY_BYTES)

        storage.write_whole(target, copy, replace=True)
    return rows


def _spooled(
    batches: Iterable[pa.RecordBatch], names: list[str], spool: BinaryIO
) -> Iterator[pa.RecordBatch]:
    """Writes the vectors to `spool`, and yields the ids of the rows that have one."""
    for batch in batches:
        kept = batch.filter(batch.column("embedding").is_valid())
        # flatten and not values: only flatten respects where a slice begins.
        spool.write(kept.column("embedding").flatten().to_numpy().tobytes())
        yield kept.select(names)
