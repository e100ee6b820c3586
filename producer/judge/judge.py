"""Judge: a second job over the answers of a first one, and the score that it gives them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_io, part_names
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.spec.file import read_yaml
from nightshift.producer.connect import open_ledger, refuse_no_ledger
from nightshift.producer.judge import judged_rows
from nightshift.producer.judge.scores import Scale, Tally, check
from nightshift.producer.results import part_files
from nightshift.producer.submit.checks import check_columns, check_output
from nightshift.producer.submit.resolve import resolved
from nightshift.producer.submit.submit import submit
from nightshift.producer.views import progress

JUDGED_FILE = "rows.parquet"

NOTE = "judged"
"""Key in that file's metadata that says whose rows it holds."""

EXIT_UNSCORED = 1

CarryOut = Callable[[JobSpec], Job]


@dataclass(frozen=True, slots=True)
class Draw:
    """Which rows of which job are judged: `rows` of its `population` answered ones.

    `retries` tells whether its answers are still those.
    """

    job: int
    retries: int
    population: int
    rows: int
    seed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's job as it ended, and its score; None where it did not come to its end."""

    draw: Draw
    job: Job
    exit_code: int
    column: str = ""
    tally: Tally | None = None

    def as_json(self) -> dict[str, Any]:
        """For machines; null where there is no number."""
        said: dict[str, Any] = {
            "job": self.draw.job,
            "judge": self.job.id,
            "status": str(self.job.state),
            "answered": self.draw.population,
            "judged": self.draw.rows,
            "column": self.column or None,
        }
        tally = self.tally
        if tally is None:
            return said
        return said | {
            "scored": tally.count,
            "unscored": tally.unscored,
            "failed": tally.failed,
            "mean": tally.mean if tally.count else None,
            "deviation": tally.deviation,
            "standard_error": tally.standard_error,
            "standard_error_here": tally.standard_error_here,
            "interval_95": tally.interval,
            "answers": tally.answers,
        }


def judge(
    settings: Settings,
    reference: str,
    path: Path,
    scale: Scale,
    *,
    count: int | None,
    seed: int,
    console: Console,
) -> Verdict:
    """Judges the answered rows of a finished job, or `count` of them, by the spec at `path`.

    On this machine like `run`, where NIGHTSHIFT_DATABASE_URL names no fleet; there submitted and
    waited for. The same again gives the same job, and its score. Raises BadInput with a sentence.
    """
    with _workplace(settings, console) as (ledger, carry_out):
        with ledger.transaction() as connection:
            judged = jobs.find(connection, reference)
        spec, draw = prepare(ledger, judged, path, scale, settings, count=count, seed=seed)
        job = carry_out(spec)
        code = progress.report_end(ledger, job, console)
        if job.closed_at is None or job.output_schema is None:
            return Verdict(draw, job, code)
        column, tally = score(ledger, job, scale, draw.population)
        if tally.unscored and code == progress.EXIT_ANSWERED:
            code = EXIT_UNSCORED
        return Verdict(draw, job, code, column, tally)


@contextmanager
def _workplace(settings: Settings, console: Console) -> Iterator[tuple[Ledger, CarryOut]]:
    """A ledger, and what takes a job to its end there."""
    if settings.database_url is None:
        refuse_no_ledger(settings.home.absolute())
        from nightshift.producer.local.machine import machine

        with machine(settings) as here:
            yield here.ledger, lambda spec: here.run_job(spec, new=False, console=console)
        return
    with open_ledger(settings) as opened:

        def wait(spec: JobSpec) -> Job:
            done = submit(opened.ledger, spec, settings)
            return progress.follow(opened.ledger, done.job_id, console)

        yield opened.ledger, wait


