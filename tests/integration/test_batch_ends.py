"""Ends of batches of the HTTP API that meet something else: a retry, a cancel, a sweep, lost files."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import BadInput, LeaseLost, Permanent
from nightshift.common.ledger import Ledger, holds
from nightshift.common.ledger.batches import claims, dispatch, leasing
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.jobs import deletions, jobs
from nightshift.common.settings import load_settings
from nightshift.common.states import RowErrorKind
from nightshift.producer import retry
from nightshift.producer.control import deletion
from nightshift.producer.serve.api_batches import expire, finalize, sweep
from nightshift.producer.serve.ledger import (
    api_batch_retry,
    api_batch_steps,
    api_batches,
    files,
)
from nightshift.producer.serve.ledger.api_batches import ApiBatch, ApiBatchStatus
from nightshift.producer.serve.v1 import objects
from tests.support import console_site
from tests.support.batch_site import OVER, RUNNING_AGAIN, Site, is_seen, line, over, results
from tests.support.fleet import wait_until


@pytest.fixture
def site(ledger: Ledger, tmp_path: object) -> Site:
    return Site(ledger, tmp_path)  # type: ignore[arg-type]


def cancelled_rows(site: Site, *lines: object) -> ApiBatch:
    """A batch whose job is cancelled before anything ran: its results can be written."""
    batch = site.batch(*lines)
    assert site.validate()
    site.cancel(batch)
    site.sql("UPDATE jobs SET closed_at = now()")
    return batch


def test_a_job_that_runs_again_while_its_results_are_written_is_not_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = cancelled_rows(site, line("a"), line("b"))
    real = finalize.write_results

    def reopened(*given: object) -> object:
        written = real(*given)  # type: ignore[arg-type]
        site.sql("UPDATE jobs SET state = 'running', closed_at = NULL, retries = retries + 1")
        return written

    with monkeypatch.context() as patched:
        patched.setattr(finalize, "write_results", reopened)
        assert site.finalize()
    seen = site.seen(batch)
    assert (seen.state, seen.error_file_id) == (ApiBatchStatus.CANCELLING, None)
    site.sql("UPDATE jobs SET state = 'cancelled', closed_at = now()")
    site.sql("UPDATE holds SET until = '-infinity'")
    assert site.finalize()
    assert site.seen(batch).state is ApiBatchStatus.CANCELLED


def test_the_line_of_a_row_that_never_ran_has_its_custom_id_with_half_a_character_too(
    site: Site,
) -> None:
    batch = cancelled_rows(site, line("surr\ud800"), line("surr\ud801"))
    assert site.finalize()
    with site.ledger.transaction() as connection:
        file = files.get(connection, "acme", site.seen(batch).error_file_id or "")
    assert file is not None
    lines = storage.read_range(file.uri, 0, 9_999).decode("utf-8").splitlines()
    assert [json.loads(each)["custom_id"] for each in lines] == ["surr\ud800", "surr\ud801"]


def error_messages(site: Site, batch: ApiBatch) -> dict[str, str]:
    """The messages of the file of errors, by custom_id."""
    with site.ledger.transaction() as connection:
        file = files.get(connection, "acme", site.seen(batch).error_file_id or "")
    assert file is not None
    lines = map(json.loads, storage.read_range(file.uri, 0, 9_999).splitlines())
    return {each["custom_id"]: each["error"]["message"] for each in lines}


@pytest.mark.parametrize("end", ["cancelled", "expired", "failed"])
def test_a_request_that_was_sent_never_counts_as_one_that_never_ran(site: Site, end: str) -> None:
    """Rows of a first lease that was lost, of one that sent some of its rows, and of none."""
    batch = site.batch(*(line(id) for id in "abcd"))
    assert site.validate()
    with site.ledger.transaction() as connection:
        job = jobs.get(connection, 1)
        assert job is not None
        who = Claimant("mine", job.spec.pool, job.spec.engine_key, "vllm", "1")
        dispatch.admit(connection, job.id, 9, 1)
        asked = {"room_rows": 9, "max_batches": 1, "idle": True, "woken": "poll"}
        [lease] = claims.claim(connection, who, lease_seconds=30, **asked)
        leasing.release(connection, [lease], unsent=RowRanges.of((1, 4)))
        dispatch.admit(connection, job.id, 9, 2)
        [lease] = claims.claim(connection, who, lease_seconds=30, **asked)
        leasing.release(connection, [lease], unsent=RowRanges.of((0, 1), (2, 4)))
    if end == "cancelled":
        site.cancel(batch)
    elif end == "expired":
        site.sql("UPDATE api_batches SET expires_at = now() - interval '1 second'")
        expire.expire_once(site.ledger)
    else:
        site.sql("UPDATE jobs SET state = 'failed', finished_at = now(), reason = 'gone'")
    site.sql("UPDATE jobs SET closed_at = now()")
    assert site.finalize()
    assert site.seen(batch).state == end
    said = {
        id: message.partition(" this request ")[0]
        for id, message in error_messages(site, batch).items()
    }
    assert {id: message.rpartition(" ")[2] for id, message in said.items()} == {
        "a": "while",
        "b": "while",
        "c": "before",
        "d": "before",
    }
    shown = objects.counts(site.seen(batch), None)
    assert shown == {"total": 4, "completed": 0, "failed": 4}


def test_a_completed_batch_has_a_line_for_every_row(site: Site) -> None:
    """A job that says completed and has no part for its rows: nobody is told that all is well."""
    batch = site.batch(line("a"), line("b"))
    assert site.validate()
    site.sql(OVER)
    site.sql("UPDATE jobs SET closed_at = now() - interval '2 hours'")
    assert site.finalize()
    seen = site.seen(batch)
    assert seen.state is ApiBatchStatus.FAILED
    assert "0 of 2 rows" in (seen.errors or [{}])[0]["message"]


def test_results_that_cannot_be_delivered_leave_no_copy_for_an_hour(site: Site) -> None:
    """A batch is tried again each minute for an hour, and each try once left both its files that long."""
    batch = site.batch(line("a"), line("b"))
    assert site.validate()
    site.sql(f"DELETE FROM batches; {OVER}")  # the parts have none of the rows
    for _ in range(3):
        with pytest.raises(Permanent, match="0 of 2 rows"):
            site.finalize()
        site.sql("UPDATE holds SET until = '-infinity'")
    assert site.seen(batch).state is ApiBatchStatus.FINALIZING
    nothing_is_on_its_way(site)


def test_results_of_a_job_that_runs_again_leave_no_copy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled_rows(site, line("a"), line("b"))
    real = finalize.write_results

    def reopened(*given: object) -> object:
        written = real(*given)  # type: ignore[arg-type]
        site.sql("UPDATE jobs SET state = 'running', closed_at = NULL, retries = retries + 1")
        return written

    monkeypatch.setattr(finalize, "write_results", reopened)
    assert site.finalize()
    nothing_is_on_its_way(site)


def nothing_is_on_its_way(site: Site) -> None:
    """The next sweep takes what was written, and no row is left."""
    while sweep.sweep_once(site.ledger):
        pass
    with site.ledger.transaction() as connection:
        statement = "SELECT count(*) FROM api_files WHERE state <> 'ready'"
        assert connection.exec_driver_sql(statement).scalar_one() == 0
    assert list((site.folder / "store" / "acme" / "files").glob("*")) == []


def test_a_retry_whose_input_is_deleted_meanwhile_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.sql("UPDATE batches SET state = 'dead', failures = 3")
    site.sql(OVER)
    client = user(site)

    def meanwhile(*_: object, **__: object) -> None:
        assert client.delete(f"/v1/files/{batch.input_file_id}").status_code == 200

    monkeypatch.setattr(retry.restore_copies, "restore", meanwhile)
    answer = client.post(f"/v1/batches/{batch.id}/retry")
    assert answer.status_code == 400
    assert f"{batch.input_file_id} is deleted or expired" in answer.json()["error"]["message"]
    assert site.seen(batch).state is ApiBatchStatus.COMPLETED


def test_a_file_is_not_deleted_while_a_retry_that_reads_it_is_stored(site: Site) -> None:
    """The deletion waits for the retry, and sees it."""
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.sql(OVER)
    client = user(site)
    with ThreadPoolExecutor(1) as pool:
        with site.ledger.transaction() as connection:
            assert api_batch_retry.reopen(connection, 1) is not None
            deleted = pool.submit(client.delete, f"/v1/files/{batch.input_file_id}")
            wait_until(lambda: waits(site) or deleted.done(), what="the deletion to wait")
        assert deleted.result().status_code == 409


def user(site: Site) -> TestClient:
    door = console_site.Site(site.ledger, site.settings)
    client = door.browser()
    client.headers["authorization"] = f"Bearer {door.keys['user']}"
    return client


def waits(site: Site) -> bool:
    with site.ledger.transaction() as connection:
        statement = """SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'"""
        return bool(connection.exec_driver_sql(statement).scalar_one())


