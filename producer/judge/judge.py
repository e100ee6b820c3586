"""Judge: a second job reads the answers of a first one and gives each a score."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.connect import open_ledger, refuse_no_ledger
from nightshift.producer.judge.prepare import JudgedSample, prepare
from nightshift.producer.judge.scores import Scale, ScoreStatistics
from nightshift.producer.results import part_files
from nightshift.producer.submit.submit import submit
from nightshift.producer.views import progress

EXIT_UNSCORED = 1

RunJob = Callable[[JobSpec], Job]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's job at its end, and its scores; None where it did not come to its end."""

    sample: JudgedSample
    job: Job
    exit_code: int
    column: str = ""
    scores: ScoreStatistics | None = None

    def as_json(self) -> dict[str, Any]:
        """For machines; null where there is no number."""
        result: dict[str, Any] = {
            "job": self.sample.job,
            "judge": self.job.id,
            "status": str(self.job.state),
            "answered": self.sample.population,
            "judged": self.sample.rows,
            "column": self.column or None,
        }
        scores = self.scores
        if scores is None:
            return result
        return result | {
            "scored": scores.count,
            "unscored": scores.unscored,
            "failed": scores.failed,
            "mean": scores.mean if scores.count else None,
            "deviation": scores.deviation,
            "standard_error": scores.standard_error,
            "standard_error_here": scores.standard_error_here,
            "interval_95": scores.interval,
            "answers": scores.answers,
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
        if scores.unscored and code == progress.EXIT_ANSWERED:
            code = EXIT_UNSCORED
        return Verdict(sample, job, code, column, scores)


@contextmanager
def _ledger_and_runner(settings: Settings, console: Console) -> Iterator[tuple[Ledger, RunJob]]:
    """A ledger, and a function that runs a job of that ledger to its end."""
    if settings.database_url is None:
        refuse_no_ledger(settings.home.absolute())
        from nightshift.producer.local.machine import machine

        with machine(settings, console) as here:
            yield here.ledger, lambda spec: here.work_on(here.submit(spec, new=False))
        return
    with open_ledger(settings) as opened:

        def submit_and_wait(spec: JobSpec) -> Job:
            done = submit(opened.ledger, spec, settings)
            return progress.follow(opened.ledger, done.job_id, console)

        yield opened.ledger, submit_and_wait


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
