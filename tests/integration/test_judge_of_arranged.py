"""A judge reads what an arranged job read."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.formats.jsonl import examine
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.producer.judge.judge import prepare
from nightshift.producer.judge.scores import Scale
from tests.integration.test_arranged_jobs import Arranged, submit_late_key
from tests.integration.test_retry import moody
from tests.support.fleet import function_spec

pytestmark = pytest.mark.slow


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Arranged:
    return Arranged(ledger, tmp_path)


@pytest.fixture
def judge(site: Arranged) -> Path:
    """The spec of a judge that writes to `verdicts`."""
    spec = function_spec("judge", site.folder, site.folder / "verdicts")
    del spec["input"]
    file = site.folder / "judge.yaml"
    file.write_text(json.dumps(spec))
    return file


def test_a_judge_reads_the_copy(site: Arranged, judge: Path) -> None:
    site.submit_files(("a.jsonl", 25))
    site.work(moody(3))
    (site.folder / "in" / "a.jsonl").unlink()
    _, judged = prepare(site.ledger, site.job, judge, Scale(), Settings(), count=None, seed=0)
    assert judged.rows == 22
    found = pq.read_table(site.folder / "verdicts" / "_judged" / "rows.judged").to_pylist()
    assert sorted(row["judged_row_index"] for row in found) == [n for n in range(25) if n % 10 != 3]
    assert {(row["id"], row["text"]) for row in found} == {
        (row_id, f"say {row_id}") for row_id in site.ids if not row_id.endswith("3")
    }


@pytest.mark.parametrize("arrange", ["prefix", "none"])
def test_a_value_of_the_input_that_does_not_fit_its_column_is_refused_for_a_judge(
    site: Arranged, judge: Path, monkeypatch: pytest.MonkeyPatch, arrange: str
) -> None:
    monkeypatch.setattr(examine, "HEAD_ROWS", 5)
    submit_late_key(site, arrange)
    assert site.work(moody()) is JobState.COMPLETED
    with pytest.raises(BadInput, match=r"the judge needs the input .* has the key 'newkey'"):
        prepare(site.ledger, site.job, judge, Scale(), Settings(), count=None, seed=0)