def test_a_batch_that_is_lost_while_its_job_is_stored_leaves_no_marker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = site.batch(line())
    monkeypatch.setattr(api_batch_steps, "begin", lambda *_, **__: False)
    assert site.validate()
    assert site.seen(batch).state is ApiBatchStatus.VALIDATING
    assert site.jobs() == 0
    assert list((site.folder / "store").rglob("_owner.json")) == []


def test_a_file_that_a_sweep_has_taken_is_never_named_by_a_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = cancelled_rows(site, line("a"))
    monkeypatch.setattr(files, "ready", lambda *_, **__: None)
    assert site.finalize()
    seen = site.seen(batch)
    assert (seen.state, seen.error_file_id) == (ApiBatchStatus.CANCELLING, None)


def test_a_batch_whose_rows_are_over_does_not_expire(site: Site) -> None:
    done, open_ = site.batch(line()), site.batch(line())
    assert site.validate()
    assert site.validate()
    site.sql("UPDATE api_batches SET expires_at = now() - interval '1 second'")
    site.sql(f"{OVER} WHERE name = 'batch_1'")
    with site.ledger.transaction() as connection:
        assert api_batch_steps.expire(connection, 10) == [open_.id]
    assert site.seen(done).state is ApiBatchStatus.IN_PROGRESS


