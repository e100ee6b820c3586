"""examples/shout: a plain function over JSON lines, looked at in every way."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds

from tests.support.example import Example


def test_a_function_runs_over_every_line(example: Callable[[str], Example]) -> None:
    shout = example("shout")
    shout.nightshift("run", "job.yaml")
    rows = ds.dataset(shout.folder / "out", format="parquet").to_table().sort_by("row_index")
    lines = (shout.folder / "rows.jsonl").read_text().splitlines()
    assert rows.column("row_index").to_pylist() == list(range(len(lines)))
    assert rows.column("loud").to_pylist()[0] == "A SMALL STEP"
    assert rows.column("words").to_pylist()[0] == 3
    assert rows.column("error").null_count == len(lines)
    shout.nightshift("verify", "shout")
    assert "A SMALL STEP" in shout.nightshift("sample", "shout", "-n", str(len(lines)))
    shout.nightshift("collect", "shout", "--to", "all.jsonl")
    collected = Path(shout.folder / "all.jsonl").read_text().splitlines()
    assert len(collected) == len(lines)
