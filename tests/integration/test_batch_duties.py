"""Validating and finalizing, step by step: who holds a batch, and what a cancel in between leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import LeaseLost, Permanent, Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.states import JobState
from nightshift.producer.reaper import renewed_hold
from nightshift.producer.serve.api_batches import (
    batch_file,
    finalize,
    validate,
)
from nightshift.producer.serve.api_batches.finalize import ended_as
from nightshift.producer.serve.ledger import api_batch_retry, api_batch_steps, fresh_parts
from nightshift.producer.serve.ledger.api_batches import ApiBatchStatus
from tests.support.batch_site import OVER, Site, is_seen, line, over, results
from tests.support.fleet import wait_until


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


def test_a_good_file_is_a_job_and_a_second_look_finds_nothing_to_do(site: Site) -> None:
    batch = site.batch(line("a"), line("b"))
    assert site.validate()
    seen = site.seen(batch)
    assert (seen.state, seen.model, seen.rows_total) == (ApiBatchStatus.IN_PROGRESS, "m", 2)
    assert not site.validate()
    assert site.jobs() == 1


@pytest.mark.parametrize("moment", ["_spec", "_check_quota"])
def test_a_cancel_while_the_file_is_read_leaves_no_job(
    site: Site, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The second moment is within the transaction that makes the job."""
    batch = site.batch(line())
    real = getattr(validate, moment)

    def cancelled(*given: Any) -> Any:
        site.cancel(batch)
        return real(*given)

    monkeypatch.setattr(validate, moment, cancelled)
    assert site.validate()
    assert site.seen(batch).state is ApiBatchStatus.CANCELLED
    assert site.jobs() == 0


def test_a_batch_whose_reaper_is_gone_is_another_ones_and_the_first_does_nothing(
    site: Site,
) -> None:
    batch = site.batch(line())
    with site.ledger.transaction() as connection:
        taken = api_batch_steps.take_validating(connection, "r-0")
    assert taken is not None
    with site.ledger.transaction() as connection:
        assert api_batch_steps.take_validating(connection, "r-9") is None, "r-0 has it"
        connection.exec_driver_sql("UPDATE holds SET until = '-infinity'")
    assert site.validate()
    with site.ledger.transaction() as connection:
        given = {"job_id": 99, "model": "m", "rows": 1, "tokens": 1}
        assert not api_batch_steps.begin(connection, taken[1], **given)
        assert not api_batch_steps.refuse(connection, taken[1], [])
    assert site.seen(batch).state is ApiBatchStatus.IN_PROGRESS
    assert site.jobs() == 1


def test_a_table_that_cannot_be_used_fails_no_batch(site: Site) -> None:
    batch = site.batch(line())
    (site.folder / "models.yaml").write_text("models: [")
    with pytest.raises(Retryable, match=r"models\.yaml"):
        site.validate()
    assert site.seen(batch).state is ApiBatchStatus.VALIDATING


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([], ["empty_file"]),
        ([line("a"), line("a")], ["duplicate_custom_id"]),
        ([line("a"), line("b", model="n")], ["mismatched_model"]),
        ([line("a", model="zz")], ["model_not_found"]),
        ([line("a", stream=True)], ["invalid_request"]),
        ([line("a", model=7)], ["missing_required_parameter"]),
        ([{**line("a"), "url": "/v1/embeddings"}], ["invalid_url"]),
        ([{**line("a"), "method": "GET"}], ["invalid_method"]),
        ([3, {}], ["invalid_json_line", "missing_required_parameter"]),
        ([{}] * 60, ["missing_required_parameter"] * 50 + ["more_problems"]),
    ],
)
def test_a_bad_file_fails_with_the_codes_of_the_api(
    site: Site, lines: list[Any], codes: list[str]
) -> None:
    batch = site.batch(*lines)
    assert site.validate()
    seen = site.seen(batch)
    assert seen.state is ApiBatchStatus.FAILED
    assert [each["code"] for each in seen.errors or []] == codes
    assert site.jobs() == 0


def test_an_unknown_model_is_reported_with_the_line_that_names_it(site: Site) -> None:
    batch = site.batch({}, line("a", model="zz"))
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("""UPDATE api_batches SET options = '{"on_bad_line": "skip"}'""")
    assert site.validate()
    [error] = site.seen(batch).errors or []
    assert (error["code"], error["line"]) == ("model_not_found", 2)


def test_limits_of_requests_and_inputs() -> None:
    def lines() -> Iterator[tuple[int, bytes]]:
        for number in range(1, 6):
            asked = {**line(str(number), input=["a", "b"]), "url": "/v1/embeddings"}
            yield number, json.dumps(asked).encode()

    def codes(**limits: int) -> list[str]:
        given = {"requests": 5, "bytes": 10**6, "embedding_inputs": 10, **limits}
        found = batch_file.read(lines, "/v1/embeddings", batch_file.Limits(**given))
        return [problem.code for problem in found.problems]

    assert codes() == []
    assert codes(requests=4) == ["too_many_requests"]
    assert codes(embedding_inputs=9) == ["too_many_inputs"]


@pytest.mark.parametrize(
    ("told", "job", "over", "wanted"),
    [
        (None, JobState.COMPLETED, True, "completed"),
        (None, JobState.FAILED, True, "completed"),
        (None, JobState.FAILED, False, "failed"),
        (None, JobState.CANCELLED, False, "cancelled"),
        (None, None, False, "failed"),
        (ApiBatchStatus.EXPIRED, JobState.CANCELLED, False, "expired"),
        (ApiBatchStatus.CANCELLED, JobState.COMPLETED, True, "cancelled"),
    ],
)
def test_how_a_batch_ends(
    told: ApiBatchStatus | None, job: JobState | None, over: bool, wanted: str
) -> None:
    assert ended_as(told, job, every_row_over=over) == wanted


