"""Judge: a second job reads the answers of a first one and gives each a score."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.exit_codes import ExitCode
from nightshift.common.formats import part_names
from nightshift.common.formats.parquet import read as parquet
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.spec.parse import read_yaml
from nightshift.common.text import counted
from nightshift.producer.connect import open_ledger, refuse_no_ledger
from nightshift.producer.judge import judged_rows
from nightshift.producer.judge.judged_rows import JudgedSample
from nightshift.producer.judge.scores import Scale, ScoreStatistics, check
from nightshift.producer.judge.verdict import Verdict
from nightshift.producer.results import part_files
from nightshift.producer.submit.checks import check_columns, check_output
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.submit import submit
from nightshift.producer.views import progress

JUDGED_FILE = "rows.judged"
"""A Parquet file by another suffix: a reader of `**/*.parquet` must not count its rows."""

RunJob = Callable[[JobSpec], Job]


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

    The judge's job runs on this machine, or on the fleet that NIGHTSHIFT_DATABASE_URL names. The
    same call again gives the same job and its score. Raises BadInput for what cannot be judged.
    """
    with _ledger_and_runner(settings, console) as (ledger, run_job):
        with ledger.transaction() as connection:
            judged = jobs.find(connection, reference)
        spec, sample = prepare(ledger, judged, path, scale, settings, count=count, seed=seed)
        job = run_job(spec)
        code = progress.report_end(ledger, job, console)
        if job.closed_at is None or job.output_schema is None:
            return Verdict(sample, job, code)
        column, scores = score(ledger, job, scale, sample.population)
        if scores.unscored and code == ExitCode.DONE:
            code = ExitCode.ROW_ERRORS
        return Verdict(sample, job, code, column, scores)


@contextmanager
def _ledger_and_runner(settings: Settings, console: Console) -> Iterator[tuple[Ledger, RunJob]]:
    """A ledger, and a function that runs a job of that ledger to its end."""
    if settings.database_url is None:
        refuse_no_ledger(settings.home.absolute())
        from nightshift.producer.local.machine import machine

        with machine(settings, console) as here:
            yield here.ledger, lambda spec: here.work_on(here.submit(spec))
        return
    with open_ledger(settings) as (ledger, _):

        def submit_and_wait(spec: JobSpec) -> Job:
            done = submit(ledger, spec, settings)
            return progress.follow(ledger, done.job_id, console).job

        yield ledger, submit_and_wait


def prepare(
    ledger: Ledger,
    judged: Job,
    path: Path,
    scale: Scale,
    settings: Settings,
    *,
    count: int | None,
    seed: int,
) -> tuple[JobSpec, JudgedSample]:
    """The judge's spec, whose input is a file with the rows to judge; writes that file unless it is
    there. Raises BadInput for what cannot be judged.
    """
    with ledger.transaction() as connection:
        done = jobs.progress(connection, judged.id)["rows_done"]
    if judged.closed_at is None:
        raise BadInput(f"job {judged.id} is {judged.state}: a judge wants a job that is finished")
    if not done:
        raise BadInput(f"job {judged.id} has no answered rows to judge")
    every = judged_rows.columns(judged)
    spec = _judge_spec(path, judged, judged_rows.row_index_column(every))
    check(scale, spec)
    known = {each.field.name: each for each in every}
    check_columns(spec, pa.schema([each.field for each in every]))
    rows = min(done, count or done)
    sample = JudgedSample(judged.id, judged.retries, done, rows, seed if rows < done else 0)
    storage.check_roots([spec.output.uri], settings.allowed_roots)
    if not _is_written(ledger, spec, sample):
        # The identity of the judge's job is known once its input is written.
        OwnedDirectory.of(ledger, spec.output.uri, "").check_free(adopt=False)
        check_output(spec, [])
        wanted = spec.read_columns or [each.field.name for each in every if not each.is_copy]
        names = dict.fromkeys([judged_rows.row_index_column(every), *wanted, *spec.passed_columns])
        judged_rows.write(
            ledger,
            judged,
            spec.input.uris[0],
            [known[name] for name in names],
            judged_rows.sampled_positions(done, count, seed),
            {judged_rows.METADATA_KEY: json.dumps(asdict(sample))},
        )
    return spec, sample


def _judge_spec(path: Path, judged: Job, row_index: str) -> JobSpec:
    """The spec at `path` with the rows to judge as its input."""
    data = read_yaml(path)
    if isinstance(data, dict) and "input" in data:
        raise BadInput(
            f"{path}: a judge has no input of its own: leave it out, it reads the rows of job "
            f"{judged.id}"
        )
    filled = {"uri": JUDGED_FILE, "id": judged.spec.input.id or row_index}
    spec = parse_spec({**data, "input": filled} if isinstance(data, dict) else data, str(path))
    spec = resolved(spec)
    folder = f"{spec.output.uri}/{part_names.JUDGED}"
    wanted = {"uri": [f"{folder}/{JUDGED_FILE}"], "format": "parquet"}
    return spec.model_copy(update={"input": spec.input.model_copy(update=wanted)})


def _is_written(ledger: Ledger, spec: JobSpec, sample: JudgedSample) -> bool:
    """Whether a job of this spec reads this sample already; BadInput when it reads another one."""
    uri = spec.input.uris[0]
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, spec.output.uri)
    if job is None:
        return False  # a file without a job may lack columns that the spec names now
    which = f"{spec.output.uri} is the output of job {job.id} ({job.spec.name})"
    if job.spec_identity != spec.identity:
        raise BadInput(f"{which}, whose spec differs: name another output directory")
    if not storage.exists(uri):
        raise BadInput(f"{uri}, which job {job.id} judges, is gone: name another output directory")
    text = parquet.part_metadata(uri).get(judged_rows.METADATA_KEY)
    written = None if text is None else JudgedSample(**json.loads(text))
    if written == sample:
        return True
    raise BadInput(
        f"{which}, which judged {_sample_text(written, sample)}: name another output directory"
    )


def _sample_text(written: JudgedSample | None, wanted: JudgedSample) -> str:
    if written is None:
        return "rows of no job"
    if written.job == wanted.job and written.retries != wanted.retries:
        return f"older answers of job {written.job}, of which rows ran again since"
    seed = "" if written.rows == written.population else f", seed {written.seed}"
    return f"{written.rows:,} of {counted(written.population, 'row')} of job {written.job}{seed}"


def score(ledger: Ledger, job: Job, scale: Scale, population: int) -> tuple[str, ScoreStatistics]:
    """The column of the scores in the judge's output, and their statistics; reads one batch at a time."""
    name, *steps = scale.score_path(part_files.schema_of(job).names)
    scores = ScoreStatistics(population)
    for page in part_files.pages(ledger, job):
        for part in page:
            for batch in part_files.kept_rows(job, part):
                failed = batch.column("error").is_valid().to_pylist()
                for value, wrong in zip(to_list(batch.column(name)), failed, strict=True):
                    if wrong:
                        scores.failed += 1
                    else:
                        scores.add(scale.score(value, steps), value)
    return ".".join([name, *steps]), scores
