"""examples/judge as its README says: a job, samples of it, a judge over it, and where all came from."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from common.formats import part_metadata
from common.provenance import code_version
from common.spec import parse_spec
from common.spec.file import read_yaml
from tests.integration.fleet import Fleet, logs

EXAMPLE = Path(__file__).parents[2] / "examples" / "judge"
FAILED = {"q057", "q123"}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    shutil.copytree(EXAMPLE, tmp_path / "judge", ignore=shutil.ignore_patterns("__pycache__"))
    found = Fleet(tmp_path / "judge")
    yield found
    found.end()


def answers() -> dict[str, bool]:
    """Each question that is a sum, and whether it needs no carry."""
    rows = [json.loads(line) for line in (EXAMPLE / "questions.jsonl").read_text().splitlines()]
    sums = {row["id"]: re.findall(r"\d+", row["question"]) for row in rows}
    return {
        key: all(int(a) + int(b) < 10 for a, b in zip(one[::-1], other[::-1], strict=False))
        for key, (one, other) in ((key, found) for key, found in sums.items() if len(found) == 2)
    }


def test_the_judge_gives_the_score_that_the_answers_deserve(fleet: Fleet) -> None:
    ran = fleet.command("run", "job.yaml")
    assert ran.returncode == 1, ran.stderr + logs(fleet.folder)
    right = answers()
    assert len(right) == 198

    done = fleet.command("judge", "sums", "--spec", "judge.yaml", "--json")
    assert done.returncode == 0, done.stderr + logs(fleet.folder)
    said: dict[str, Any] = json.loads(done.stdout)
    share = sum(right.values()) / len(right)
    assert said["mean"] == pytest.approx(share)
    assert said["standard_error"] == pytest.approx((share * (1 - share) / 197) ** 0.5)
    assert said["standard_error_here"] == 0
    assert (said["answered"], said["judged"], said["scored"]) == (198, 198, 198)
    assert said["answers"] == {"0": 198 - sum(right.values()), "1": sum(right.values())}

    verdicts = ds.dataset(fleet.folder / "verdicts", format="parquet").to_table().to_pylist()
    assert {row["id"]: row["score"] == 1 for row in verdicts} == right
    assert {row["id"] for row in verdicts}.isdisjoint(FAILED)
    first = min((fleet.folder / "verdicts").glob("part-*"))
    provenance = part_metadata(str(first))
    assert (provenance["model"], provenance["code_version"]) == ("sums:check", code_version())

    again = fleet.command("judge", "sums", "--spec", "judge.yaml")
    assert again.returncode == 0, again.stderr
    assert f"{share:.4g} ± {said['standard_error']:.3g} (standard error)" in again.stdout

    shown = fleet.command("sample", "sums", "-n", "200", "--html", "page.html")
    assert shown.returncode == 0, shown.stderr
    page = (fleet.folder / "page.html").read_text()
    assert page.count('<article class="failed">') == 2
    assert "&lt;b&gt;What&lt;/b&gt; is love?" in page

    table = fleet.command("collect", "sums-judge", "--manifest", "--to", "manifest.parquet")
    assert table.returncode == 0, table.stderr
    parts = pq.read_table(fleet.folder / "manifest.parquet").to_pylist()
    assert sum(part["rows"] for part in parts) == 198


def test_the_model_judge_of_the_page_is_a_spec() -> None:
    data = read_yaml(EXAMPLE / "model-judge.yaml")
    assert isinstance(data, dict)
    filled = {**data, "input": {"uri": "judged.parquet", "id": "id"}}
    assert parse_spec(filled, "test").task.columns == {"question", "output"}