def prepare(
    ledger: Ledger,
    judged: Job,
    path: Path,
    scale: Scale,
    settings: Settings,
    *,
    count: int | None,
    seed: int,
) -> tuple[JobSpec, Draw]:
    """The judge's spec over a file with the rows that it judges, which is written if it is not
    there yet.
    """
    with ledger.transaction() as connection:
        done = jobs.progress(connection, judged.id)["rows_done"]
    if judged.closed_at is None:
        raise BadInput(f"job {judged.id} is {judged.state}: a judge wants a job that is finished")
    if not done:
        raise BadInput(f"job {judged.id} has no answered rows to judge")
    every = judged_rows.columns(judged)
    spec = _spec(path, judged, judged_rows.place_column(every))
    check(scale, spec)
    known = {each.field.name: each for each in every}
    check_columns(spec, pa.schema([each.field for each in every]))
    rows = min(done, count or done)
    draw = Draw(judged.id, judged.retries, done, rows, seed if rows < done else 0)
    storage.check_roots([spec.output.uri], settings.allowed_roots)
    if not _is_there(ledger, spec, draw):
        check_output(spec, [])
        wanted = spec.read_columns or [each.field.name for each in every if not each.is_copy]
        names = dict.fromkeys([judged_rows.place_column(every), *wanted, *spec.passed_columns])
        judged_rows.write(
            ledger,
            judged,
            spec.input.uris[0],
            [known[name] for name in names],
            judged_rows.places(done, count, seed),
            {NOTE: json.dumps(asdict(draw))},
        )
    return spec, draw


def _spec(path: Path, judged: Job, place: str) -> JobSpec:
    """The judge's spec, with the rows that it judges as its input."""
    data = read_yaml(path)
    if isinstance(data, dict) and "input" in data:
        raise BadInput(
            f"{path}: a judge has no input of its own: leave it out, it reads the rows of job "
            f"{judged.id}"
        )
    filled = {"uri": JUDGED_FILE, "id": judged.spec.input.id or place}
    spec = parse_spec({**data, "input": filled} if isinstance(data, dict) else data, str(path))
    spec = resolved(spec)
    uri = f"{spec.output.uri}/{part_names.JUDGED}/{JUDGED_FILE}"
    return spec.model_copy(update={"input": spec.input.model_copy(update={"uri": [uri]})})


def _is_there(ledger: Ledger, spec: JobSpec, draw: Draw) -> bool:
    """Whether a job stands on the file of this draw; BadInput when it stands on another."""
    uri = spec.input.uris[0]
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, spec.output.uri)
    there = storage.exists(uri)
    if job is None:
        return False  # what an earlier try left may lack columns that the spec names now
    which = f"{spec.output.uri} is the output of job {job.id} ({job.spec.name})"
    if job.spec_identity != spec.identity:
        raise BadInput(f"{which}, whose spec differs: name another output directory")
    if not there:
        raise BadInput(f"{uri}, which job {job.id} judges, is gone: name another output directory")
    if (held := _held(uri)) == draw:
        return True
    raise BadInput(f"{which}, which judged {_said(held, draw)}: name another output directory")


def _held(uri: str) -> Draw | None:
    note = part_io.part_metadata(uri).get(NOTE)
    return None if note is None else Draw(**json.loads(note))


def _said(held: Draw | None, wanted: Draw) -> str:
    if held is None:
        return "rows of no job"
    if held.job == wanted.job and held.retries != wanted.retries:
        return f"older answers of job {held.job}, of which rows ran again since"
    seed = "" if held.rows == held.population else f", seed {held.seed}"
    return f"{held.rows:,} of {held.population:,} rows of job {held.job}{seed}"


def score(ledger: Ledger, job: Job, scale: Scale, population: int) -> tuple[str, Tally]:
    """Where the scores stand in the judge's output, and what they come to; streamed."""
    name, *steps = scale.place(part_files.schema_of(job).names)
    tally = Tally(population)
    for page in part_files.pages(ledger, job):
        for part in page:
            for batch in part_files.kept_rows(job, part):
                failed = batch.column("error").is_valid().to_pylist()
                for value, wrong in zip(to_list(batch.column(name)), failed, strict=True):
                    if wrong:
                        tally.failed += 1
                    else:
                        tally.add(scale.score(value, steps), value)
    return ".".join([name, *steps]), tally
