"""`--replace`: a failed or cancelled job without a row makes room for another one in its output directory."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger, holds
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.holds import Kind
from nightshift.common.ledger.jobs import deletions, jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.control import deletion, replacement
from nightshift.producer.reaper.finish import finish
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from tests.support.fleet import function_spec, wait_until, write_rows
from tests.support.world import World

SETTINGS = Settings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in", [("a.jsonl", 6)])
    return tmp_path


@pytest.fixture
def second(second_ledger: Callable[[], Ledger]) -> Ledger:
    return second_ledger()


def spec_of(folder: Path, function: str) -> Any:
    engine = {"backend": "function", "callable": f"rules:{function}"}
    data = function_spec("taken", folder / "in", folder / "out", batch={"rows": 2}, engine=engine)
    return parse_spec(data, "test")


def put(ledger: Ledger, folder: Path, function: str, asked: Asked | None = None) -> Submitted:
    return submit(ledger, spec_of(folder, function), SETTINGS, asked or Asked())


def replaced(ledger: Ledger, folder: Path, function: str) -> tuple[int | None, Submitted]:
    """What `submit --replace` does: the job that went, and the job that has the directory."""
    gone = replacement.replace(ledger, spec_of(folder, function), SETTINGS)
    return None if gone is None else gone.id, put(ledger, folder, function)


def over(
    world: World, ledger: Ledger, folder: Path, end: JobState = JobState.FAILED, asked: Any = None
) -> int:
    """A job that failed or was cancelled, and whose files are finished."""
    job_id = put(ledger, folder, "lenght", asked).job_id
    if end is JobState.FAILED:
        world.run(jobs.fail, job_id, "no engine")
    else:
        world.run(jobs.cancel, job_id)
    finish(ledger, job_id, SETTINGS)
    return job_id


def known(world: World, folder: Path, job_id: int, function: str) -> int:
    """Lets the world claim batches of the job, all of which are admitted."""
    world.specs[job_id] = spec_of(folder, function)
    world.admit(job_id)
    return job_id


def owner(folder: Path) -> str:
    return str(json.loads((folder / "out" / "_owner.json").read_text())["identity"])


@pytest.mark.parametrize("end", [JobState.FAILED, JobState.CANCELLED])
@pytest.mark.parametrize("function", ["length", "lenght"], ids=["another spec", "the same spec"])
def test_a_job_without_a_row_makes_room_for_another_one(
    world: World, ledger: Ledger, folder: Path, end: JobState, function: str
) -> None:
    first = over(world, ledger, folder, end)
    assert (folder / "out" / "_manifest.json").exists()
    gone, done = replaced(ledger, folder, function)
    assert (gone, done.is_new) == (first, True)
    assert world.run(jobs.get, first) is None
    assert owner(folder) == world.run(jobs.get, done.job_id).identity
    assert not (folder / "out" / "_manifest.json").exists()
    assert world.ask("SELECT FROM audit_log WHERE job_id = %s AND action = 'delete'", first)


def test_nothing_is_replaced_where_nobody_has_the_directory_or_the_job_goes_on(
    world: World, ledger: Ledger, folder: Path
) -> None:
    assert replacement.replace(ledger, spec_of(folder, "length"), SETTINGS) is None
    first = put(ledger, folder, "length")
    gone, again = replaced(ledger, folder, "length")
    assert (gone, again.job_id, again.is_new) == (None, first.job_id, False)


def test_changed_input_is_another_job_in_the_same_directory(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = over(world, ledger, folder)
    write_rows(folder / "in", [("a.jsonl", 7)])
    with pytest.raises(
        BadInput, match=r"input files changed .*or delete that job.* with `--replace`"
    ):
        put(ledger, folder, "lenght")
    gone, done = replaced(ledger, folder, "lenght")
    assert (gone, done.rows) == (first, 7)


def test_the_refusal_names_the_flag_where_the_job_may_be_replaced_and_nowhere_else(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = put(ledger, folder, "lenght").job_id
    with pytest.raises(BadInput, match="whose spec differs") as running:
        put(ledger, folder, "length")
    assert "--replace" not in str(running.value)
    world.run(jobs.fail, first, "no engine")
    for _ in range(2):  # also before its files are finished
        with pytest.raises(
            BadInput, match=r"whose spec differs.*or delete that job.* with `--replace`"
        ):
            put(ledger, folder, "length")
        finish(ledger, first, SETTINGS)
    with pytest.raises(BadInput, match="whose spec differs") as over_http:
        put(ledger, folder, "length", Asked(tenant="red"))
    assert "--replace" not in str(over_http.value)
    # Without the flag the same command continues the failed job.
    assert put(ledger, folder, "lenght").job_id == first


def refused(ledger: Ledger, folder: Path, why: str) -> None:
    with pytest.raises(BadInput, match=rf"job 1 \(taken\).* cannot be replaced: .*{why}"):
        replacement.replace(ledger, spec_of(folder, "length"), SETTINGS)


def test_a_job_that_may_still_have_a_row_stays(world: World, ledger: Ledger, folder: Path) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    refused(ledger, folder, "it is running")
    lease = world.lease(first)
    world.run(jobs.cancel, first)
    refused(ledger, folder, "a worker still holds batches of it; try again later")
    world.run(leasing.release, [lease])
    gone, _ = replaced(ledger, folder, "length")
    assert gone == first


def test_a_job_with_a_row_stays(world: World, ledger: Ledger, folder: Path) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    world.commit(world.lease(first))
    world.run(jobs.fail, first, "no disk")
    refused(ledger, folder, "it has committed rows; choose another output directory")
    with pytest.raises(BadInput, match="whose spec differs") as other:
        put(ledger, folder, "length")
    assert "--replace" not in str(other.value)


def test_a_job_whose_batches_are_dead_is_replaced_with_its_error_parts(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    for lease in [world.lease(first) for _ in range(3)]:
        world.fail(lease, permanent=True, most=1)
    finish(ledger, first, SETTINGS)
    assert world.run(jobs.get, first).state is JobState.FAILED
    before = {path.name for path in (folder / "out").glob("part-*")}
    assert len(before) == 3, "error parts, which no attempt committed"
    with pytest.raises(BadInput, match="with `--replace`"):
        put(ledger, folder, "length")
    gone, done = replaced(ledger, folder, "length")
    assert (gone, done.is_new) == (first, True)
    assert not list((folder / "out").glob("part-*"))


def test_a_job_whose_dead_batch_had_answers_stays(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    world.commit(world.lease(first), [0])
    for lease in [world.lease(first) for _ in range(2)]:
        world.fail(lease, permanent=True, most=1)
    assert world.finish(first) is JobState.FAILED
    world.retry(first, dead=True)
    for lease in [world.lease(first) for _ in range(3)]:
        world.fail(lease, permanent=True, most=1)
    assert world.finish(first) is JobState.FAILED
    assert world.ask("SELECT DISTINCT state FROM batches WHERE job_id = %s", first) == [("dead",)]
    refused(ledger, folder, "it has committed rows")


def test_parts_stay_that_a_deletion_without_the_files_left(
    world: World, ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    world.commit(world.lease(first))
    world.run(jobs.fail, first, "no disk")
    world.finish(first)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with ledger.transaction() as connection:
        job = jobs.find(connection, str(first))
    with monkeypatch.context() as cut_off:
        cut_off.setattr(deletions, "end", stop)
        with pytest.raises(KeyboardInterrupt):
            deletion.delete(ledger, job, SETTINGS, output=False)
    assert not world.ask("SELECT FROM batches WHERE job_id = %s", first)
    refused(ledger, folder, "it is being deleted, and its files are kept")


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED, JobState.COMPLETED])
def test_the_same_command_with_the_flag_goes_on_with_a_job_that_has_rows(
    world: World, ledger: Ledger, folder: Path, state: JobState
) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    world.commit(world.lease(first))
    if state is JobState.FAILED:
        world.run(jobs.fail, first, "no disk")
    elif state is JobState.COMPLETED:
        world.commit(world.lease(first))
        world.commit(world.lease(first))
        assert world.finish(first) is state
    gone, again = replaced(ledger, folder, "lenght")
    assert (gone, again.job_id) == (None, first)


def test_the_same_command_with_the_flag_finds_its_watched_job_with_more_files(
    ledger: Ledger, folder: Path
) -> None:
    data = function_spec("taken", folder / "in", folder / "out")
    data["input"]["watch"] = "30s"
    spec = parse_spec(data, "test")
    first = submit(ledger, spec, SETTINGS).job_id
    write_rows(folder / "in", [("b.jsonl", 3)])
    assert replacement.replace(ledger, spec, SETTINGS) is None
    assert submit(ledger, spec, SETTINGS).job_id == first


def test_a_job_of_a_tenant_stays(world: World, ledger: Ledger, folder: Path) -> None:
    over(world, ledger, folder, asked=Asked(tenant="red"))
    refused(ledger, folder, "it is a job of another tenant")


@pytest.mark.parametrize("kind", [Kind.FINISH, Kind.ARCHIVE])
def test_a_job_that_a_reaper_has_stays(
    world: World, ledger: Ledger, folder: Path, kind: Kind
) -> None:
    first = over(world, ledger, folder)
    world.run(holds.take, kind, first, "r")
    refused(ledger, folder, "a reaper is finishing or archiving it")
    world.run(holds.end, kind, first)
    assert replaced(ledger, folder, "length")[0] == first


def test_a_command_that_was_cut_off_goes_on(
    world: World, ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is gone, the marker goes last and the directory is nobody else's before."""
    first = over(world, ledger, folder)
    before = owner(folder)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for module, name in ((storage, "delete"), (deletions, "delete_page"), (deletions, "end")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stop)
            with pytest.raises(KeyboardInterrupt):
                replacement.replace(ledger, spec_of(folder, "length"), SETTINGS)
        with pytest.raises(BadInput, match=f"job {first} is being deleted"):
            put(ledger, folder, "length")
        if module is storage:
            assert owner(folder) == before
    gone, done = replaced(ledger, folder, "length")
    assert (gone, done.is_new) == (first, True)


