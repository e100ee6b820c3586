"""examples/judge as its README says: a job, samples of it, a judge over it, and where all came from."""

import json
import re
from collections.abc import Callable

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nightshift.common.formats.parquet.read import part_metadata
from nightshift.common.provenance import code_version
from nightshift.common.spec import parse_spec
from nightshift.common.spec.parse import read_yaml
from tests.support.example import EXAMPLES, Example

EXAMPLE = EXAMPLES / "judge"


def answers() -> dict[str, bool]:
    """Each question that is a sum, and whether it needs no carry."""
    rows = [json.loads(line) for line in (EXAMPLE / "questions.jsonl").read_text().splitlines()]
    sums = {row["id"]: re.findall(r"\d+", row["question"]) for row in rows}
    return {
        key: all(int(a) + int(b) < 10 for a, b in zip(one[::-1], other[::-1], strict=False))
        for key, (one, other) in ((key, found) for key, found in sums.items() if len(found) == 2)
    }


@pytest.mark.slow
def test_the_judge_gives_the_score_that_the_answers_deserve(
    example: Callable[[str], Example],
) -> None:
    sums = example("judge")
    sums.nightshift("run", "job.yaml", exit_code=1)
    right = answers()
    assert len(right) == 198

    said = json.loads(sums.nightshift("judge", "sums", "--spec", "judge.yaml", "--json"))
    share = sum(right.values()) / len(right)
    assert said["mean"] == pytest.approx(share)
    assert said["standard_error"] == pytest.approx((share * (1 - share) / 197) ** 0.5)
    assert said["standard_error_here"] == 0
    assert (said["answered"], said["judged"], said["scored"]) == (198, 198, 198)
    assert said["answers"] == {"0": 198 - sum(right.values()), "1": sum(right.values())}

    verdicts = ds.dataset(sums.folder / "out-verdicts", format="parquet").to_table().to_pylist()
    assert {row["id"]: row["score"] == 1 for row in verdicts} == right
    first = min((sums.folder / "out-verdicts").glob("part-*"))
    provenance = part_metadata(str(first))
    assert (provenance["model"], provenance["code_version"]) == ("sums:check", code_version())

    again = sums.nightshift("judge", "sums", "--spec", "judge.yaml")
    assert f"{share:.4g} ± {said['standard_error']:.3g} (standard error)" in again

    sums.nightshift("sample", "sums", "-n", "200", "--html", "page.html")
    page = (sums.folder / "page.html").read_text()
    assert page.count('<article class="failed">') == 2
    assert "&lt;b&gt;What&lt;/b&gt; is love?" in page

    sums.nightshift("collect", "sums-judge", "--manifest", "--to", "manifest.parquet")
    parts = pq.read_table(sums.folder / "manifest.parquet").to_pylist()
    assert sum(part["rows"] for part in parts) == 198


def test_the_model_judge_of_the_page_is_a_spec() -> None:
    data = read_yaml(EXAMPLE / "model-judge.yaml")
    assert isinstance(data, dict)
    filled = {**data, "input": {"uri": "rows.parquet", "id": "id"}}
    assert parse_spec(filled, "test").task.columns == {"question", "output"}
