"""The README as its reader follows it, from the first job to a fleet."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.example import EXAMPLES
from tests.support.fleet import output_ids
from tests.support.recipe import ROOT, Recipe

pytestmark = pytest.mark.timeout(1200)


def test_the_readme_leads_from_a_first_job_to_a_fleet(
    recipe: Callable[..., Recipe], fresh_database: Callable[[], str], redis_url: str
) -> None:
    page = recipe(
        ROOT / "README.md",
        {
            "Qwen/Qwen2.5-1.5B-Instruct": EXAMPLES / "reviews" / "model",
            "postgresql://user:password@db/nightshift": fresh_database(),
            "redis://broker/0": redis_url,
        },
    )
    shutil.copytree(EXAMPLES / "shout", page.folder / "examples" / "shout")
    rows = [
        {"review_id": f"r{n}", "text": text}
        for n, text in enumerate(["It broke after a day.", "I love it.", "It is a lamp."])
    ]
    pq.write_table(pa.Table.from_pylist(rows), page.folder / "reviews.parquet")
    page.follow()
    assert output_ids(page.folder / "scored") == ["r0", "r1", "r2"]
    assert output_ids(page.folder / "by-fleet") == ["r0", "r1", "r2"]
    shown = (page.folder / "examples" / "shout" / "all.jsonl").read_text().splitlines()
    assert json.loads(shown[0])["loud"] == "A SMALL STEP"
    made = Path(page.folder / "job.yaml").read_text()
    assert "review_id" in made
