"""The README as its reader follows it, from the first job to a fleet."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.example import EXAMPLES
from tests.support.recipe import ROOT, Recipe

pytestmark = pytest.mark.timeout(1200)


def test_the_readme_leads_from_a_first_job_to_a_fleet(
    recipe: Callable[..., Recipe],
    fresh_database: Callable[[], str],
    redis_url: str,
    tmp_path: Path,
) -> None:
    mine = tmp_path / "my-reviews"
    mine.mkdir()
    page = recipe(
        ROOT / "README.md",
        {
            "Qwen/Qwen2.5-1.5B-Instruct": EXAMPLES / "reviews" / "model",
            "postgresql://user:password@db/nightshift": fresh_database(),
            "redis://broker/0": redis_url,
            "~/my-reviews": mine,
        },
    )
    shutil.copytree(EXAMPLES / "shout", page.folder / "examples" / "shout")
    rows = [
        {"review_id": f"r{n}", "text": text}
        for n, text in enumerate(["It broke after a day.", "I love it.", "It is a lamp."])
    ]
    pq.write_table(pa.Table.from_pylist(rows), mine / "reviews.parquet")
    page.follow()
    for output in ("scored", "by-fleet"):
        found = ds.dataset(mine / output, format="parquet").to_table().sort_by("row_index")
        assert found.column("review_id").to_pylist() == ["r0", "r1", "r2"]
        assert set(found.column("output").to_pylist()) <= {"negative", "positive", "neutral"}
    shown = (page.folder / "examples" / "shout" / "all.jsonl").read_text().splitlines()
    assert json.loads(shown[0])["loud"] == "A SMALL STEP"
    assert "review_id" in (mine / "job.yaml").read_text()
