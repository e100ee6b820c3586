"""The trials of a tuning: each is a pilot of the spec with other engine arguments, on one engine."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rich.console import Console

from nightshift.common.errors import BadInput, Permanent, Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.control import job_moves
from nightshift.producer.estimate.pilot_place import PilotPlace
from nightshift.producer.submit.auto_args import as_text
from nightshift.producer.submit.paths import resolved
from nightshift.producer.tune.refusal import refusal

_AUTO = ("args", "args_auto", "args_from")

MOST_BATCH_ROWS = 1_000_000
"""What batch.rows allows."""


@dataclass(slots=True)
class Candidate:
    """Arguments that are tried, the rows/s of an engine with each number of rows, and why a trial did not come to its
    end.
    """

    args: Mapping[str, Any]
    rates: dict[int, float] = field(default_factory=dict)
    problem: str | None = None

    @property
    def last(self) -> tuple[int, float]:
        """The most rows that it ran, and its rate with them; zeros where it ran none."""
        return max(self.rates.items(), default=(0, 0.0))


@dataclass(slots=True)
class Watch:
    """Says when a trial that is under way has no rate any more, and why: no machine loads its engine,
    or the engine died. `clock` gives seconds.
    """

    ledger: Ledger
    job: Job
    clock: Callable[[], float] = time.monotonic
    problem: str | None = None
    _seen: float | None = None

    def __call__(self) -> bool:
        """Whether the trial is to be stopped. An outage of the ledger stops nothing."""
        try:
            with self.ledger.transaction() as connection:
                spec = (jobs.get(connection, self.job.id) or self.job).spec
                machines = tunings.loads_of(connection, spec.pool, spec.engine_key)
                loss = tunings.first_loss(connection, self.job.id)
        except Retryable:
            return False
        now = self.clock()
        if machines or self._seen is None:
            self._seen = now
        self.problem = _lost(loss) or refusal(machines, now - self._seen)
        return self.problem is not None


@dataclass(slots=True)
class Trials:
    """Runs trials of a spec. `rounds` of tuning came before, and each has outputs of its own; `started`
    are the jobs of this round. `asked` says how many rows were asked for where so many ran.
    """

    spec: JobSpec
    place: PilotPlace
    console: Console
    rounds: int
    started: dict[int, Job] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def spec_of(self, args: Mapping[str, Any], rows: int, again: int = 1) -> JobSpec:
        """The spec of a trial, which is checked as one that somebody wrote.

        One batch keeps it on one engine. Rows that fail are looked at when it is over.
        """
        spec = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        engine = {key: each for key, each in spec["engine"].items() if key not in _AUTO}
        limits = {key: each for key, each in spec.get("limits", {}).items() if key != "finish_by"}
        limits |= {"max_parallel": 1, "max_failed_fraction": 1}
        if (left := self._budget_left()) is not None:
            limits["budget"] = left
        return parse_spec(
            {
                **spec,
                "name": f"{self.spec.name[:52]}-tune",
                "engine": {**engine, "args": dict(args)},
                # The rows of a trial are no rows of the job's table.
                "output": {**spec["output"], "uri": self.output(again), "table": None},
                "batch": {**spec.get("batch", {}), "rows": min(rows, MOST_BATCH_ROWS)},
                "limits": limits,
            },
            f"a trial with {as_text(args)}",
        )

    def output(self, again: int = 1) -> str:
        """The output that the folders of trials are named after; `again` counts those of one trial."""
        suffix = "" if again == 1 else f"-{again}"
        return f"{resolved(self.spec).output.uri}-tune-{self.rounds + 1}{suffix}"

    def run(self, candidate: Candidate, rows: int) -> float | None:
        """The rows/s of an engine with these arguments; None, with the problem noted, for a trial that
        did not come to its end. Such a trial is cancelled, also when the command ends in it.
        """
        job = self._start(candidate, rows)
        watch = Watch(self.place.ledger, job)
        try:
            job = self.place.work_on(job, watch)
        except Permanent as error:  # the fleet of this machine broke with these arguments
            watch.problem = str(error)
        finally:
            self._end(job)
        ran, candidate.problem = _rate(self.place.ledger, job, watch.problem)
        if ran is None:
            return None
        there, rate = ran
        candidate.rates[there], self.asked[there] = rate, rows
        return rate

    def report_left(self) -> None:
        """Prints which jobs and folders the trials leave, and how they go."""
        if not self.started:
            return
        ids = ", ".join(str(number) for number in sorted(self.started))
        word = "job" if len(self.started) == 1 else "jobs"
        folders = ", ".join(sorted({_folder(job) for job in self.started.values()}))
        self.console.print(
            f"The trials stay as {word} {ids}, with their files in {folders}: `nightshift delete JOB` "
            "deletes a job, and once the jobs are deleted the folder may be removed",
            soft_wrap=True,
            markup=False,
        )

    def _start(self, candidate: Candidate, rows: int) -> Job:
        """The job of a trial. A trial that was cancelled before cannot go on: it begins anew."""
        for again in count(1):
            spec = self.spec_of(candidate.args, rows, again)
            job, _ = self.place.start(spec, rows, 1)
            if job.state is not JobState.CANCELLED:
                self.started[job.id] = job
                return job
        raise AssertionError("count has no end")

    def _end(self, job: Job) -> None:
        try:
            with self.place.ledger.transaction() as connection:
                now = jobs.get(connection, job.id)
            if now is not None and not now.state.over:
                job_moves.cancel(self.place.ledger, now)
        except BadInput:
            return  # it came to its end meanwhile
        except Retryable:
            self.console.print(
                f"job {job.id} may still run: `nightshift cancel {job.id}` ends it", markup=False
            )

    def is_budget_spent(self) -> bool:
        """Whether the budget of the spec leaves nothing for a further trial."""
        left = self._budget_left()
        return left is not None and left <= 0

    def _budget_left(self) -> float | None:
        """What the budget of the spec leaves for further trials, None without a budget."""
        budget = self.spec.limits.budget
        if budget is None:
            return None
        with self.place.ledger.transaction() as connection:
            costs = [spending.cost(connection, number)["cost"] for number in self.started]
        return budget - sum(float(cost or 0) for cost in costs)


def _rate(
    ledger: Ledger, job: Job, problem: str | None
) -> tuple[tuple[int, float] | None, str | None]:
    """How many rows ran and the rows/s of an engine at work, or why there is no rate."""
    if problem is not None:
        return None, problem
    if job.state is JobState.PAUSED:
        return None, f"the trial was paused, and then cancelled: {job.reason or 'by hand'}"
    if job.state is not JobState.COMPLETED:
        return None, job.reason or f"the trial was {job.state}"
    with ledger.transaction() as connection:
        row = jobs.progress(connection, job.id)
        loss = tunings.first_loss(connection, job.id)
        spent = spending.similar_jobs(
            connection, job.spec.pool, job.engine_key, "null", only=job.id
        )
    if loss is not None:
        return None, _lost(loss)
    if row["rows_failed"]:
        return None, f"{counted(row['rows_failed'], 'row')} failed: `nightshift errors {job.id}`"
    seconds = sum(each.engine_seconds for each in spent)
    if not seconds:
        return None, "no row ran"
    return (row["rows_total"], sum(each.rows_run for each in spent) / seconds), None


def _lost(error: str | None) -> str | None:
    return None if error is None else f"the engine was lost while rows ran: {error}"


def _folder(job: Job) -> str:
    """The folder of all trials with one output: a pilot lies in OUT-pilot/DIGEST/out."""
    return job.output_uri.rsplit("/", 2)[0]