def test_a_batch_whose_job_was_deleted_can_be_cancelled_and_ends(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    with site.ledger.transaction() as connection:
        for table in ("batches", "input_files", "job_counters", "generations", "jobs"):
            column = "id" if table == "jobs" else "job_id"
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} > 0")
    site.cancel(batch)
    assert finalize.finalize_once(site.ledger, site.settings, "r-1")
    assert site.seen(batch).state is ApiBatchStatus.CANCELLED


def test_a_batch_whose_results_are_lost_is_tried_for_a_while_and_then_fails(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    over(site, batch)
    with pytest.raises(Permanent, match="is gone"):
        finalize.finalize_once(site.ledger, site.settings, "r-1")
    assert site.seen(batch).state is ApiBatchStatus.FINALIZING
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET closed_at = now() - interval '61 minutes'")
        connection.exec_driver_sql("UPDATE holds SET until = '-infinity'")
    assert finalize.finalize_once(site.ledger, site.settings, "r-2")
    seen = site.seen(batch)
    assert seen.state is ApiBatchStatus.FAILED
    assert [each["code"] for each in seen.errors or []] == ["results_lost"]


def test_a_second_try_keeps_the_old_results_until_there_are_new_ones(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    file_id = results(site, batch)
    with site.ledger.transaction() as connection:
        again = api_batch_retry.reopen(connection, 1)
        assert again is not None
        assert api_batch_steps.take_ended(connection, "r-1") is None, "rows are being put back"
    assert is_seen(site, file_id)
    over(site, batch)
    with site.ledger.transaction() as connection:
        api_batch_retry.release(connection, again.hold)
        connection.exec_driver_sql("UPDATE jobs SET closed_at = now() - interval '61 minutes'")
    assert finalize.finalize_once(site.ledger, site.settings, "r-1")
    seen = site.seen(batch)
    assert (seen.state, seen.output_file_id, seen.rows_completed) == ("failed", file_id, 7)
    assert is_seen(site, file_id)
    with site.ledger.transaction() as connection:
        again = api_batch_retry.reopen(connection, 1)
        assert again is not None
        api_batch_retry.release(connection, again.hold)
        connection.exec_driver_sql(
            "UPDATE batches SET state = 'pending', part_name = NULL, part_bytes = NULL, "
            "part_checksum = NULL"
        )
        connection.exec_driver_sql("UPDATE jobs SET state = 'cancelled'")
    assert finalize.finalize_once(site.ledger, site.settings, "r-1")
    assert site.seen(batch).output_file_id is None
    assert not is_seen(site, file_id)


def test_a_cancel_while_rows_are_put_back_cancels_the_job_too(site: Site) -> None:
    batch = site.batch(line())
    assert site.validate()
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_batches SET state = 'completed', rows_failed = 1")
        connection.exec_driver_sql(OVER)
        again = api_batch_retry.reopen(connection, 1)
        assert again is not None
    site.cancel(batch)
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE jobs SET state = 'running', finished_at = NULL"
        )  # the rows are back
        api_batch_retry.release(connection, again.hold)
        assert connection.exec_driver_sql("SELECT state FROM jobs").scalar_one() == "cancelled"
    assert site.seen(batch).state is ApiBatchStatus.CANCELLING


def test_a_reaper_holds_its_batch_however_long_a_write_takes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.batch(line())
    monkeypatch.setattr(renewed_hold, "SIGNS_A_HOLD", 6000)
    with site.ledger.transaction() as connection:
        taken = api_batch_steps.take_validating(connection, "r-1")
        connection.exec_driver_sql("UPDATE holds SET until = now()")
    assert taken is not None

    def held_for_long() -> bool:
        with site.ledger.transaction() as connection:
            query = "SELECT until > now() + interval '50 seconds' FROM holds"
            return bool(connection.exec_driver_sql(query).scalar_one())

    with renewed_hold.renewed(site.ledger, taken[1]) as work:
        wait_until(held_for_long, what="a sign")
        work.check()
        with site.ledger.transaction() as connection:
            connection.exec_driver_sql("UPDATE holds SET token = token + 1")
        wait_until(lambda: _is_lost(work), what="the loss")


def _is_lost(work: renewed_hold.Renewed) -> bool:
    try:
        work.check()
    except LeaseLost:
        return True
    return False


def test_parts_come_in_the_order_of_their_commits_those_of_one_commit_together(
    site: Site,
) -> None:
    site.batch(*(line(str(number)) for number in range(3)))
    assert site.validate()
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "INSERT INTO batches (job_id, seq, file_index, rows, row_count) SELECT job_id, n, 0, "
            "int8multirange(int8range(n * 10, n * 10 + 1)), 1 FROM batches, generate_series(1, 5) n"
        )
    for seqs in ((3,), (1, 4), (5,), (0,)):
        with site.ledger.transaction() as connection:
            connection.exec_driver_sql(
                "UPDATE batches SET state = 'done', part_name = 'p-' || seq, part_bytes = 1, "
                "part_checksum = 'x' WHERE seq = ANY(%s)",
                (list(seqs),),
            )
    found, after = [], 0
    while True:
        with site.ledger.transaction() as connection:
            job_id = connection.exec_driver_sql("SELECT id FROM jobs").scalar_one()
            page = fresh_parts.since(connection, job_id, after, most=1)
        if not page.parts:
            break
        assert page.cursor > after
        found.append(sorted(part["seq"] for part in page.parts))
        after = page.cursor
    assert found == [[3], [1, 4], [5], [0]]
