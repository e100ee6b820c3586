"""`nightshift judge`: which rows a judge reads, what it may ask for, and its verdict."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput, Permanent
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.producer.judge import verdict
from nightshift.producer.judge.judge import prepare, score
from nightshift.producer.judge.judged_rows import JudgedSample
from nightshift.producer.judge.scores import Scale
from nightshift.producer.judge.verdict import Verdict
from nightshift.producer.reaper import finish
from nightshift.producer.submit.submit import submit
from nightshift.producer.verify.verify import verify
from tests.integration.test_look import Work
from tests.integration.test_retry import Site, moody
from tests.support.fleet import Fleet, function_spec, logs, write_rows

JUDGES = """
def judge(rows):
    return [
        {"score": 1.0 if row["loud"] == row["text"].upper() else 0.0, "row": row["judged_row_index"]}
        for row in rows
    ]
"""


class Bench:
    """A finished job, and a judge's spec beside it."""

    def __init__(self, site: Site, form: str = "parquet", batch: int = 10) -> None:
        self.site = site
        site.submit(form, batch=batch)
        site.work(moody(3))
        self.spec = function_spec("judge", site.folder, site.folder / "verdicts")
        del self.spec["input"]

    def prepare(self, count: int | None = None, seed: int = 0, **sections: Any) -> Any:
        path = self.site.folder / "judge.yaml"
        path.write_text(json.dumps({**self.spec, **sections}))
        return prepare(
            self.site.ledger, self.site.job, path, Scale(), Settings(), count=count, seed=seed
        )

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pq.read_table(self.file).to_pylist()
        return found

    @property
    def file(self) -> Path:
        return self.site.folder / "verdicts" / "_judged" / "rows.judged"


@pytest.fixture
def bench(ledger: Ledger, tmp_path: Path) -> Bench:
    return Bench(Site(ledger, tmp_path))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_judge_reads_every_answered_row_with_its_input(
    ledger: Ledger, tmp_path: Path, form: str
) -> None:
    bench = Bench(Site(ledger, tmp_path), form)
    spec, sample = bench.prepare()
    assert sample == JudgedSample(bench.site.job_id, 0, 36, 36, 0)
    assert spec.input.uris == [str(bench.file)]
    rows = bench.rows()
    assert [row["judged_row_index"] for row in rows] == [n for n in range(40) if n % 10 != 3]
    for row in rows:
        assert row == {
            "judged_row_index": row["judged_row_index"],
            "id": f"a-{row['judged_row_index']}",
            "text": f"say a-{row['judged_row_index']}",
            "loud": f"SAY A-{row['judged_row_index']}",
        }


@pytest.mark.parametrize("count", [None, 7])
def test_a_batch_whose_rows_all_failed_is_left_out(
    ledger: Ledger, tmp_path: Path, count: int | None
) -> None:
    bench = Bench(Site(ledger, tmp_path), batch=1)
    assert bench.prepare(count)[1].population == 36
    assert {row["judged_row_index"] % 10 for row in bench.rows()}.isdisjoint({3})
    assert len(bench.rows()) == (count or 36)


def test_the_same_seed_draws_the_same_rows_and_writes_nothing_again(bench: Bench) -> None:
    spec, sample = bench.prepare(7, 1)
    assert (sample.rows, sample.population, sample.seed) == (7, 36, 1)
    rows = bench.rows()
    assert len({row["id"] for row in rows}) == 7
    bench.prepare(7, 2)
    assert bench.rows() != rows
    assert bench.prepare(36, 5)[1] == bench.prepare()[1]
    bench.prepare(7, 1)
    assert bench.rows() == rows
    submit(bench.site.ledger, spec, Settings())
    before = bench.file.stat().st_mtime_ns
    assert bench.prepare(7, 1)[1] == sample
    assert bench.file.stat().st_mtime_ns == before


