"""Verify: reads files and ledger from the outside and says whether every promise is kept."""

from collections.abc import Iterator

from nightshift.common.ledger import Connection, Ledger, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import audit
from nightshift.common.states import JobState
from nightshift.producer.verify.checks import Check, Finding, some
from nightshift.producer.verify.files import check_files
from nightshift.producer.verify.parts import PartsAudit


def verify(ledger: Ledger, job: Job) -> list[Finding]:
    """Everything that is not as it must be; empty when all is well.

    Works on running jobs too, where it checks what must hold at any moment.
    """
    return [finding for check in checks(ledger, job) for finding in check.findings]


def checks(ledger: Ledger, job: Job) -> Iterator[Check]:
    """Each check as soon as it is made, in a fixed order."""
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
        seen = [
            _batches(connection, job),
            _counters(connection, job),
            _leases(connection, job),
            _attempts(connection, job),
            _transactions(connection),
        ]
    yield from seen
    over = progress["batches_done"] + progress["batches_dead"]
    complete = job.state is JobState.COMPLETED or (
        job.closed_at is not None and over == progress["batches_total"]
    )
    parts = PartsAudit(ledger, job, complete=complete)
    yield from parts.checks(progress["rows_total"])
    if job.closed_at is not None:
        yield check_files(job, parts.facts, progress, complete=complete)


def _batches(connection: Connection, job: Job) -> Check:
    check = Check("batches")
    seen = audit.coverage(connection, job.id)
    planned = sum(file.rows for file in jobs.files(connection, job.id))
    expected = min(planned, job.spec.input.limit or planned)
    if seen.rows != seen.distinct_rows:
        check.bad(f"{seen.rows - seen.distinct_rows:,} rows are in more than one batch")
    if (seen.first, seen.stop, seen.distinct_rows) != (0, expected, expected):
        check.bad(
            f"the batches cover {seen.distinct_rows:,} rows in {seen.ranges} pieces from "
            f"{seen.first} to {seen.stop}, and the dataset has {expected:,}"
        )
    check.said = f"{seen.rows:,} rows, each in one batch"
    return check.closed()


def _counters(connection: Connection, job: Job) -> Check:
    check = Check("counters", "the job's counters equal a recount of its batches and failed rows")
    for name, (counted, recounted) in audit.miscounted(connection, job.id).items():
        check.bad(f"{name} says {counted:,} and the batches say {recounted:,}")
    counted, listed = audit.unlisted(connection, job.id)
    if counted != listed:
        check.bad(f"rows_failed says {counted:,} and failed_rows lists {listed:,}")
    return check.closed()


def _leases(connection: Connection, job: Job) -> Check:
    check = Check("leases", "every leased batch has a living owner")
    for row in audit.orphaned_leases(connection, job.id):
        why = "its lease ran out" if row["expired"] else f"its owner is {row['worker_state']}"
        check.bad(f"batch {row['batch']} is leased by {row['owner']}, and {why}")
    return check.closed()


def _attempts(connection: Connection, job: Job) -> Check:
    check = Check("attempts", "every lease is explained")
    check.all_bad(
        f"batch {row['batch']}: {row['problem']}"
        for row in audit.broken_attempts(connection, job.id)
    )
    return check.closed()


def _transactions(connection: Connection) -> Check:
    check = Check("transactions", "none left open")
    idle = audit.idle_transactions(connection)
    if idle:
        check.bad(
            f"idle in a transaction for more than {audit.IDLE_SECONDS} s: sessions "
            f"{some(row['pid'] for row in idle)}"
        )
    return check.closed()
