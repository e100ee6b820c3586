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

from nightshift.common.errors import BadInput
from nightshift.common.formats import registry
from nightshift.common.formats.values import to_rows
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import audit
from nightshift.common.row_errors import Failure
from nightshift.common.settings import Settings
from nightshift.common.spec import REQUEST_COLUMNS, JobSpec, RequestsTask, digest, parse_spec
from nightshift.common.states import JobState
from nightshift.common.storage import storage
from nightshift.producer.estimate import estimate_table
from nightshift.producer.estimate.estimate import Estimate, estimate
from nightshift.producer.estimate.row_sample import draw
from nightshift.producer.results.sample import sample
from nightshift.producer.submit.submit import Submitted, refuse_read_as_input, submit, survey
from nightshift.producer.views import progress, tables
from nightshift.producer.views.progress import EXIT_NOT_FINISHED

SEED = 0
"""The same spec over the same input draws the same rows: a pilot that was cut short goes on."""

BATCHES = 16
"""Batches of a pilot at least, where it has the rows: what varies between them gives the range."""

SHOWN_ROWS = 5


@dataclass(frozen=True, slots=True)
class Pilot:
    """How many rows run first; `agreed` says that the rest runs without a question."""

    rows: int
    agreed: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """The job of a pilot, and by row of the dataset why others that were drawn cannot be read."""

    submitted: Submitted
    bad: Mapping[int, Failure]


@dataclass(frozen=True, slots=True)
class Tried:
    """The same once the job has come to its end, whatever that was."""

    job: Job
    bad: Mapping[int, Failure]


def begin(ledger: Ledger, spec: JobSpec, settings: Settings, rows: int) -> Begun:
    """Writes the sample, if it is not there yet, and submits its job.

    Both lie beside the output, in a folder that belongs to this spec, input and number of rows:
    a spec that was changed after a pilot gets a new one. Raises BadInput for what a submit of the
    spec itself would refuse.
    """
    spec, plan = survey(spec, settings)
    files = sorted((file.uri, file.size, file.fingerprint) for file in plan.files)
    folder = f"{spec.output.uri}-pilot/{digest([spec.identity, files, rows, SEED])[:8]}"
    storage.check_roots([folder], settings.allowed_roots)
    is_requests = isinstance(spec.task, RequestsTask)
    name = "rows.jsonl" if is_requests else "rows.parquet"
    for ours in (name, f"out/part-0.{spec.output.format}"):
        refuse_read_as_input(spec, "the folder of the pilot", folder, ours)
    source = f"{folder}/{name}"
    # Drawn again for a pilot that goes on: which rows cannot be read stands nowhere else.
    drawn = draw(plan, spec, rows, SEED)
    if not drawn.row_index:
        why = next(iter(drawn.bad.values())).message
        raise BadInput(f"none of the rows that were drawn can be read: {why}")
    if not storage.exists(source):
        (_write_requests if is_requests else _write)(source, drawn.table, drawn.row_index)
    submitted = submit(ledger, _spec(spec, source, f"{folder}/out", rows), settings)
    return Begun(submitted, drawn.bad)


def _write_requests(source: str, table: pa.Table, _: Sequence[int]) -> None:
    """Lines of a batch file; each body is the text that it was."""
    lines = []
    for row in to_rows(table.select(list(REQUEST_COLUMNS))):
        *said, body = REQUEST_COLUMNS
        members = [f"{json.dumps(name)}: {json.dumps(row[name])}" for name in said]
        lines.append(f"{{{', '.join(members)}, {json.dumps(body)}: {row[body]}}}\n")
    storage.write_bytes(source, "".join(lines).encode())


def _write(source: str, table: pa.Table, row_index: Sequence[int]) -> None:
    if not table.num_columns:  # a template without a column; Parquet counts rows by columns
        table = pa.table({"row": row_index})
    registry.write_batches(source, table.to_batches(), table.schema, "parquet", {}, replace=True)


def _spec(spec: JobSpec, source: str, output: str, rows: int) -> JobSpec:
    batch_rows = max(1, min(spec.batch.rows, -(-rows // BATCHES)))
    form = "openai" if isinstance(spec.task, RequestsTask) else "parquet"
    chosen = {"uri": source, "format": form, "partitioning": "none", "id": spec.input.id}
    said = spec.model_dump(mode="json", by_alias=True)
    said["name"] = f"{spec.name[:57]}-pilot"
    said["input"] = {**chosen, "columns": spec.input.columns}
    said["output"]["uri"] = output
    said["batch"]["rows"] = batch_rows
    return parse_spec(said, "the pilot")


def verdict(
    ledger: Ledger, spec: JobSpec, settings: Settings, tried: Tried, console: Console, pilot: Pilot
) -> int | None:
    """Shows what the pilot gave and what the whole job would take, and asks.

    None when the whole job shall run, else the exit code.
    """
    if not show(ledger, tried, console):
        return EXIT_NOT_FINISHED
    made = estimate(spec, settings, ledger, pilot=tried.job.id)
    console.print("", estimate_table.picture(made), "", sep="\n")
    return _decided(ledger, spec, tried, made, console, pilot)


def show(ledger: Ledger, tried: Tried, console: Console) -> bool:
    """Some rows with their answers, and what failed; False, with how it ended, when the pilot did
    not come to its end.
    """
    job = tried.job
    if job.state is not JobState.COMPLETED:
        progress.report_end(ledger, job, console)
        return False
    drawn = sample(ledger, job, SHOWN_ROWS, SEED)
    console.print(f"pilot: some rows of job {job.id}, {job.output_uri}\n", soft_wrap=True)
    console.print(tables.sample_table(drawn.rows, drawn.inputs, drawn.outputs))
    with ledger.transaction() as connection:
        kinds = Counter(audit.count_errors(connection, job.id))
        rows = audit.errors(connection, job.id, kind=None, limit=SHOWN_ROWS)
    if tried.bad:
        console.print(
            f"\n{len(tried.bad):,} of the rows that were drawn cannot be read and are not in the "
            f"pilot: {next(iter(tried.bad.values())).message}",
            markup=False,
            soft_wrap=True,
        )
    kinds.update(bad.kind for bad in tried.bad.values())
    console.print("", tables.errors(rows, kinds), sep="\n")
    return True


def _decided(
    ledger: Ledger, spec: JobSpec, tried: Tried, made: Estimate, console: Console, pilot: Pilot
) -> int | None:
    with ledger.transaction() as connection:
        row = jobs.progress(connection, tried.job.id)
    allowed = spec.limits.max_failed_fraction
    failed, drawn = (row[name] + len(tried.bad) for name in ("rows_failed", "rows_total"))
    if failed > allowed * drawn:
        console.print(
            f"{failed:,} of {drawn:,} rows of the pilot failed, more than "
            f"limits.max_failed_fraction {allowed:g} allows: the whole job is not run"
        )
        return EXIT_NOT_FINISHED
    if pilot.agreed:
        return None
    said = "nobody can be asked here; --yes says yes"
    if console.is_interactive and sys.stdin.isatty():
        with suppress(EOFError):
            if Confirm.ask(f"run all {made.rows:,} rows?", console=console, default=False):
                return None
            said = "the same command asks again, without a new pilot"
    console.print(f"the whole job is not run: {said}")
    return EXIT_NOT_FINISHED
