"""The share of reviews whose label is the true one.

python score.py data/reviews.parquet out
"""

import sys

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq


def main() -> None:
    """Command line."""
    truth = pq.read_table(sys.argv[1], columns=["review_id", "label"])
    found = ds.dataset(sys.argv[2], format="parquet").to_table(columns=["review_id", "label"])
    both = truth.join(found, "review_id", right_suffix="_found")
    right = pc.sum(pc.equal(both.column("label"), both.column("label_found"))).as_py()
    print(f"{right / truth.num_rows:.4f} of {truth.num_rows:,} reviews have the right label")


if __name__ == "__main__":
    main()
