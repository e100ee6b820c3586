"""Arranged jobs: run, fail, retry, grow and are read as any other job, with the rows of the dataset."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.formats.jsonl import examine
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.queries import job_facts, live_parts
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.control import lost_parts
from nightshift.producer.control.deletion import delete
from nightshift.producer.estimate import estimate_report
from nightshift.producer.estimate.estimate import estimate
from nightshift.producer.estimate.pilot import submit_pilot
from nightshift.producer.reaper import output_directory, sweep_copies
from nightshift.producer.results import sample as results
from nightshift.producer.results.collect import collect
from nightshift.producer.submit.arrange import copy
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import Submitted, submit
from tests.integration.test_growth import Grown
from tests.integration.test_retry import moody
from tests.support.fleet import function_spec

pytestmark = pytest.mark.slow


class Arranged(Grown):
    """A job that grows whose rows are sorted by their text, which is not the order of the dataset."""

    def submit_again(self, arrange: str = "prefix", **of_input: Any) -> Submitted:
        data = function_spec(
            "moody",
            self.folder / "in",
            self.folder / "out",
            batch={"rows": 10, "arrange": arrange},
        )
        data["input"] |= {"columns": ["text"], **of_input}
        done = submit(self.ledger, parse_spec(data, "test"), Settings())
        self.job_id = done.job_id
        return done

    @property
    def copies(self) -> list[Path]:
        return sorted((self.folder / "out" / "_input").glob("*.arranged"))

    def batches(self) -> list[RowRanges]:
        return [row.rows for row in self.ask("SELECT rows FROM batches ORDER BY seq, id")]

    def collected(self, **how: Any) -> list[dict[str, Any]]:
        target = self.folder / "collected.parquet"
        collect(self.ledger, self.job, str(target), force=True, **how)
        rows: list[dict[str, Any]] = pq.read_table(target).to_pylist()
        return rows


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Arranged:
    return Arranged(ledger, tmp_path)


def test_failed_rows_are_those_of_the_dataset_and_run_again(site: Arranged) -> None:
    submitted = site.submit_files(("a.parquet", 25), ("b.jsonl", 17))
    assert ["batch.arrange" in remark for remark in submitted.remarks] == [True]
    assert list(site.batches()[0]) == [0, 1, 10, 11, 12, 13, 14, 15, 16, 17]
    site.work(moody(3))
    wrong = {at for at, row_id in enumerate(site.ids) if row_id.endswith("3")}
    assert site.agrees().keys() == wrong
    assert [row["id"] for row in site.output()] == site.ids
    assert site.retry() == len(wrong)
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}
    rows = site.collected()
    assert [row["row_index"] for row in rows] == list(range(42))
    assert [(row["id"], row["loud"]) for row in rows] == [
        (row_id, f"SAY {row_id.upper()}") for row_id in site.ids
    ]


def test_a_sample_of_a_job_that_runs_is_drawn_from_some_of_its_batches(
    site: Arranged, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit_files(("a.parquet", 95))
    site.run(moody(3), most=6)
    site.agrees()
    with site.ledger.transaction() as connection:
        done = set(live_parts.finished_rows(connection, site.job_id))
        some = set(live_parts.finished_rows(connection, site.job_id, 2))
        assert live_parts.count_finished(connection, site.job_id) == len(done) == 60
    assert len(some) == 20
    assert some < done
    monkeypatch.setattr(results, "MOST_ROWS", 10)
    drawn = results.sample(site.ledger, site.job, 5, 0)
    assert drawn.total == 60
    assert {row["row_index"] for row in drawn.rows} < some
    failed = results.sample(site.ledger, site.job, 100, 0, errors_only=True)
    assert {row["row_index"] for row in failed.rows} == {at for at in done if at % 10 == 3}
    site.work(moody())
    with site.ledger.transaction() as connection:
        assert live_parts.finished_rows(connection, site.job_id, 1).ranges == ((0, 95),)


def submit_late_key(site: Arranged, arrange: str) -> None:
    """A job whose last row of 25 has a key in `meta` that no row before it has."""
    (site.folder / "in").mkdir()
    metas = [{"a": at} for at in range(24)] + [{"a": 24, "newkey": "N"}]
    rows = [{"id": f"a-{at}", "text": f"t{at}", "meta": meta} for at, meta in enumerate(metas)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (site.folder / "in" / "a.jsonl").write_text(lines)
    site.submit_again(arrange=arrange)


def test_columns_of_the_input_are_read_from_the_copy(site: Arranged) -> None:
    site.submit_files(("a.jsonl", 25))
    site.work(moody(3))
    (site.folder / "in" / "a.jsonl").unlink()
    rows = site.collected(inputs=["text"])
    assert [row["text"] for row in rows] == [f"say {row_id}" for row_id in site.ids]


@pytest.mark.parametrize("arrange", ["prefix", "none"])
def test_a_value_of_the_input_that_does_not_fit_its_column_is_null_beside_the_output_and_said(
    site: Arranged, monkeypatch: pytest.MonkeyPatch, arrange: str
) -> None:
    """The job ran without this column, so the row has its answer."""
    monkeypatch.setattr(examine, "HEAD_ROWS", 5)
    submit_late_key(site, arrange)
    assert site.work(moody()) is JobState.COMPLETED
    said: list[str] = []
    found = site.collected(inputs=["meta", "text"], remark=said.append)
    assert [(row["meta"], row["text"]) for row in found[23:]] == [({"a": 23}, "t23"), (None, "t24")]
    assert {row["error"] for row in found} == {None}
    assert len(said) == 1
    assert said[0].startswith("1 value of the input is null, the first since ")
    assert "column 'meta' has the key 'newkey'" in said[0]


def test_each_generation_is_arranged_by_itself(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    assert site.done() is JobState.COMPLETED
    site.come(("b.jsonl", 30), ("c.parquet", 12))
    taken = site.append()
    assert (taken.appended.rows, taken.appended.generation) == (42, 2)
    assert len(site.copies) == 2
    assert site.done() is JobState.COMPLETED
    assert site.agrees() == {}
    assert [row["id"] for row in site.collected()] == site.ids
    assert sorted(site.follow()) == sorted(site.ids)
    assert len(site.copies) == 2, "a retry needs them"
    later = [row for rows in site.batches()[3:] for row in rows]
    assert sorted(later) == list(range(25, 67))
    assert later != sorted(later)


def test_a_second_submit_makes_a_copy_again_that_is_gone(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    (copy,) = site.copies
    before = copy.read_bytes()
    copy.unlink()
    site.work(moody())
    assert {kind for kind, _ in site.agrees().values()} == {"batch_dead"}
    assert not site.submit_again().is_new
    assert copy.read_bytes() == before
    assert site.retry(dead=True) == 25
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_submit_that_was_cut_off_leaves_a_copy_that_the_next_one_takes(site: Arranged) -> None:
    def cut_off(connection: Connection, job_id: int) -> None:
        raise KeyboardInterrupt

    site.come(("a.parquet", 25))
    data = function_spec("moody", site.folder / "in", site.folder / "out", batch={"rows": 10})
    data["batch"]["arrange"] = "prefix"
    data["input"]["columns"] = ["text"]
    with pytest.raises(KeyboardInterrupt):
        submit(site.ledger, parse_spec(data, "test"), Settings(), Asked(within=cut_off))
    (copy,) = site.copies
    made = copy.stat().st_mtime_ns
    site.submit_again()
    assert site.copies == [copy]
    assert copy.stat().st_mtime_ns == made
    assert site.done() is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_finish_that_sweeps_leaves_the_copy_that_an_append_is_writing(
    site: Arranged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once removed the begun file, and the append failed."""
    site.submit_files(("a.parquet", 25))
    assert site.done() is JobState.COMPLETED
    site.come(("b.jsonl", 30))
    in_order, sorts = copy.in_order, []

    def sweep_first(*given: Any) -> Any:
        sorts.append(given)
        storage.delete_all(output_directory.left_by_killed(site.job))
        sweep_copies.sweep_copies(site.ledger, site.job)
        return in_order(*given)

    monkeypatch.setattr(copy, "in_order", sweep_first)
    assert site.append().appended.rows == 30
    assert len(sorts) == 1
    assert site.done() is JobState.COMPLETED
    assert site.agrees() == {}


