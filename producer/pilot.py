"""A pilot: a random sample of a job's rows, run first, as a job of its own beside the real one."""

from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.prompt import Confirm

from common import formats, storage
from common.errors import BadInput
from common.ledger import Ledger, audit, jobs
from common.ledger.jobs import Job
from common.settings import Settings
from common.spec import InputSpec, JobSpec, digest
from common.states import JobState
from producer import estimate_picture, pictures, progress
from producer.draw import draw
from producer.estimate import Estimate, estimate
from producer.progress import EXIT_NOT_FINISHED
from producer.sample import sample
from producer.submit import Submitted, submit, survey

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


def begin(ledger: Ledger, spec: JobSpec, settings: Settings, rows: int) -> Submitted:
    """Writes the sample, if it is not there yet, and submits its job.

    Both lie beside the output, in a folder that belongs to this spec, input and number of rows:
    a spec that was changed after a pilot gets a new one. Raises BadInput for what a submit of the
    spec itself would refuse.
    """
    spec, plan = survey(spec, settings, free_output=True)
    files = sorted((file.uri, file.size, file.fingerprint) for file in plan.files)
    folder = f"{spec.output.uri}-pilot/{digest([spec.identity, files, rows, SEED])[:8]}"
    storage.check_roots([folder], settings.allowed_roots)
    source = f"{folder}/rows.parquet"
    if not storage.exists(source):
        _write(source, draw(plan, spec, rows, SEED))
    return submit(ledger, _spec(spec, source, f"{folder}/out", rows), settings)


def _write(source: str, drawn: formats.Rows) -> None:
    table = drawn.table
    if not len(drawn.row_index):
        why = next(iter(drawn.bad.values())).message
        raise BadInput(f"none of the rows that were drawn can be read: {why}")
    if not table.num_columns:  # a template without a column; Parquet counts rows by columns
        table = pa.table({"row": drawn.row_index})
    formats.write_batches(source, table.to_batches(), table.schema, "parquet", {}, replace=True)


def _spec(spec: JobSpec, source: str, output: str, rows: int) -> JobSpec:
    batch_rows = max(1, min(spec.batch.rows, -(-rows // BATCHES)))
    chosen = {"uri": source, "format": "parquet", "partitioning": "none", "id": spec.input.id}
    return spec.model_copy(
        update={
            "name": f"{spec.name[:57]}-pilot",
            "input": InputSpec.model_validate({**chosen, "columns": spec.input.columns}),
            "output": spec.output.model_copy(update={"uri": output}),
            "batch": spec.batch.model_copy(update={"rows": batch_rows}),
        }
    )


def verdict(
    ledger: Ledger, spec: JobSpec, settings: Settings, job: Job, console: Console, pilot: Pilot
) -> int | None:
    """Shows what the pilot gave and what the whole job would take, and asks.

    None when the whole job shall run, else the exit code.
    """
    if not show(ledger, job, console):
        return EXIT_NOT_FINISHED
    made = estimate(spec, settings, ledger, pilot=job.id)
    console.print("", estimate_picture.picture(made), "", sep="\n")
    return _decided(ledger, spec, job, made, console, pilot)


def show(ledger: Ledger, job: Job, console: Console) -> bool:
    """Some rows with their answers, and what failed; False, with how it ended, when the pilot did
    not come to its end.
    """
    if job.state is not JobState.COMPLETED:
        progress.report_end(ledger, job, console)
        return False
    drawn = sample(ledger, job, SHOWN_ROWS, SEED)
    console.print(f"pilot: some rows of job {job.id}, {job.output_uri}\n", soft_wrap=True)
    console.print(pictures.sample_table(drawn.rows, drawn.inputs, drawn.outputs))
    with ledger.transaction() as connection:
        kinds = audit.count_errors(connection, job.id)
        rows = audit.errors(connection, job.id, kind=None, limit=SHOWN_ROWS)
    console.print("", pictures.errors(rows, kinds), sep="\n")
    return True


def _decided(
    ledger: Ledger, spec: JobSpec, job: Job, made: Estimate, console: Console, pilot: Pilot
) -> int | None:
    with ledger.transaction() as connection:
        row = jobs.progress(connection, job.id)
    allowed = spec.limits.max_failed_fraction
    if row["rows_failed"] > allowed * row["rows_total"]:
        console.print(
            f"{row['rows_failed']:,} of {row['rows_total']:,} rows of the pilot failed, more than "
            f"limits.max_failed_fraction {allowed:g} allows: the whole job is not run"
        )
        return EXIT_NOT_FINISHED
    if pilot.agreed:
        return None
    if not console.is_interactive:
        console.print("the whole job is not run: nobody can be asked here; --yes says yes")
        return EXIT_NOT_FINISHED
    if Confirm.ask(f"run all {made.rows:,} rows?", console=console, default=False):
        return None
    console.print("the whole job is not run; the same command asks again, without a new pilot")
    return EXIT_NOT_FINISHED
