"""An output directory has one owner: every other job and ledger is refused at submit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import s3fs
from sqlalchemy import text

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import job_submit, jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.reaper import finish
from nightshift.producer.submit import output_owner
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from nightshift.producer.verify.verify import verify
from tests.support.fleet import Fleet, function_spec, logs, output_ids, write_rows
from tests.support.object_store import ObjectStore

MARKER = "_owner.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in", [("a.jsonl", 6)])
    return tmp_path


def spec_of(folder: Path, output: str = "out", **sections: Any) -> dict[str, Any]:
    spec = function_spec("owned", folder / "in", folder / output, batch={"rows": 2}, **sections)
    if "://" in output:
        spec["output"]["uri"] = output
    return spec


def put(ledger: Ledger, data: dict[str, Any], *, adopt: bool = False) -> Submitted:
    return submit(ledger, parse_spec(data, "test"), Settings(), Asked(adopt=adopt))


def job_ids(ledger: Ledger) -> list[int]:
    with ledger.transaction() as connection:
        return [row["job"] for row in job_pace.listed(connection)]


def other_work(folder: Path, output: str = "out") -> dict[str, Any]:
    return spec_of(folder, output, engine={"backend": "function", "callable": "rules:slow"})


def test_a_second_ledger_is_refused_before_any_work(
    ledger: Ledger, other_ledger: Ledger, folder: Path
) -> None:
    """Both once wrote to one directory, and both jobs failed after all their work."""
    first = put(ledger, spec_of(folder))
    assert json.loads((folder / "out" / MARKER).read_text()).keys() == {"ledger", "identity"}
    with pytest.raises(BadInput, match=r"this job in another ledger.*--adopt"):
        put(other_ledger, spec_of(folder))
    for adopt in (False, True):
        with pytest.raises(BadInput, match="another job in another ledger"):
            put(other_ledger, other_work(folder), adopt=adopt)
    assert job_ids(other_ledger) == []
    again = put(ledger, spec_of(folder))
    assert (again.job_id, again.is_new) == (first.job_id, False)


def test_the_same_directory_by_a_link_is_refused(ledger: Ledger, folder: Path) -> None:
    first = put(ledger, spec_of(folder))
    (folder / "link").symlink_to(folder / "out")
    with pytest.raises(
        BadInput, match=rf"out are the same directory, the output of job {first.job_id}"
    ):
        put(ledger, spec_of(folder, "link"))
    assert job_ids(ledger) == [first.job_id]


@pytest.mark.parametrize("where", ["out/_attempts", "out/a/b", "link/_attempts/c", "loop/d"])
def test_a_directory_inside_another_jobs_is_refused(
    ledger: Ledger, other_ledger: Ledger, folder: Path, where: str
) -> None:
    """One inside `_attempts` once cost a committed part: the sweep of the job around it took it."""
    put(ledger, spec_of(folder))
    (folder / "link").symlink_to(folder / "out")
    (folder / "loop").symlink_to(folder / "out" / "_attempts")
    (folder / "out" / "_attempts").mkdir()
    for other in (ledger, other_ledger):
        with pytest.raises(BadInput, match=r"lies inside \S*/(out|link), the output"):
            put(other, spec_of(folder, where))
    assert len(job_ids(ledger)) == 1
    assert not list((folder / "out").rglob("*/_owner.json"))


@pytest.mark.parametrize("inner", ["around/out", "around/_attempts", "around/a/b"])
def test_a_directory_around_another_jobs_is_refused(
    ledger: Ledger, other_ledger: Ledger, folder: Path, inner: str
) -> None:
    put(ledger, spec_of(folder, inner))
    for other in (ledger, other_ledger):
        with pytest.raises(BadInput, match=rf"contains \S*/{inner}, the output"):
            put(other, spec_of(folder, "around"))
    assert not (folder / "around" / MARKER).exists()


def test_jobs_of_older_releases_have_no_marker_and_are_known_all_the_same(
    ledger: Ledger, folder: Path
) -> None:
    first = put(ledger, spec_of(folder, "a/b"))
    (folder / "a" / "b" / MARKER).unlink()
    for where in ("a", "a/b/c"):
        with pytest.raises(BadInput, match=rf"a/b, the output of job {first.job_id}"):
            put(ledger, spec_of(folder, where))
    assert not put(ledger, spec_of(folder, "a/b")).is_new
    assert (folder / "a" / "b" / MARKER).exists()


def test_a_directory_of_very_many_folders_is_not_searched(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_owner, "MOST_FOLDERS", 3)
    for number in range(4):
        (folder / "out" / str(number)).mkdir(parents=True)
    with pytest.raises(BadInput, match="more than 3 folders"):
        put(ledger, spec_of(folder))
    (folder / "out" / "3").rmdir()
    assert put(ledger, spec_of(folder)).is_new


@pytest.mark.parametrize("content", ["{}", "[" * 4096, "\x00"], ids=["empty", "deep", "binary"])
def test_a_marker_that_says_nothing_is_named(ledger: Ledger, folder: Path, content: str) -> None:
    (folder / "out").mkdir()
    (folder / "out" / MARKER).write_text(content)
    with pytest.raises(BadInput, match=rf"{folder}/out/{MARKER} cannot be read: remove it"):
        put(ledger, spec_of(folder))
    assert job_ids(ledger) == []


def test_a_submit_that_is_refused_late_leaves_no_marker(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BadInput("no")

    monkeypatch.setattr(job_submit, "insert", refuse)
    with pytest.raises(BadInput, match="no"):
        put(ledger, spec_of(folder))
    assert not (folder / "out").exists()


# ---------------------------------------------------------------- a ledger that is lost


def test_adopting_takes_over_what_the_same_job_of_a_lost_ledger_left(
    ledger: Ledger, other_ledger: Ledger, folder: Path
) -> None:
    lost = put(ledger, spec_of(folder))
    output = folder / "out"
    (output / "_attempts").mkdir()
    for name in ("part-000000-a1.parquet", "_manifest.json", "_attempts/part-000001-a1.parquet"):
        (output / name).write_bytes(b"of the lost ledger")
    (output / "notes").write_text("of the user")
    with pytest.raises(BadInput, match="--adopt"):
        put(other_ledger, spec_of(folder))
    assert (output / "part-000000-a1.parquet").exists()

    adopted = put(other_ledger, spec_of(folder), adopt=True)
    assert adopted.is_new
    assert sorted(path.name for path in output.iterdir()) == ["_attempts", MARKER, "notes"]
    assert list((output / "_attempts").iterdir()) == []
    assert put(other_ledger, spec_of(folder), adopt=True).job_id == adopted.job_id

    # The first ledger was not lost after all: it touches nothing that is not its own any more.
    (output / "part-000000-a1.parquet").write_bytes(b"of the other ledger")
    with pytest.raises(BadInput, match="belongs to another job or ledger by now"):
        put(ledger, spec_of(folder), adopt=True)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE batches SET state = 'dead', last_error = 'lost'"))
    finish.finish(ledger, lost.job_id)
    with ledger.transaction() as connection:
        job = jobs.get(connection, lost.job_id)
    assert job is not None
    assert job.state is JobState.FAILED
    assert job.reason is not None
    assert "belongs to another job or ledger by now" in job.reason
    assert (output / "part-000000-a1.parquet").read_bytes() == b"of the other ledger"
    assert not list((output / "_attempts").iterdir())
    found = {problem.message for problem in verify(ledger, job) if problem.check == "directory"}
    assert any("belongs to another job or ledger by now" in each for each in found)


def test_nothing_is_adopted_from_a_job_that_is_not_the_same(
    ledger: Ledger, other_ledger: Ledger, folder: Path
) -> None:
    put(ledger, spec_of(folder))
    (folder / "out" / "part-000000-a1.parquet").write_bytes(b"kept")
    with pytest.raises(BadInput, match="another job in another ledger"):
        put(other_ledger, other_work(folder), adopt=True)
    (folder / "out" / MARKER).unlink()
    with pytest.raises(BadInput, match="this ledger does not know"):
        put(other_ledger, spec_of(folder), adopt=True)
    assert (folder / "out" / "part-000000-a1.parquet").read_bytes() == b"kept"


@pytest.mark.slow
def test_a_run_whose_home_was_lost_says_so_and_adopts_its_output(folder: Path) -> None:
    fleet = Fleet(folder)
    try:
        spec = fleet.spec(spec_of(folder))
        assert fleet.command("run", str(spec)).returncode == 0, logs(folder)
        shutil.rmtree(folder / ".nightshift")
        # A ledger of its own, and not another copy of the one that all tests share.
        fleet.is_furnished = False
        refused = fleet.command("run", str(spec))
        assert refused.returncode == 2
        assert "--adopt" in refused.stderr
        done = fleet.command("run", str(spec), "--adopt")
        assert done.returncode == 0, done.stderr + logs(folder)
        assert len(output_ids(folder / "out")) == 6
        checked = fleet.command("verify", "owned")
        assert checked.returncode == 0, checked.stdout
    finally:
        fleet.end()


# ---------------------------------------------------------------- object stores


@pytest.fixture
def bucket(client: s3fs.S3FileSystem, fresh: str) -> str:
    """An empty bucket of the test's own."""
    return f"s3://{fresh}"


