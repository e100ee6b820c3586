"""A pilot: a random sample of a job's rows, run first, as a job of its own beside the real one."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.prompt import Confirm

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_rows, reading
from nightshift.common.formats.values import to_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows
from nightshift.common.row_errors import Failure
from nightshift.common.settings import Settings
from nightshift.common.spec import REQUEST_COLUMNS, JobSpec, RequestsTask, digest
from nightshift.common.spec.section import STORED
from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.estimate import estimate_report
from nightshift.producer.estimate.estimate import PILOT_BATCHES, Estimate, estimate
from nightshift.producer.estimate.row_sample import sample_rows
from nightshift.producer.results.sample import sample
from nightshift.producer.submit import auto_args
from nightshift.producer.submit.checks import refuse_read_as_input
from nightshift.producer.submit.intake import PLAIN, Asked
from nightshift.producer.submit.submit import submit, survey, within_roots
from nightshift.producer.submit.submitted import Submitted
from nightshift.producer.views import progress, row_tables

SEED = 0
"""One seed for all: a pilot that was interrupted finds the same rows, and goes on."""

BATCHES = 16
"""Least number of batches, if there are rows enough: the range comes from their differences."""

SHOWN_ROWS = 5

Unreadable = Mapping[int, Failure]


@dataclass(frozen=True, slots=True)
class FinishedPilot:
    """The job of a pilot at its end, and by `row_index` the rows of the sample that are not in the
    job because they cannot be read.
    """

    job: Job
    unreadable: Unreadable


def submit_pilot(
    ledger: Ledger,
    spec: JobSpec,
    settings: Settings,
    rows: int,
    *,
    asked: Asked = PLAIN,
    batches: int | None = None,
) -> tuple[Submitted, Unreadable]:
    """Writes the sample, if it is not there yet, and submits its job.

    Both lie beside the output, in a folder that belongs to this spec, input and number of rows:
    a spec that was changed after a pilot gets a new folder. What is `asked` is that of the submit. The rows are cut into `batches` where batch.rows allows so few; without a number into
    BATCHES, of a function into PILOT_BATCHES. Raises BadInput
    where a submit of the spec itself would.
    """
    spec, plan = survey(spec, settings, ledger=ledger, adopt=asked.adopt)
    files = sorted((file.uri, file.size, file.fingerprint) for file in plan.files)
    folder = f"{spec.output.uri}-pilot/{digest([spec.identity, files, rows, SEED])[:8]}"
    storage.check_roots([folder], settings.allowed_roots)
    is_requests = isinstance(spec.task, RequestsTask)
    name = "rows.jsonl" if is_requests else "rows.parquet"
    for ours in (name, f"out/part-0.{spec.output.format}"):
        refuse_read_as_input(spec, "the folder of the pilot", folder, ours)
    source = f"{folder}/{name}"
    # A pilot that goes on reads its sample again: only so it knows the rows that cannot be read.
    with within_roots(settings):
        sampled = sample_rows(plan, spec, rows, SEED)
    if not sampled.row_index:
        why = next(iter(sampled.bad.values())).message
        raise BadInput(f"none of the rows that were drawn can be read: {why}")
    reading.copies.use(f"{folder}/out", source)
    with within_roots(settings):
        if not storage.exists(source):
            (_write_requests if is_requests else _write)(source, sampled.table, sampled.row_index)
            reading.copies.made(f"{folder}/out", source)
    if batches is None:
        batches = PILOT_BATCHES if spec.task.kind == "function" else BATCHES
    whole = _spec(spec, source, f"{folder}/out", -(-rows // batches))
    return submit(ledger, whole, settings, asked), sampled.bad


def _write_requests(source: str, table: pa.Table, _: Sequence[int]) -> None:
    """Writes lines of a batch file; the text of each body stays as it was."""
    lines = []
    for row in to_rows(table.select(list(REQUEST_COLUMNS))):
        *names, body = REQUEST_COLUMNS
        members = [f"{json.dumps(name)}: {json.dumps(row[name])}" for name in names]
        lines.append(f"{{{', '.join(members)}, {json.dumps(body)}: {row[body]}}}\n")
    storage.write_bytes(source, "".join(lines).encode())


def _write(source: str, table: pa.Table, row_index: Sequence[int]) -> None:
    if not table.num_columns:  # a template without a column; Parquet counts rows by columns
        table = pa.table({"row": row_index})
    part_rows.write_batches(source, table.to_batches(), table.schema, "parquet", {})


def _spec(spec: JobSpec, source: str, output: str, batch_rows: int) -> JobSpec:
    sections = spec.model_dump(mode="json", by_alias=True, context=STORED)
    sections["name"] = f"{spec.name[:57]}-pilot"
    sections["input"] = {
        "uri": source,
        "format": "openai" if isinstance(spec.task, RequestsTask) else "parquet",
        "partitioning": "none",
        "id": spec.input.id,
        "columns": spec.input.columns,
    }
    sections["output"]["uri"] = output
    sections["output"].pop("table", None)  # the rows of a pilot are no rows of the job's table
    sections["batch"]["rows"] = min(spec.batch.rows, batch_rows)
    # What fits the spec fits its pilot; arguments that auto stands for are filled in already.
    return JobSpec.model_validate(sections, context=STORED)


def shown_estimate(
    ledger: Ledger,
    spec: JobSpec,
    settings: Settings,
    pilot: FinishedPilot,
    console: Console,
    *,
    workers: int | None = None,
) -> Estimate | None:
    """Shows what the pilot gave, and estimates the whole job by it; None when the pilot did not
    come to its end.
    """
    if not show(ledger, pilot, console):
        return None
    spec = auto_args.filled_as(spec, pilot.job.spec)
    return estimate(spec, settings, ledger, workers=workers, pilot=pilot.job.id)


def show(ledger: Ledger, pilot: FinishedPilot, console: Console) -> bool:
    """Prints some rows with their answers, and the errors. For a pilot that was not completed,
    prints how it ended and returns False.
    """
    job, unreadable = pilot.job, pilot.unreadable
    if job.state is not JobState.COMPLETED:
        progress.report_end(ledger, job, console)
        return False
    drawn = sample(ledger, job, SHOWN_ROWS, SEED)
    console.print(f"pilot: some rows of job {job.id}, {job.output_uri}\n", soft_wrap=True)
    console.print(row_tables.sample_table(drawn.rows, drawn.inputs, drawn.outputs))
    with ledger.transaction() as connection:
        kinds = Counter(failed_rows.count_by_kind(connection, job.id))
        rows = failed_rows.first(connection, job.id, kind=None, limit=SHOWN_ROWS)
    if unreadable:
        console.print(
            f"\n{len(unreadable):,} of the rows that were drawn cannot be read and are not in the "
            f"pilot: {next(iter(unreadable.values())).message}",
            markup=False,
            soft_wrap=True,
        )
    kinds.update(failure.kind for failure in unreadable.values())
    console.print("", row_tables.errors(rows, kinds), sep="\n")
    return True


def goes_on(
    ledger: Ledger,
    spec: JobSpec,
    pilot: FinishedPilot,
    made: Estimate,
    console: Console,
    *,
    agreed: bool,
) -> bool:
    """Shows what the whole job would take, and whether it runs; asks unless that is `agreed`."""
    console.print("", estimate_report.render(made), "", sep="\n")
    with ledger.transaction() as connection:
        row = jobs.progress(connection, pilot.job.id)
    allowed = spec.limits.max_failed_fraction
    failed, sampled = (row[name] + len(pilot.unreadable) for name in ("rows_failed", "rows_total"))
    if failed > allowed * sampled:
        console.print(
            f"{failed:,} of {counted(sampled, 'row')} of the pilot failed, more than "
            f"limits.max_failed_fraction {allowed:g} allows: the whole job is not run"
        )
        return False
    if agreed:
        return True
    reason = "no question can be asked here; --yes says yes"
    if console.is_interactive and sys.stdin.isatty():
        with suppress(EOFError):
            if Confirm.ask(f"run all {counted(made.rows, 'row')}?", console=console, default=False):
                return True
            reason = "the same command asks again, without a new pilot"
    console.print(f"the whole job is not run: {reason}")
    return False
