"""Commits in groups: what one batch cannot do stays with that batch."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.errors import LeaseLost, Permanent
from nightshift.common.formats.part_names import final
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, dispatch, leasing
from nightshift.common.ledger.batches.records import Claimant, Lease, Part
from nightshift.common.ledger.jobs import job_submit
from nightshift.common.row_errors import RowError
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.outages import PatientLedger
from nightshift.worker.publish.commit import ERRORS_A_COMMIT, groups
from nightshift.worker.publish.publication import Publication
from nightshift.worker.publish.publish import Publisher
from nightshift.worker.rows.results import PartTable
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window
from tests.support.fleet import wait_until

BATCHES = 6


def spec_in(folder: Path) -> JobSpec:
    return parse_spec(
        {
            "name": folder.name[:40],
            "input": {"uri": "rows.parquet", "id": "id"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "output": {"uri": str(folder)},
        },
        "here",
    )


def claimed(ledger: Ledger, spec: JobSpec) -> list[Lease]:
    """Leases of one-row batches, one of them lost to somebody else since."""
    file = SourceFile("rows.parquet", "parquet", 1, "1", BATCHES, 0)
    rows = [Descriptor(file, RowRanges.of((at, at + 1))) for at in range(BATCHES)]
    who = Claimant("mine", "default", spec.engine_key, "function", "1")
    with ledger.transaction() as connection:
        new = job_submit.NewJob(spec, spec.name, "same", spec.output.uri, b"", None)
        job_id = job_submit.insert(connection, new, [file])
        job_submit.insert_batches(connection, job_id, [file], rows)
        dispatch.admit(connection, job_id, BATCHES, 1)
        return claims.claim(
            connection,
            who,
            room_rows=BATCHES,
            max_batches=BATCHES,
            idle=True,
            woken="poll",
            lease_seconds=30,
        )


def table_of(lease: Lease, message: str) -> PartTable:
    [(row, _)] = lease.descriptor.rows.ranges
    error = RowError(row, None, RowErrorKind.REFUSED, message)
    return PartTable(pa.table({"row_index": [row]}), [error], 1, 1)


def publisher_of(ledger: Ledger) -> Publisher:
    recorder, unused = Recorder(), cast(Any, None)
    patient = PatientLedger(ledger, recorder)
    return Publisher(
        ChildContext(unused, patient, unused, unused, Window(BATCHES), recorder, unused, unused)
    )


def publish(publisher: Publisher, lease: Lease, spec: JobSpec, message: str = "no") -> None:
    made = Publication(HeldBatch(lease, 1), lease, spec, table_of(lease, message), {})
    publisher.publish([made])
    if made.error is not None:
        raise made.error


def test_what_postgres_refuses_of_one_batch_fails_no_other_of_its_group(
    ledger: Ledger, second_ledger: Callable[[], Ledger], tmp_path: Path
) -> None:
    spec = spec_in(tmp_path)
    leases = claimed(ledger, spec)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE batches SET attempt = 2, owner = 'other' WHERE id = 3")
        connection.exec_driver_sql("ALTER TABLE row_errors ADD CHECK (message <> 'refused')")
    publisher = publisher_of(ledger)
    messages = ["no"] * BATCHES
    messages[4] = "refused"

    def one(place: int) -> None:
        lease = leases[place]
        publish(publisher, lease, spec, messages[place])

    with ThreadPoolExecutor(BATCHES) as threads:
        with second_ledger().transaction() as frozen:
            frozen.exec_driver_sql("SELECT FROM batches WHERE id = 1 FOR UPDATE")
            # The first waits for a row that somebody holds, so the others make one group.
            futures = [threads.submit(one, 0)]
            commits = publisher.commits.commits_of(leases[0].job_id)
            wait_until(lambda: commits._acting, what="the first commit")
            futures += [threads.submit(one, place) for place in range(1, BATCHES)]
            wait_until(lambda: len(commits._waiting) == BATCHES - 1, what="a group")
        errors = [future.exception(30) for future in futures]
    assert isinstance(errors[2], LeaseLost)
    assert isinstance(errors[4], Permanent)
    assert [error for place, error in enumerate(errors) if place not in (2, 4)] == [None] * 4
    with ledger.transaction() as connection:
        found = connection.exec_driver_sql("SELECT state, part_name FROM batches ORDER BY id").all()
        kept = connection.exec_driver_sql("SELECT row_index FROM row_errors ORDER BY 1").all()
    assert [row.state for row in found] == ["done", "done", "leased", "done", "leased", "done"]
    assert [row.row_index for row in kept] == [0, 1, 3, 5]
    for row in found:
        if row.part_name is not None:
            assert storage.exists(final(spec.output.uri, row.part_name))


def test_who_holds_the_row_of_a_job_stops_no_commit(
    ledger: Ledger, second_ledger: Callable[[], Ledger], tmp_path: Path
) -> None:
    spec = spec_in(tmp_path)
    lease, *_ = claimed(ledger, spec)
    with second_ledger().transaction() as retry:
        retry.exec_driver_sql(f"SELECT FROM jobs WHERE id = {lease.job_id} FOR UPDATE")
        publish(publisher_of(ledger), lease, spec)


def test_who_holds_a_batch_of_a_job_stops_no_commit_of_another(
    ledger: Ledger, second_ledger: Callable[[], Ledger], tmp_path: Path
) -> None:
    held, free = (spec_in(tmp_path / name) for name in ("held", "free"))
    of_held, of_free = claimed(ledger, held)[0], claimed(ledger, free)[0]
    publisher = publisher_of(ledger)
    with ThreadPoolExecutor(2) as threads:
        with second_ledger().transaction() as other:
            other.exec_driver_sql(f"SELECT FROM batches WHERE id = {of_held.batch_id} FOR UPDATE")
            late = threads.submit(publish, publisher, of_held, held)
            commits = publisher.commits.commits_of(of_held.job_id)
            wait_until(lambda: commits._acting, what="the commit that waits")
            publish(publisher, of_free, free)
            assert not late.done()
        late.result(120)


def large(ledger: Ledger, folder: Path, rows: int) -> tuple[JobSpec, Lease, PartTable]:
    """A batch of so many rows, all of which failed."""
    spec = spec_in(folder)
    file = SourceFile("rows.parquet", "parquet", 1, "1", rows, 0)
    batch = Descriptor(file, RowRanges.of((0, rows)))
    who = Claimant("mine", "default", spec.engine_key, "function", "1")
    with ledger.transaction() as connection:
        new = job_submit.NewJob(spec, spec.name, "same", spec.output.uri, b"", None)
        job_id = job_submit.insert(connection, new, [file])
        job_submit.insert_batches(connection, job_id, [file], [batch])
        dispatch.admit(connection, job_id, 1, 1)
        [lease] = claims.claim(
            connection, who, room_rows=1, max_batches=1, idle=True, woken="poll", lease_seconds=600
        )
    errors = [RowError(row, str(row), RowErrorKind.REFUSED, "x" * 200) for row in range(rows)]
    return spec, lease, PartTable(pa.table({"row_index": range(rows)}), errors, 1, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_batch_with_a_million_row_errors_commits_and_no_renewal_waits_for_it(
    ledger: Ledger, second_ledger: Callable[[], Ledger], tmp_path: Path
) -> None:
    spec, lease, table = large(ledger, tmp_path, 1_000_000)
    made = Publication(HeldBatch(lease, 1), lease, spec, table, {})
    publisher, heart = publisher_of(ledger), second_ledger()
    renewed = 0
    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(publisher.publish, [made])
        while not publishing.done():
            with heart.transaction() as connection:
                connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
                leasing.renew(connection, "mine", [(lease.batch_id, lease.attempt)], 600)
            renewed += 1
            time.sleep(0.05)
        publishing.result()
    assert made.error is None
    assert renewed > 3
    with ledger.transaction() as connection:
        counted = connection.exec_driver_sql("SELECT rows_failed FROM job_progress").scalar_one()
        listed = connection.exec_driver_sql("SELECT count(*) FROM failed_rows").scalar_one()
    assert counted == listed == 1_000_000


def test_who_lost_a_batch_with_many_row_errors_leaves_none_of_them(
    ledger: Ledger, tmp_path: Path
) -> None:
    spec, lease, table = large(ledger, tmp_path, ERRORS_A_COMMIT + 1)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE batches SET attempt = 2, owner = 'other'")
    made = Publication(HeldBatch(lease, 1), lease, spec, table, {})
    publisher_of(ledger).publish([made])
    assert isinstance(made.error, LeaseLost)
    with ledger.transaction() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM row_errors").scalar_one() == 0
        connection.exec_driver_sql("UPDATE batches SET attempt = 1, owner = 'mine'")
    again = Publication(HeldBatch(lease, 1), lease, spec, table, {})
    publisher_of(ledger).publish([again])
    assert again.committed
    with ledger.transaction() as connection:
        failed = connection.exec_driver_sql("SELECT count(*) FROM failed_rows").scalar_one()
    assert failed == ERRORS_A_COMMIT + 1


def test_a_group_is_cut_where_its_errors_are_too_many_for_one_transaction(
    ledger: Ledger, tmp_path: Path
) -> None:
    lease, *_ = claimed(ledger, spec_in(tmp_path))

    def part(errors: int) -> Part:
        return Part("p", 1, "", 0, 0, [RowError(0, None, RowErrorKind.REFUSED, "no")] * errors)

    half, more = ERRORS_A_COMMIT // 2, ERRORS_A_COMMIT + 1
    cut = groups([(lease, part(errors)) for errors in (half, half, 0, 1, more, 0)])
    found = [[len(each.errors) for _, each in group] for group in cut]
    assert found == [[half, half, 0], [1], [more], [0]]