def test_a_directory_of_an_object_store_has_an_owner_too(
    ledger: Ledger, other_ledger: Ledger, folder: Path, bucket: str
) -> None:
    output = f"{bucket}/a/out"
    first = put(ledger, spec_of(folder, output))
    assert storage.list_names(output) == [MARKER]
    assert not put(ledger, spec_of(folder, output)).is_new
    refused = {
        output: "this job in another ledger",
        f"{output}/_attempts": r"lies inside s3://\S+/a/out,",
        f"{output}/b/c": r"lies inside s3://\S+/a/out,",
        f"{bucket}/a": r"contains s3://\S+/a/out,",
        bucket: r"contains s3://\S+/a/out,",
    }
    for uri, said in refused.items():
        with pytest.raises(BadInput, match=said):
            put(other_ledger, spec_of(folder, uri))
    assert put(other_ledger, spec_of(folder, f"{bucket}/a/out2")).is_new
    assert put(other_ledger, spec_of(folder, output), adopt=True).is_new
    with pytest.raises(BadInput, match=f"job {first.job_id} cannot continue there"):
        put(ledger, spec_of(folder, output))


def test_an_object_is_made_once_also_where_the_answer_was_lost(
    store: ObjectStore, bucket: str, ledger: Ledger, folder: Path
) -> None:
    uri = f"{bucket}/once"
    assert storage.create(uri, b"first")
    assert not storage.create(uri, b"second")
    assert storage.read_range(uri, 0, 9) == b"first"
    # The store has the marker, and its client puts it again: the condition refuses that.
    lost = iter(["after"])
    store.rule = lambda operation: next(lost, None) if operation == "PUT" else None
    assert put(ledger, spec_of(folder, f"{bucket}/out")).is_new
    assert store.did["PUT", "after"] == 1
