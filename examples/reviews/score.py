"""Compare the answers of a finished job with the true labels.

    python examples/reviews/score.py examples/reviews/out

Reads the columns review_id, label and output of every Parquet file in the output directory. A row
without an output counts as wrong. Exits 1 when the accuracy is below --at-least.
"""

import argparse
import sys
from pathlib import Path

import pyarrow.dataset as ds


def score(directory: Path) -> tuple[int, int]:
    """Right answers and rows; the whole text of an answer must be the label."""
    files = sorted(str(file) for file in directory.rglob("*.parquet"))
    table = ds.dataset(files, format="parquet").to_table(columns=["review_id", "label", "output"])
    rows = table.to_pylist()
    if len({row["review_id"] for row in rows}) != len(rows):
        raise ValueError(f"{directory} has a review_id more than once")
    return sum(row["output"] == row["label"] for row in rows), len(rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Accuracy of a finished review-sentiment job.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--at-least", type=float, default=0.95)
    asked = parser.parse_args()
    right, rows = score(asked.directory)
    accuracy = right / rows if rows else 0.0
    print(f"accuracy {accuracy:.3f} ({right} of {rows})")
    sys.exit(accuracy < asked.at_least)


if __name__ == "__main__":
    main()