def test_a_directory_that_somebody_emptied_is_taken_as_well(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = over(world, ledger, folder)
    for path in (folder / "out").iterdir():
        path.unlink()
    assert replaced(ledger, folder, "length")[0] == first


def test_files_of_others_stay(world: World, ledger: Ledger, folder: Path) -> None:
    over(world, ledger, folder)
    (folder / "out" / "notes.txt").write_text("mine")
    _, done = replaced(ledger, folder, "length")
    assert (folder / "out" / "notes.txt").read_text() == "mine"
    assert any("notes.txt" in remark for remark in done.remarks)


def test_a_late_worker_and_a_late_reaper_of_the_old_job_change_nothing(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    lease = world.lease(first)
    world.run(leasing.release, [lease])
    world.run(jobs.cancel, first)
    finish(ledger, first, SETTINGS)
    old = world.run(jobs.get, first)
    _, done = replaced(ledger, folder, "length")
    part = folder / "out" / "_attempts" / f"part-000000-b{lease.batch_id}-a1.parquet"
    part.parent.mkdir(exist_ok=True)
    part.write_text("too late")
    for late in (
        lambda: finish(ledger, first, SETTINGS),
        lambda: owned_files.write(ledger, old, f"{folder}/out/_manifest.json", lambda _: None),
        lambda: deletion.delete(ledger, old, SETTINGS, output=True),
    ):
        with pytest.raises(Exception, match=r"deleted|belongs to another job"):
            late()
    known(world, folder, done.job_id, "length")
    fresh = world.lease(done.job_id)
    assert fresh.batch_id != lease.batch_id, "so that no part of the two has the same name"
    assert world.run(jobs.get, done.job_id).state is JobState.RUNNING


def waits(connection: Connection) -> bool:
    """Whether another transaction waits for a lock of this one."""
    found = connection.execute(
        text("""SELECT count(*) FROM pg_locks
                WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))""")
    )
    return bool(found.scalar())


def test_a_retry_that_came_first_keeps_the_job(
    world: World, ledger: Ledger, second: Ledger, folder: Path
) -> None:
    first = over(world, ledger, folder)
    with ThreadPoolExecutor(1) as threads:
        with second.transaction() as connection:
            jobs.reopen(connection, first)
            other = threads.submit(replaced, ledger, folder, "length")
            wait_until(lambda: waits(connection), what="the other at the row of the job")
        with pytest.raises(BadInput, match="it is running"):
            other.result(60)
    assert world.run(jobs.get, first).state is JobState.RUNNING


def test_of_two_commands_at_once_both_get_the_same_job(
    world: World, ledger: Ledger, second: Ledger, folder: Path
) -> None:
    over(world, ledger, folder)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(replaced, each, folder, "length") for each in (ledger, second)]
        ids = {each.result(60)[1].job_id for each in found}
    assert len(ids) == 1
    assert len(world.ask("SELECT FROM jobs")) == 1