def test_a_job_runs_no_further_when_its_batch_was_cancelled_and_the_retry_has_died(
    site: Site,
) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.sql(OVER)
    with site.ledger.transaction() as connection:
        assert api_batch_retry.reopen(connection, 1) is not None
    site.cancel(batch)
    site.sql(RUNNING_AGAIN)  # the rows are back, and the server dies before it lets go
    with site.ledger.transaction() as connection:
        assert api_batch_steps.cancel_strays(connection, 10) == [], "the retry may be at work"
    site.sql("UPDATE holds SET until = '-infinity'")
    with site.ledger.transaction() as connection:
        assert api_batch_steps.cancel_strays(connection, 10) == [batch.id]
        assert api_batch_steps.cancel_strays(connection, 10) == []
        found = jobs.get(connection, 1)
    assert found is not None
    assert str(found.state) == "cancelled"


def test_a_batch_runs_again_with_its_job_whoever_retries_that(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1, expires_at = now()")
    site.sql("UPDATE batches SET state = 'dead', failures = 3")
    site.sql(OVER)
    with site.ledger.transaction() as connection:
        job = jobs.get(connection, 1)
    assert job is not None
    assert retry.retry(site.ledger, job, failed=True, dead=True, kind=None).reopened
    seen = site.seen(batch)
    assert seen.state is ApiBatchStatus.IN_PROGRESS
    assert 3_590 < (seen.expires_at - seen.created_at).total_seconds() < 3_700, "a window of 1h"
    with site.ledger.transaction() as connection:
        row = connection.exec_driver_sql("SELECT finish_by FROM jobs").scalar_one()
    assert row == seen.expires_at
    assert not site.finalize(), "its job runs"


def test_a_retry_that_is_not_allowed_leaves_the_batch_as_it_was(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.sql(OVER)
    with site.ledger.transaction() as connection:
        job = jobs.get(connection, 1)
    assert job is not None

    def refused(_: object) -> None:
        raise LeaseLost("no")

    with pytest.raises(LeaseLost):
        retry.retry(site.ledger, job, failed=True, dead=True, kind=None, allowed=refused)
    assert site.seen(batch).state is ApiBatchStatus.COMPLETED


def retried(site: Site, kind: RowErrorKind | None = None) -> Retried:
    with site.ledger.transaction() as connection:
        job = jobs.get(connection, 1)
    assert job is not None
    return retry.retry(site.ledger, job, failed=True, dead=True, kind=kind)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ("max_rows = 6", "rows_limit_exceeded"),
        ("max_tokens = 400", "token_limit_exceeded"),
        ("max_rows = 7, max_tokens = 497", None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/batches/batch_1/retry", "/api/jobs/1/retry"])
def test_a_retry_of_a_batch_that_failed_before_its_rows_ran_asks_for_all_of_them(
    site: Site, path: str, limits: str, code: str | None
) -> None:
    """Its rows had not failed, and so it once asked for none and reserved no tokens."""
    door = console_site.Site(site.ledger, site.settings)
    first = site.batch(*(line(str(n), max_tokens=40) for n in range(4)))
    assert site.validate()
    asked = reserved(site, first)
    assert asked == (4, 4 * 71)
    site.sql(
        "UPDATE jobs SET state = 'failed', reason = 'no engine', finished_at = now(), closed_at = now()"
    )
    assert site.finalize()
    assert site.seen(first).state is ApiBatchStatus.FAILED
    assert reserved(site, first) == (0, 0)
    site.batch(*(line(str(n), max_tokens=40) for n in range(3)))
    assert site.validate()
    site.sql(f"UPDATE tenants SET {limits} WHERE name = 'acme'")
    headers = {"authorization": f"Bearer {door.keys['user']}"}
    answer = door.browser().post(path, headers=headers)
    if code is not None:
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
        assert site.seen(first).state is ApiBatchStatus.FAILED
        return
    assert answer.status_code == 200, answer.text
    assert site.seen(first).state is ApiBatchStatus.IN_PROGRESS
    assert reserved(site, first) == asked


def test_a_retry_reserves_the_part_of_the_tokens_that_its_rows_have(site: Site) -> None:
    batch = site.batch(*(line(str(n), max_tokens=40) for n in range(4)))
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', reserved_rows = 0, reserved_tokens = 0")
    site.sql(
        "UPDATE batches SET state = 'done', rows_failed = 1, part_name = 'p', part_bytes = 1, part_checksum = 'x'"
    )
    site.sql("INSERT INTO row_errors SELECT job_id, 2, id, 'c', 'timeout', 'late' FROM batches")
    site.sql(OVER)
    assert retried(site).rows == 1
    assert reserved(site, batch) == (1, 71)


def reserved(site: Site, batch: ApiBatch) -> tuple[int, int]:
    with site.ledger.transaction() as connection:
        statement = "SELECT reserved_rows, reserved_tokens FROM api_batches WHERE id = %s"
        rows, tokens = connection.exec_driver_sql(statement, (batch.id,)).one()
    return rows, tokens


def test_a_retry_that_finds_no_row_leaves_the_batch_and_its_files_alone(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1, completed_at = now()")
    over(site, batch)
    before = site.seen(batch)
    assert not retried(site, RowErrorKind.TIMEOUT).batches
    assert site.seen(batch) == before


def test_a_batch_that_is_being_finalized_runs_again_with_its_job(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE batches SET state = 'dead', failures = 3")
    site.sql(OVER)
    with site.ledger.transaction() as connection:
        taken = api_batch_steps.take_ended(connection, "r-1")
    assert taken is not None
    assert site.seen(batch).state is ApiBatchStatus.FINALIZING
    assert retried(site).reopened
    seen = site.seen(batch)
    assert seen.state is ApiBatchStatus.IN_PROGRESS
    site.sql("UPDATE api_batches SET expires_at = now() - interval '1 second'")
    with site.ledger.transaction() as connection:
        assert not holds.renew(connection, taken[1]), "that reaper has lost it"
        assert api_batch_steps.expire(connection, 10) == [batch.id]


def test_a_reaper_that_chose_a_batch_before_a_retry_took_it_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statement began before the retry was stored, and does not know of the hold."""
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.sql(OVER)
    with site.ledger.transaction() as connection:
        again = api_batch_retry.reopen(connection, 1)
    assert again is not None
    monkeypatch.setattr(api_batch_steps, "ENDED", text("SELECT id FROM api_batches FOR UPDATE"))
    with site.ledger.transaction() as connection:
        assert api_batch_steps.take_ended(connection, "r-1") is None
    assert site.seen(batch).state is ApiBatchStatus.IN_PROGRESS
    with site.ledger.transaction() as connection:
        api_batch_retry.release(connection, again.hold)
    assert site.seen(batch).state is ApiBatchStatus.IN_PROGRESS


def test_a_retry_that_was_cut_off_goes_on_when_the_client_asks_again(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    site.sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
    site.sql("UPDATE batches SET state = 'dead', failures = 3")
    site.sql(OVER)
    with site.ledger.transaction() as connection:
        assert api_batch_retry.reopen(connection, 1) is not None
        assert api_batch_retry.goes_on(connection, batch.id), "and here the server dies"
    assert retried(site).reopened
    with site.ledger.transaction() as connection:
        assert not api_batch_retry.goes_on(connection, batch.id)


def test_a_job_whose_batch_is_not_delivered_stays(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    over(site, batch)
    with site.ledger.transaction() as connection, pytest.raises(BadInput, match=batch.id):
        deletions.begin(connection, 1, output=False)
    site.sql("UPDATE api_batches SET state = 'completed'")
    with site.ledger.transaction() as connection:
        deletions.begin(connection, 1, output=False)


def test_batches_of_one_tenant_do_not_wait_for_all_of_another(site: Site) -> None:
    for _ in range(60):
        site.batch(line())
    late = site.batch(line(), tenant="bee")
    for _ in range(30):  # by lot: 30 times in a row the other one comes once in 10^9
        with site.ledger.transaction() as connection:
            taken = api_batch_steps.take_validating(connection, "r-1")
        assert taken is not None
        if taken[0].id == late.id:
            return
    raise AssertionError("the tenant that came late still waits")


def test_a_line_that_is_too_long_fails_the_file_and_is_not_held_in_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightshift.producer.serve.api_batches import batch_file, validate

    monkeypatch.setattr(batch_file, "MOST_LINE_BYTES", 500)
    monkeypatch.setattr(validate, "MOST_LINE_BYTES", 500)
    batch = site.batch(line("a"), line("b", more="x" * 5000), line("c"))
    site.sql("""UPDATE api_batches SET options = '{"on_bad_line": "skip"}'""")
    assert site.validate()
    (error,) = site.seen(batch).errors or []
    assert (error["code"], error["line"]) == ("line_too_long", 2)


def test_a_job_goes_once_the_files_of_its_batch_are_gone(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    over(site, batch)
    file_id = results(site, batch)
    settings = load_settings()
    deleted = []

    def delete(job: jobs.Job) -> None:
        deleted.append(job.id)
        deletion.delete(site.ledger, job, settings, output=True)

    assert not sweep.sweep_jobs(site.ledger, delete)
    assert not deleted, "its file is there"
    with site.ledger.transaction() as connection:
        assert not api_batches.results_gone(connection, batch.id)
        files.delete(connection, "acme", file_id)
        assert api_batches.results_gone(connection, batch.id)
    assert not is_seen(site, file_id)
    assert not sweep.sweep_jobs(site.ledger, delete)
    assert deleted == [1]
    assert site.jobs() == 0
    assert not sweep.sweep_jobs(site.ledger, delete)
    assert deleted == [1]
