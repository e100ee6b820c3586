"""For each note the one that is nearest to it by the cosine of their vectors.

    python nearest.py notes.npy

Prints the id of each note with that of its neighbour. The ids lie beside the vectors.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


def main() -> None:
    """Command line."""
    path = Path(sys.argv[1])
    vectors = np.load(path, mmap_mode="r")
    ids = pq.read_table(path.with_suffix(".ids.parquet")).column("id").to_pylist()
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -1)
    for name, nearest in zip(ids, likeness.argmax(-1), strict=True):
        print(name, ids[nearest])


if __name__ == "__main__":
    main()
