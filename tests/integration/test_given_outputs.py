"""A failed job without an answer gives its output directory to the mended command, and to that alone."""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import audit
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.control import deletion, garbage
from nightshift.producer.reaper.finish import finish
from nightshift.producer.retry import retry
from nightshift.producer.submit import append_command
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from nightshift.producer.verify.verify import verify
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


def spec_of(folder: Path, function: str) -> dict[str, Any]:
    engine = {"backend": "function", "callable": f"rules:{function}"}
    return function_spec("given", folder / "in", folder / "out", batch={"rows": 2}, engine=engine)


def put(ledger: Ledger, folder: Path, function: str, asked: Asked | None = None) -> Submitted:
    return submit(ledger, parse_spec(spec_of(folder, function), "test"), SETTINGS, asked or Asked())


def failed(world: World, ledger: Ledger, folder: Path, asked: Asked | None = None) -> int:
    """A job whose engine could not be loaded, and whose files are finished."""
    job_id = put(ledger, folder, "lenght", asked).job_id
    world.run(jobs.fail, job_id, "no engine")
    finish(ledger, job_id, SETTINGS)
    return job_id


def owner(folder: Path) -> str:
    return str(json.loads((folder / "out" / "_owner.json").read_text())["identity"])


def test_the_mended_command_gets_the_directory_and_the_failed_job_stays(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    assert (folder / "out" / "_manifest.json").exists()
    second = put(ledger, folder, "length")
    assert (second.is_new, second.given_by) == (True, first)
    assert any(f"job {first}, which failed before a row" in said for said in second.remarks)
    old, new = world.run(jobs.get, first), world.run(jobs.get, second.job_id)
    assert (old.state, new.state) == (JobState.FAILED, JobState.RUNNING)
    assert new.output_uri == str(folder / "out")
    assert old.output_uri == f"{folder}/out (given up by job {first})"
    assert f"went to job {second.job_id}" in old.reason
    assert owner(folder) == new.identity
    assert not (folder / "out" / "_manifest.json").exists()
    [(detail,)] = world.ask(
        "SELECT detail FROM audit_log WHERE job_id = %s AND action = 'give output'", first
    )
    assert detail == {"output": str(folder / "out"), "to": second.job_id}


def test_nothing_that_is_done_with_the_failed_job_reaches_the_files_of_the_other(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    put(ledger, folder, "length")
    staged = folder / "out" / "_attempts" / "part-000000-a1.parquet"
    staged.parent.mkdir()
    staged.write_text("of the other")
    job = world.run(jobs.get, first)
    for act in (
        lambda: retry(ledger, job, failed=True, dead=True, kind=None),
        lambda: world.run(jobs.reopen, first),
        lambda: verify(ledger, job),
        lambda: deletion.delete(ledger, job, SETTINGS, output=True),
    ):
        with pytest.raises(BadInput, match=r"gave its output directory to job|has no owner marker"):
            act()
    finish(ledger, first, SETTINGS)
    garbage.collect(ledger, SETTINGS, sure=True)
    world.run(jobs.get, first)
    deletion.delete(ledger, job, SETTINGS, output=False)
    assert staged.read_text() == "of the other"
    assert {path.name for path in folder.iterdir()} == {"in", "out"}


def test_the_first_command_may_get_the_directory_back_where_the_second_failed_too(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    second = put(ledger, folder, "length").job_id
    world.run(jobs.fail, second, "no engine")
    finish(ledger, second, SETTINGS)
    third = put(ledger, folder, "lenght")
    assert (third.is_new, third.given_by) == (True, second)
    assert third.job_id not in (first, second)


def test_mended_input_is_another_job_in_the_same_directory(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    write_rows(folder / "in", [("a.jsonl", 7)])
    second = put(ledger, folder, "lenght")
    assert (second.given_by, second.rows) == (first, 7)


def test_the_same_command_continues_the_failed_job(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    again = put(ledger, folder, "lenght")
    assert (again.job_id, again.is_new, again.given_by) == (first, False, None)


def test_attempts_are_numbered_behind_those_of_the_failed_job(
    world: World, ledger: Ledger, folder: Path
) -> None:
    """Parts of both would have the same names, and a late sweep or writer of the first would meet the second's."""
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    lease = world.lease(first)
    world.run(leasing.release, [lease])
    world.run(jobs.fail, first, "no disk")
    late = folder / "out" / "_attempts" / "part-000000-a1.parquet"
    finish(ledger, first, SETTINGS)
    late.parent.mkdir(exist_ok=True)
    late.write_text("never committed")
    second = known(world, folder, put(ledger, folder, "length").job_id, "length")
    assert not late.exists()
    assert world.run(audit.broken_attempts, second) == []
    lease = world.lease(second)
    assert lease.attempt == 2
    assert world.run(audit.broken_attempts, second) == []
    world.commit(lease)
    write_rows(folder / "in", [("b.jsonl", 2)])
    job = world.run(jobs.get, second)
    append_command.take(ledger, job, [], SETTINGS, redo=False, last=False)
    assert world.run(audit.broken_attempts, second) == []


def test_a_submit_that_died_at_the_directory_leaves_the_failed_job_able_to_run(
    world: World, ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = failed(world, ledger, folder)
    before = owner(folder)

    def away(directory: OwnedDirectory) -> None:
        raise StorageUnavailable("the store is away")

    monkeypatch.setattr(OwnedDirectory, "clear_after_failed", away)
    with pytest.raises(StorageUnavailable):
        put(ledger, folder, "length")
    assert owner(folder) == before

    monkeypatch.setattr(OwnedDirectory, "give_back", lambda *_: None)  # as after kill -9
    with pytest.raises(StorageUnavailable):
        put(ledger, folder, "length")
    assert owner(folder) != before
    retry(ledger, world.run(jobs.get, first), failed=True, dead=True, kind=None)
    assert owner(folder) == before
    assert world.run(jobs.get, first).state is JobState.RUNNING


def test_a_job_with_a_part_a_lease_or_another_tenant_keeps_its_directory(
    world: World, ledger: Ledger, folder: Path
) -> None:
    submitted = put(ledger, folder, "lenght", Asked(tenant="red"))
    first = known(world, folder, submitted.job_id, "lenght")
    lease = world.lease(first)
    world.run(jobs.fail, first, "no disk")
    finish(ledger, first, SETTINGS)
    red = Asked(tenant="red")
    with pytest.raises(BadInput, match="whose spec differs"):
        put(ledger, folder, "length", red)
    world.run(leasing.release, [lease])
    finish(ledger, first, SETTINGS)
    for asked in (Asked(), Asked(tenant="blue")):
        with pytest.raises(BadInput, match="whose spec differs"):
            put(ledger, folder, "length", asked)
    with pytest.raises(BadInput, match="--new wants another output directory"):
        put(ledger, folder, "length", Asked(new=True, tenant="red"))
    assert put(ledger, folder, "length", red).given_by == first


def test_a_job_with_an_answer_keeps_its_directory(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = known(world, folder, put(ledger, folder, "lenght").job_id, "lenght")
    world.commit(world.lease(first))
    world.run(jobs.fail, first, "no disk")
    with pytest.raises(BadInput, match="whose spec differs"):
        put(ledger, folder, "length")


def known(world: World, folder: Path, job_id: int, function: str) -> int:
    """Lets the world claim batches of the job, all of which are admitted."""
    world.specs[job_id] = parse_spec(spec_of(folder, function), "test")
    world.admit(job_id)
    return job_id


def waits(connection: Connection) -> bool:
    """Whether another transaction waits for a lock of this one."""
    found = connection.execute(
        text("""SELECT count(*) FROM pg_locks
                WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))""")
    )
    return bool(found.scalar())


def while_storing(
    ledger: Ledger, folder: Path, function: str, other: Callable[[], Any]
) -> tuple[Submitted, Future[Any]]:
    """Submits, and begins `other` once the transaction of the submit has all of its locks; `other` waits for one."""
    begun: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as threads:

        def within(connection: Connection, _: int) -> None:
            begun.append(threads.submit(other))
            wait_until(lambda: waits(connection), what="the other at a lock")
            assert not begun[0].done()

        done = put(ledger, folder, function, Asked(within=within))
    return done, begun[0]


def test_a_retry_that_comes_while_the_directory_is_given_is_refused(
    world: World, ledger: Ledger, second: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)

    def reopen() -> None:
        with second.transaction() as connection:
            jobs.reopen(connection, first)

    done, other = while_storing(ledger, folder, "length", reopen)
    assert done.given_by == first
    with pytest.raises(BadInput, match=f"gave its output directory to job {done.job_id}"):
        other.result(60)


def test_the_engine_is_locked_before_the_failed_job_as_a_retry_does(
    world: World, ledger: Ledger, second: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    job = world.run(jobs.get, first)
    world.ask(
        "INSERT INTO engines (pool, engine_key, load_failures) VALUES (%s, %s, 1)"
        " ON CONFLICT (pool, engine_key) DO UPDATE SET load_failures = 1 RETURNING 1",
        job.spec.pool,
        job.spec.engine_key,
    )
    write_rows(folder / "in", [("a.jsonl", 7)])
    with ThreadPoolExecutor(1) as threads:
        with second.transaction() as connection:
            loads.lock(connection, first)
            mended = threads.submit(put, ledger, folder, "lenght")
            wait_until(lambda: waits(connection), what="the submit at a lock")
            jobs.lock(connection, first)
        assert mended.result(60).given_by == first


@pytest.mark.parametrize("function", ["length", "width"])
def test_of_two_mended_commands_at_once_one_gets_the_directory(
    world: World, ledger: Ledger, second: Ledger, folder: Path, function: str
) -> None:
    """The same command gets the same job, another one is refused."""
    failed(world, ledger, folder)
    done, other = while_storing(ledger, folder, "length", lambda: put(second, folder, function))
    if function == "length":
        assert (other.result(60).job_id, other.result(60).is_new) == (done.job_id, False)
    else:
        with pytest.raises(BadInput, match=f"is the output of job {done.job_id}"):
            other.result(60)
    job = world.run(jobs.get, done.job_id)
    assert owner(folder) == job.identity


def test_a_retry_that_came_first_keeps_the_directory(
    world: World, ledger: Ledger, second: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    before = owner(folder)
    with ThreadPoolExecutor(1) as threads:
        with second.transaction() as connection:
            jobs.reopen(connection, first)
            mended = threads.submit(put, ledger, folder, "length")
            wait_until(lambda: waits(connection), what="the submit at a lock")
        with pytest.raises(BadInput, match="whose spec differs"):
            mended.result(60)
    assert owner(folder) == before
    assert world.run(jobs.get, first).state is JobState.RUNNING


def test_a_submit_that_comes_to_nothing_leaves_the_directory_to_the_failed_job(
    world: World, ledger: Ledger, folder: Path
) -> None:
    first = failed(world, ledger, folder)
    before = owner(folder)

    def refuse(connection: Connection, job_id: int) -> None:
        raise BadInput("no more rows")

    with pytest.raises(BadInput, match="no more rows"):
        put(ledger, folder, "length", Asked(within=refuse))
    assert owner(folder) == before
    assert (folder / "out" / "_manifest.json").exists()
    job = world.run(jobs.get, first)
    assert job.output_uri == str(folder / "out")
    retry(ledger, job, failed=True, dead=True, kind=None)
    assert world.run(jobs.get, first).state is JobState.RUNNING
