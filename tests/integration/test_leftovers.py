"""What the store does not let go stays in the output directory, and the job is closed all the same."""

from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.common.storage import local
from nightshift.producer.reaper import finish
from nightshift.producer.submit.submit import submit
from tests.support.fleet import function_spec, output_ids, write_rows

BEGUN = [
    "._owner.json.0123456789ab",
    "._manifest.json.0123456789ab",
    "_attempts/.part-000001-a1.parquet.0123456789ab",
    "_generations/.000001.json.0123456789ab",
    "_input/.a.copy.0123456789ab",
    "_judged/.rows.judged.0123456789ab",
    "_ledger/.batches.archive.0123456789ab",
]


def test_what_killed_processes_had_begun_is_gone_once_the_job_is_closed(
    ledger: Ledger, tmp_path: Path
) -> None:
    ids = write_rows(tmp_path / "in", [("a.jsonl", 6)])
    output = tmp_path / "out"
    spec = parse_spec(function_spec("left", tmp_path / "in", output, batch={"rows": 2}), "test")
    job_id = submit(ledger, spec, Settings()).job_id
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE batches SET state = 'dead', last_error = 'no engine'"))
    for name in [*BEGUN, ".somebody.else.0123456789ab"]:
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_bytes(b"begun")
    finish.finish(ledger, job_id)
    assert output_ids(output) == ids
    begun = [path.name for path in output.rglob("*") if path.is_file() and path.name[0] == "."]
    assert begun == [".somebody.else.0123456789ab"]


def test_a_delete_that_is_refused_and_a_folder_called_like_a_part_let_the_job_close(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = write_rows(tmp_path / "in", [("a.jsonl", 6)])
    output = tmp_path / "out"
    spec = parse_spec(function_spec("left", tmp_path / "in", output, batch={"rows": 2}), "test")
    job_id = submit(ledger, spec, Settings()).job_id
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE batches SET state = 'dead', last_error = 'no engine'"))
    (output / "part-x").mkdir()
    (output / "_attempts").mkdir()
    kept = [output / "part-000099-a1.parquet", output / "_attempts" / "part-000098-a1.parquet"]
    for path in kept:
        path.write_bytes(b"of a late worker")
    delete = local.delete

    def refused(path: Path) -> None:
        if path in kept:
            raise PermissionError(1, "Operation not permitted")
        delete(path)

    monkeypatch.setattr(local, "delete", refused)
    with capture_logs() as lines:
        finish.finish(ledger, job_id)
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    assert job is not None
    assert job.closed_at is not None
    assert job.state is JobState.FAILED
    assert job.reason == "3 batches are dead: no engine"
    (warning,) = (line for line in lines if line["event"] == "files_left")
    assert (warning["log_level"], warning["job_id"], warning["files"]) == ("warning", job_id, 3)
    for path in kept:
        assert str(path) in warning["why"]
        path.unlink()
    assert output_ids(output) == ids