def test_lost_parts_run_again_also_where_the_copy_is_lost(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    site.done()
    for file in [*site.copies, *(site.folder / "out").glob("part-00000[01]*")]:
        file.unlink()
    answer = lost_parts.redo(site.ledger, site.job, sure=False)
    assert answer.facts["rows"] == 20
    assert site.done() is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_deleted_job_leaves_no_copy(site: Arranged) -> None:
    site.submit_files(("a.parquet", 25))
    site.done()
    delete(site.ledger, site.job, Settings(), output=True)
    assert not (site.folder / "out").exists()


# ---------------------------------------------------------------- auto


def vllm_spec(file: Path, output: Path, **engine: Any) -> dict[str, Any]:
    return {
        "name": file.stem,
        "input": {"uri": str(file)},
        "task": {"kind": "generate", "prompt": "{{ doc }} {{ question }}"},
        "engine": {"backend": "vllm", "model": "some/model", **engine},
        "output": {"uri": str(output)},
    }


def vllm_job(site: Arranged, name: str, rows: list[dict[str, str]], **engine: Any) -> bool:
    """Whether the rows of a job with `batch.arrange: auto`, which is the default, are arranged."""
    file = site.folder / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    data = vllm_spec(file, site.folder / name, **engine)
    job_id = submit(site.ledger, parse_spec(data, "test"), Settings()).job_id
    with site.ledger.transaction() as connection:
        return job_facts.is_arranged(connection, job_id)


def shared(documents: int, questions: int, characters: int = 2000) -> list[dict[str, str]]:
    """Rows of which each document has some, far apart."""
    return [
        {"doc": f"{doc} " + "word " * (characters // 5), "question": f"question {at} of {doc}"}
        for at in range(questions)
        for doc in range(documents)
    ]


def test_auto_arranges_where_rows_share_more_than_the_cache_keeps(site: Arranged) -> None:
    assert vllm_job(site, "documents", shared(200, 8))
    assert not vllm_job(site, "each-its-own", shared(1600, 1))
    assert not vllm_job(site, "few-tokens", shared(20, 8))
    in_order = sorted(shared(200, 8), key=lambda row: row["doc"])
    assert not vllm_job(site, "in-order", in_order)
    none = {"args": {"enable_prefix_caching": False}}
    assert not vllm_job(site, "no-cache", shared(200, 8), **none)
    large = {"args": {"num_gpu_blocks_override": 20_000}}
    assert not vllm_job(site, "large-cache", shared(200, 8), **large)


def test_auto_knows_the_cache_of_an_engine_that_was_loaded(site: Arranged) -> None:
    rows = shared(200, 8)
    assert vllm_job(site, "first", rows)
    key = site.ask("SELECT engine_key FROM jobs")[0][0]
    site.ask(
        f"INSERT INTO engines (pool, engine_key, cache_tokens) VALUES ('default', '{key}', 400000)"
        " RETURNING pool"
    )
    with site.ledger.transaction() as connection:
        assert loads.cache_tokens(connection, "default", key) == 400_000
    assert not vllm_job(site, "second", rows)


def test_an_estimate_says_what_the_order_brings_and_costs(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(shared(200, 8)), file)
    spec = parse_spec(vllm_spec(file, tmp_path / "out"), "test")
    made = estimate(spec, Settings(), None, tokenizes=False)
    told = estimate_report.as_json(made)["order"]
    assert told["arranges"]
    assert told["saved_share"] > 0.5
    assert told["copy_bytes"] == file.stat().st_size
    assert told["pass_seconds"] == 1
    console = Console(width=100, file=io.StringIO())
    with console.capture() as shown:
        console.print(estimate_report.render(made))
    assert "a copy of at most" in shown.get()


# ---------------------------------------------------------------- pilot


def test_a_pilot_of_an_arranged_job_is_arranged_and_runs(site: Arranged) -> None:
    site.come(("a.parquet", 95))
    data = function_spec("whole", site.folder / "in", site.folder / "out", batch={"rows": 10})
    data["batch"]["arrange"] = "prefix"
    data["input"]["columns"] = ["text"]
    spec = parse_spec(data, "test")
    submitted, unreadable = submit_pilot(site.ledger, spec, Settings(), 20)
    assert not unreadable
    assert submitted.arranged
    site.job_id = submitted.job_id
    assert site.done() is JobState.COMPLETED
    target = site.folder / "pilot.parquet"
    assert collect(site.ledger, site.job, str(target)) == 20
    rows = pq.read_table(target).to_pylist()
    assert [row["row_index"] for row in rows] == list(range(20))
    assert all(row["loud"] == f"SAY {row['id'].upper()}" for row in rows)
