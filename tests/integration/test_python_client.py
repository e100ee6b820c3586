"""A fleet from Python: real Postgres, reaper and worker, jobs from tables, rows back as tables."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import BaseModel

import nightshift as ns
from tests.support.fleet import Fleet, function_spec, logs, wait_until, write_rows
from tests.support.remote import Call, Remote, Reply, answered

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

ROWS = 600
TABLE = pa.table({"id": [f"r-{n}" for n in range(ROWS)], "text": [f"say {n}" for n in range(ROWS)]})


class Verdict(BaseModel):
    """What a model says of a row."""

    label: Literal["long", "short"]
    words: int


@pytest.fixture
def client(database_url: str) -> Iterator[ns.Client]:
    with ns.Client(database_url) as found:
        yield found


@pytest.fixture
def at_work(fleet: Fleet) -> Fleet:
    fleet.reaper()
    fleet.worker()
    return fleet


def submitted(client: ns.Client, folder: Path, name: str, **options: Any) -> ns.Job:
    return client.submit(
        TABLE,
        **{
            "stage": str(folder / "staging"),
            "out": folder / name,
            "function": "rules:shout",
            "id": "id",
            "name": name,
            "batch": ns.BatchSpec(rows=50),
            **options,
        },
    )


def test_a_table_goes_through_a_fleet_and_comes_back_in_every_form(
    client: ns.Client, at_work: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    job = submitted(client, at_work.folder, "loud")
    status = job.wait(180)
    assert (status.state, status.rows_done, status.rows_open) == (ns.JobState.COMPLETED, ROWS, 0)
    shown = capfd.readouterr()
    assert "600 of 600 rows (100 %), completed" in shown.err
    assert shown.out == ""

    rows = job.to_arrow()
    assert rows.column_names == ["row_index", "id", "loud", "error"]
    assert rows.column("row_index").to_pylist() == list(range(ROWS))
    assert rows.column("loud").to_pylist() == [f"SAY {n}" for n in range(ROWS)]
    frame = job.to_pandas()
    assert list(frame["id"]) == [f"r-{n}" for n in range(ROWS)]
    assert job.to_polars().to_arrow().to_pylist() == rows.to_pylist()
    assert pa.Table.from_batches(job.batches()) == rows
    late = job.dataset().to_table(filter=pc.field("row_index") >= ROWS - 2, columns=["loud"])
    assert late.to_pylist() == [{"loud": "SAY 598"}, {"loud": "SAY 599"}]
    assert job.errors().num_rows == 0

    assert submitted(client, at_work.folder, "loud").id == job.id
    assert repr(client.job("loud")) == repr(client.job(job.id)) == repr(job)
    assert [each.job for each in client.jobs()] == [job.id]


def test_a_second_submit_warns_of_what_it_does_not_change_and_a_deleted_job_is_said(
    client: ns.Client, fleet: Fleet
) -> None:
    job = submitted(client, fleet.folder, "kept", weight=2)
    with pytest.warns(UserWarning, match=f"job {job.id} keeps weight 2, not 3"):
        assert submitted(client, fleet.folder, "kept", weight=3).id == job.id
    job.cancel()
    fleet.reaper()
    with pytest.raises(ns.JobStopped):
        job.wait(60, progress=False)
    assert fleet.command("delete", str(job.id)).returncode == 0
    for look in (job.status, lambda: job.wait(1, progress=False), job.to_arrow, job.cancel):
        with pytest.raises(ns.BadInput, match=f"there is no job '?{job.id}'? in the ledger"):
            look()


@pytest.mark.slow
def test_the_wait_for_a_watched_job_ends_when_what_it_has_is_done(
    client: ns.Client, fleet: Fleet
) -> None:
    def grows(name: str) -> ns.Job:
        write_rows(fleet.folder / name, [("a.parquet", 40)])
        spec = function_spec(name, fleet.folder / name, fleet.folder / f"{name}-out")
        spec["input"]["watch"] = "1s"
        with pytest.warns(UserWarning, match="looks for new files every 1 s"):
            return client.submit(spec)

    fine, gone = grows("fine"), grows("gone")
    (fleet.folder / "gone" / "a.parquet").unlink()
    fleet.reaper()
    fleet.worker()
    assert fine.wait(120, progress=False).rows_done == 40
    with pytest.raises(ns.JobStopped, match="is running"):
        gone.wait(120, progress=False)
    with pytest.raises(TimeoutError):
        submitted(client, fleet.folder, "late", pool="nobody").wait(0.1, progress=False)


@pytest.mark.slow
def test_a_pydantic_model_says_what_an_answer_is_and_the_answers_are_typed(
    client: ns.Client, fleet: Fleet
) -> None:
    def behave(call: Call) -> Reply:
        said = json.dumps({"label": "short", "words": len(call.text.split())})
        return answered(call, choices=[{"message": {"content": said}, "finish_reason": "stop"}])

    with Remote().running() as server:
        server.behave = behave
        fleet.environment["NIGHTSHIFT_API_KEYS"] = json.dumps({server.url: "sk-1"})
        fleet.reaper()
        fleet.worker()
        job = client.submit(
            TABLE.slice(0, 20),
            stage=str(fleet.folder),
            out=fleet.folder / "judged",
            engine=ns.OpenaiEngineSpec(backend="openai", model="m", base_url=server.url),
            prompt="Judge: {{ text }}",
            output=Verdict,
        )
        job.wait(180)
    assert job.to_arrow().column("parsed").to_pylist() == [{"label": "short", "words": 3}] * 20
    parsed = job.to_pandas()["parsed"]
    assert Verdict.model_validate(parsed[0]).words == 3


@pytest.mark.slow
def test_staging_and_output_may_lie_in_an_object_store(
    client: ns.Client, fleet: Fleet, store: "ObjectStore", fresh: str
) -> None:
    # moto and s3fs take a second to import, which the other tests can do without.
    from tests.support.object_store import close_client

    filesystem = store.filesystem()
    filesystem.mkdir(fresh)
    fleet.environment |= store.environment
    fleet.reaper()
    fleet.worker()
    where = {"stage": f"s3://{fresh}/staging", "out": f"s3://{fresh}/loud"}
    job = submitted(client, fleet.folder, "loud", **where)
    job.wait(180)
    assert job.to_arrow().column("id").to_pylist() == TABLE.column("id").to_pylist()
    assert job.dataset().to_table(columns=["loud"]).num_rows == ROWS
    assert submitted(client, fleet.folder, "loud", **where).id == job.id
    assert len(filesystem.find(f"{fresh}/staging")) == 1
    close_client(filesystem)


def test_a_staging_folder_outside_the_allowed_roots_is_refused_before_it_is_written(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_ROOTS", str(tmp_path / "mine"))
    with (
        ns.Client(database_url) as client,
        pytest.raises(ns.BadInput, match="is outside the folders"),
    ):
        submitted(client, tmp_path, "outside")
    assert not (tmp_path / "staging").exists()


@pytest.mark.slow
def test_failed_rows_are_a_table_and_run_again(client: ns.Client, at_work: Fleet) -> None:
    job = submitted(client, at_work.folder, "picky", function="rules:picky", columns=["text"])
    status = job.wait(180, progress=False)
    assert (status.rows_done, status.rows_failed) == (540, 60), logs(at_work.folder)
    errors = job.errors()
    assert errors.column("row_id").to_pylist() == [f"r-{n}" for n in range(7, ROWS, 10)]
    assert set(errors.column("kind").to_pylist()) == {"function_error"}
    assert job.errors("truncated").num_rows == 0
    with pytest.raises(ns.BadInput, match="kind 'cut' is not one of bad_record"):
        job.errors("cut")
    failed = job.to_arrow().filter(pc.field("error").is_valid())
    assert failed.column("row_index").to_pylist() == errors.column("row_index").to_pylist()

    mended = (
        (at_work.folder / "rules.py").read_text().replace('raise ValueError("a seven")', "pass")
    )
    (at_work.folder / "rules.py").write_text(mended)
    at_work.end()
    assert job.retry().rows_open == 60
    # Rows that run again are in no table until they have their new answer.
    assert job.to_arrow().num_rows == job.dataset().count_rows() == 540
    at_work.reaper()
    at_work.worker()
    assert job.wait(180).rows_done == ROWS
    assert job.dataset().count_rows() == ROWS


@pytest.mark.slow
def test_a_job_is_paused_resumed_and_cancelled_and_gives_the_rows_that_it_has(
    client: ns.Client, at_work: Fleet, ask: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    at_work.let(0)
    job = submitted(client, at_work.folder, "slow", function="rules:slow")
    with pytest.raises(TimeoutError, match=r"job \d+ \(slow\) is running: 0 of 600 rows"):
        job.wait(0)
    at_work.let(60)
    wait_until(lambda: job.status().rows_done, what="a finished batch")
    assert job.pause().state == "paused"
    with pytest.raises(ns.JobStopped, match=r"slow\) is paused") as stopped:
        job.wait(60)
    assert stopped.value.status.job == job.id
    some = job.to_arrow()
    assert 0 < some.num_rows < ROWS
    assert job.dataset().count_rows() >= some.num_rows
    assert job.resume().state == "running"
    assert job.cancel().state == "cancelled"
    with pytest.raises(ns.JobStopped, match="cancelled"):
        job.wait(200)
    assert some.num_rows <= job.to_arrow().num_rows < ROWS
    with pytest.raises(ns.BadInput, match="cannot be resumed"):
        job.resume()
    asked = ask(f"SELECT action FROM audit_log WHERE job_id = {job.id} ORDER BY id")
    assert [action for (action,) in asked] == ["submit", "pause", "resume", "cancel"]


def test_files_and_specs_are_submitted_without_a_worker(client: ns.Client, tmp_path: Path) -> None:
    write_rows(tmp_path, [("a.jsonl", 3), ("b.jsonl", 2)])
    options: dict[str, Any] = {"function": "rules:shout"}
    one = client.submit(str(tmp_path / "*.jsonl"), out=tmp_path / "one", **options)
    assert one.status().rows_total == 5
    two = client.submit(
        [tmp_path / "a.jsonl"],
        out=ns.OutputSpec(uri=str(tmp_path / "two"), format="jsonl"),
        **options,
    )
    assert (two.status().rows_total, two.name) == (3, "a")
    assert two.to_arrow().num_rows == 0
    with pytest.raises(ns.BadInput, match="wrote JSON lines"):
        two.dataset()
    whole = ns.JobSpec.model_validate(
        {
            "name": "whole",
            "input": {"uri": str(tmp_path / "b.jsonl")},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "output": {"uri": str(tmp_path / "whole")},
        }
    )
    assert client.submit(whole).status().rows_total == 2
    assert [each.name for each in client.jobs()] == ["whole", "a", one.name]
    with pytest.raises(ns.BadInput, match="out is missing"):
        client.submit(tmp_path / "a.jsonl", **options)
    with pytest.raises(ns.BadInput, match="give stage="):
        client.submit(TABLE, out=tmp_path / "three", **options)
    with pytest.raises(ns.BadInput, match="there is no job 'none'"):
        client.job("none")


def test_a_client_without_a_ledger_is_told_of_run(
    monkeypatch: pytest.MonkeyPatch, fresh_database: Callable[..., str]
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_DATABASE_URL", raising=False)
    with pytest.raises(ns.BadInput, match=r"give ns.Client\('postgresql://…'\)"):
        ns.Client()
    with pytest.raises(ns.NightshiftError, match="run `nightshift migrate`"):
        ns.Client(fresh_database(migrated=False))
