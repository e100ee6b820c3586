"""Verify: reads files and ledger from the outside and says whether every promise is kept."""

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any

from nightshift.common import storage
from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.formats.part_names import MANIFEST, final, staged
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import jobs, table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import audit
from nightshift.common.states import JobState
from nightshift.common.system_errors import told
from nightshift.common.text import counted, first_few, left_out_rows
from nightshift.producer.closed_jobs import readable
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.verify import generations
from nightshift.producer.verify.check_result import CheckResult, Problem
from nightshift.producer.verify.parts import Facts, PartsAudit
from nightshift.producer.views.rates import Values


def verify(ledger: Ledger, job: Job) -> list[Problem]:
    """Everything that is not as it must be; empty when all is well.

    A running job can be verified too: then the checks are for what must hold at any moment.
    """
    return [problem for check in checks(ledger, job) for problem in check.problems]


def checks(ledger: Ledger, job: Job) -> Iterator[CheckResult]:
    """The result of each check as soon as the check is made, in a fixed order. Raises BadInput if the archive of the
    job is gone.
    """
    with readable(ledger, job) as own:
        yield from _checks(own, job)


def _checks(ledger: Ledger, job: Job) -> Iterator[CheckResult]:
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
        of_ledger = [
            _batches(connection, job),
            _counters(connection, job),
            _leases(connection, job),
            _attempts(connection, job),
            _transactions(connection),
        ]
    yield from of_ledger
    over = progress["batches_done"] + progress["batches_dead"]
    complete = job.state is JobState.COMPLETED or (
        job.closed_at is not None and over == progress["batches_total"]
    )
    parts = PartsAudit(ledger, job, complete=complete)
    yield from parts.checks()
    if (grown := generations.check(ledger, job)) is not None:
        yield grown
    if job.closed_at is not None:
        with ledger.transaction() as connection:
            kept = table_commits.kept(connection, job.id)
        directory = _directory(job, parts.facts, progress, kept, complete=complete)
        _check_owner(directory, ledger, job)
        yield directory


def _batches(connection: Connection, job: Job) -> CheckResult:
    covered = audit.coverage(connection, job.id)
    files = jobs.files(connection, job.id)
    left_out, stop = sum(file.left_out for file in files), sum(file.rows for file in files)
    expected, first = stop - left_out, 0
    said = f"{counted(covered.rows, 'row')}, each in one batch"
    if left_out:
        first, stop = covered.first, min(stop, covered.stop)
        said += f"; {left_out_rows(left_out)} of {expected + left_out:,} in the files"
    check = CheckResult("batches", said)
    if covered.rows != covered.distinct_rows:
        check.add(
            f"{counted(covered.rows - covered.distinct_rows, 'row')} are in more than one batch"
        )
    if (covered.first, covered.stop, covered.distinct_rows) != (first, stop, expected):
        without = f" without the {left_out:,} that input.where leaves out" if left_out else ""
        check.add(
            f"the batches cover {counted(covered.distinct_rows, 'row')} in {covered.ranges} pieces from "
            f"{covered.first} to {covered.stop}, and the dataset has {expected:,}{without}"
        )
    return check


def _counters(connection: Connection, job: Job) -> CheckResult:
    check = CheckResult(
        "counters", "the job's counters equal a recount of its batches and failed rows"
    )
    for name, (noted, recounted) in audit.miscounted(connection, job.id).items():
        check.add(f"{name} says {noted:,} and the batches say {recounted:,}")
    for version, (noted, recounted) in audit.miscounted_versions(connection, job.id).items():
        check.add(
            f"version {version} has {counted(noted, 'row')} and the batches say {recounted:,}"
        )
    failed, listed = audit.unlisted(connection, job.id)
    if failed != listed:
        check.add(f"rows_failed says {failed:,} and failed_rows lists {listed:,}")
    return check