def test_rows_of_a_drained_batch_come_in_the_order_of_the_dataset(
    ledger: Ledger, tmp_path: Path
) -> None:
    work = Work(ledger, tmp_path)
    work.to_the_end()
    path = tmp_path / "judge.yaml"
    template = "{{ key }} {{ words }} {{ output }} {{ finish_reason }}"
    spec = {
        "name": "judge",
        "task": {"kind": "generate", "prompt": template},
        "engine": {"backend": "vllm", "model": "M"},
        "output": {"uri": str(tmp_path / "verdicts"), "columns": ["judged_output", "words"]},
    }
    path.write_text(json.dumps(spec))
    made, sample = prepare(ledger, work.job, path, Scale(), Settings(), count=None, seed=0)
    assert sample.population == 37
    assert made.passed_columns == ["key", "judged_output", "words"]
    rows = pq.read_table(made.input.uris[0]).to_pylist()
    assert [row["judged_row_index"] for row in rows] == [
        index for index in range(40) if index not in (3, 17, 30)
    ]
    for row in rows:
        index = row["judged_row_index"]
        assert row == {
            "judged_row_index": index,
            "key": f"k{index}",
            "words": f"words of row {index}",
            "output": f"answer {index}",
            "judged_output": f"answer {index}",
            "finish_reason": "stop",
        }
    assert submit(ledger, made, Settings()).rows == 37


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"input": {"uri": "x"}}, "a judge has no input of its own"),
        (
            {
                "task": {"kind": "generate", "prompt": "{{ lout }}"},
                "engine": {"backend": "vllm", "model": "M"},
            },
            r"the template task.prompt, '.*', names the column 'lout' \(did you mean 'loud'\?\)",
        ),
        ({"output": {"uri": "y", "columns": ["output"]}}, "'output' is reserved"),
        ({"task": {"kind": "dance"}}, "task"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_before_anything_is_written(
    bench: Bench, sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        bench.prepare(**sections)
    assert not bench.file.exists()


def test_an_output_that_is_another_verdict_is_refused(bench: Bench) -> None:
    spec, _ = bench.prepare(7)
    job_id = submit(bench.site.ledger, spec, Settings()).job_id
    again = bench.prepare(7)[0]
    assert not submit(bench.site.ledger, again, Settings()).is_new
    with pytest.raises(
        BadInput, match=rf"job {job_id} \(judge\), which judged 7 of 36 rows of job 1, seed 0"
    ):
        bench.prepare(8)
    bench.site.retry()
    bench.site.work(moody())
    with pytest.raises(BadInput, match="which judged older answers of job 1"):
        bench.prepare(7)
    with pytest.raises(BadInput, match=r"the output of job 1 \(moody\), whose spec differs"):
        bench.prepare(output={"uri": str(bench.site.folder / "out")})
    bench.file.unlink()
    with pytest.raises(BadInput, match=rf"which job {job_id} judges, is gone"):
        bench.prepare(7)


def test_what_cannot_be_judged_is_said(bench: Bench) -> None:
    (bench.site.folder / "in" / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match="needs the input of job 1 again"):
        bench.prepare()
    part = min((bench.site.folder / "out").glob("part-*"))
    part.unlink()
    with pytest.raises(Permanent, match="is gone"):
        bench.prepare()
    with bench.site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET closed_at = NULL, state = 'running'")
    with pytest.raises(BadInput, match="wants a job that is finished"):
        bench.prepare()


def test_a_verdict_counts_scores_answers_without_one_and_failed_rows(bench: Bench) -> None:
    spec, sample = bench.prepare(30)
    site = bench.site
    site.job_id = submit(site.ledger, spec, Settings()).job_id

    def judges(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(row["id"].endswith("5") for row in rows):
            raise ValueError("no opinion")
        return [{"score": "good" if row["id"].endswith("7") else row["id"][-1]} for row in rows]

    site.run(judges)
    finish.finish(site.ledger, site.job_id)
    assert verify(site.ledger, site.job) == []
    column, scores = score(site.ledger, site.job, Scale(words={"good": 10.0}), sample.population)
    ids = [int(row["id"][-1]) for row in bench.rows()]
    expected = [10.0 if each == 7 else each for each in ids if each != 5]
    assert (column, scores.count, scores.failed) == ("score", len(expected), ids.count(5))
    assert scores.mean == pytest.approx(sum(expected) / len(expected))
    assert scores.answers["good"] == ids.count(7)
    strict = score(site.ledger, site.job, Scale(), sample.population)[1]
    assert (strict.count, strict.unscored) == (len(expected) - ids.count(7), ids.count(7))
    said = Verdict(sample, site.job, 1, column, scores).as_json()
    assert said["interval_95"][0] < said["mean"] < said["interval_95"][1]
    assert json.loads(json.dumps(said))["failed"] == ids.count(5)
    assert verdict.render(Verdict(sample, site.job, 1, column, scores))


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Callable[..., Fleet]]:
    started: list[Fleet] = []

    def start() -> Fleet:
        found = Fleet(
            tmp_path,
            NIGHTSHIFT_DATABASE_URL=database_url,
            NIGHTSHIFT_BROKER_URL=redis_url,
            NIGHTSHIFT_ALLOWED_MODULES="rules,judges",
            NIGHTSHIFT_CALLABLE_PATHS=str(tmp_path),
            # The one slot goes from the job's function to the judge's.
            NIGHTSHIFT_ENGINE_IDLE_SECONDS="0.5",
        )
        (tmp_path / "judges.py").write_text(JUDGES)
        started.append(found)
        return found

    yield start
    for each in started:
        each.end()


@pytest.mark.slow
def test_on_a_fleet_a_judge_is_submitted_and_waited_for(
    fleet: Callable[..., Fleet], ledger: Ledger
) -> None:
    here = fleet()
    write_rows(here.folder / "in", [("a.parquet", 60)])
    spec = here.spec(function_spec("shout", here.folder / "in", here.folder / "out"))
    judge = function_spec("judge", here.folder, here.folder / "verdicts")
    judge["engine"]["callable"] = "judges:judge"
    del judge["input"]
    path = str(here.spec(judge))
    here.reaper()
    here.worker()
    assert here.command("submit", str(spec)).returncode == 0
    assert here.command("wait", "shout").returncode == 0, logs(here.folder)
    done = here.command("judge", "shout", "--spec", path, "--sample", "20", "--json")
    assert done.returncode == 0, done.stderr + logs(here.folder)
    said = json.loads(done.stdout)
    assert (said["mean"], said["scored"], said["answered"]) == (1.0, 20, 60)
    assert (said["job"], said["judge"], said["status"]) == (1, 2, "completed")
    again = here.command("judge", "shout", "--spec", path, "--sample", "20")
    assert again.returncode == 0, again.stderr
    assert "1 ± 0 (standard error)" in again.stdout
    with ledger.transaction() as connection:
        assert len(job_pace.listed(connection)) == 2