def _leases(connection: Connection, job: Job) -> CheckResult:
    check = CheckResult("leases", "every leased batch has a living owner")
    for row in audit.orphaned_leases(connection, job.id):
        why = "its lease ran out" if row["expired"] else f"its owner is {row['worker_state']}"
        check.add(f"batch {row['batch']} is leased by {row['owner']}, and {why}")
    return check


def _attempts(connection: Connection, job: Job) -> CheckResult:
    check = CheckResult("attempts", "every lease is explained")
    for row in audit.broken_attempts(connection, job.id):
        check.add(f"batch {row['batch']}: {row['problem']}")
    return check


def _transactions(connection: Connection) -> CheckResult:
    check = CheckResult("transactions", "none left open")
    idle = audit.idle_transactions(connection)
    if idle:
        check.add(
            f"idle in a transaction for more than {audit.IDLE_SECONDS} s: sessions "
            f"{first_few(row['pid'] for row in idle)}"
        )
    return check


def _directory(
    job: Job,
    facts: Mapping[str, Facts],
    progress: Values,
    kept: Set[str],
    *,
    complete: bool,
) -> CheckResult:
    """The directory must have no file that a reader would take for a part, but those `kept` for readers of a
    table, no staged part, and a manifest that says what the ledger says.
    """
    # Readers of datasets pass over names that begin with a dot or an underscore.
    found = [name for name in storage.list_names(job.output_uri) if name[0] not in "._"]
    replaced = kept & set(found) - facts.keys()
    check = CheckResult(
        "directory",
        f"{counted(len(found) - len(replaced), 'part')} and their manifest, "
        + (
            f"{counted(len(replaced), 'part')} that readers of its table may want, "
            if replaced
            else ""
        )
        + "nothing else",
    )
    if foreign := sorted(set(found) - facts.keys() - kept):
        check.add(f"{job.output_uri} holds what the ledger does not name: {first_few(foreign)}")
    left = storage.list_names(staged(job.output_uri, ""))
    if left:
        check.add(f"{staged(job.output_uri, '')} is not empty: {first_few(sorted(left))}")
    _compare_manifest(check, job, facts, progress, complete)
    return check


def _check_owner(check: CheckResult, ledger: Ledger, job: Job) -> None:
    """The marker, where there is one, must name this job."""
    try:
        OwnedDirectory.of_job(ledger, job).refuse_foreign(job.id)
    except BadInput as error:
        check.add(str(error))


def _compare_manifest(
    check: CheckResult, job: Job, facts: Mapping[str, Facts], progress: Values, complete: bool
) -> None:
    uri = final(job.output_uri, MANIFEST)
    try:
        with storage.open_input(uri) as file:
            manifest: dict[str, Any] = json.load(file, object_hook=_compared_keys)
    except (NightshiftError, OSError, ValueError) as error:
        check.add(f"{uri} cannot be read: {told(error)}")
        return
    expected = {
        "job": job.id,
        "complete": complete,
        "rows": progress["rows_done"] + progress["rows_failed"],
    }
    for name in ("rows_failed", "prompt_tokens", "output_tokens", "status"):
        expected[name] = progress[name]
    for name, value in expected.items():
        if manifest.get(name) != value:
            check.add(
                f"{MANIFEST} says {name} {manifest.get(name)!r} and the ledger says {value!r}"
            )
    in_manifest = {
        part.get("name"): (part.get("rows"), part.get("bytes"), part.get("sha256"))
        for part in manifest.get("parts", [])
    }
    differ = sorted(
        str(name)
        for name in facts.keys() | in_manifest.keys()
        if facts.get(name) != in_manifest.get(name)
    )
    if differ:
        check.add(f"{MANIFEST} and the ledger differ about {first_few(differ)}")


def _compared_keys(entry: dict[str, Any]) -> dict[str, Any]:
    """Keeps of a part only what is compared: a manifest may name a million parts."""
    if "sha256" not in entry:
        return entry
    return {name: entry.get(name) for name in ("name", "rows", "bytes", "sha256")}
