"""The trials of a tuning: each is a pilot of the spec with other engine arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from nightshift.common.errors import BadInput, Permanent
from nightshift.common.ledger import Ledger, jobs, spending
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, VllmEngineSpec
from nightshift.common.states import JobState
from nightshift.common.text import first_few
from nightshift.producer.estimate.pilot import FinishedPilot
from nightshift.producer.local.run import PilotPlace, pilots
from nightshift.producer.submit import auto_args
from nightshift.producer.submit.paths import resolved
from nightshift.producer.tune import halving


@dataclass(slots=True)
class Candidate:
    """Arguments that are tried, the rows/s of an engine with each number of rows, and why a trial did
    not come to its end.
    """

    args: Mapping[str, Any]
    rates: dict[int, float] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried, the spec's own arguments first, and which was fastest, on which hardware."""

    candidates: Sequence[Candidate]
    best: Candidate
    hardware: str
    model: str
    task: str

    @property
    def gain(self) -> float | None:
        """The best rate over that of the spec's own arguments, with the most rows that both ran."""
        own = self.candidates[0].rates
        both = own.keys() & self.best.rates.keys()
        return self.best.rates[max(both)] / own[max(both)] if both else None


def tune(
    spec: JobSpec,
    settings: Settings,
    tried: Mapping[str, Sequence[Any]],
    console: Console,
    *,
    rows: int,
) -> Tuned:
    """Finds the fastest of the arguments for the rows of a spec, and keeps them in the ledger.

    The trials run where a pilot of the spec runs. Raises BadInput where a submit would, for another
    backend than vLLM, for a pool of unequal machines, and where no trial came to its end.
    """
    if not isinstance(spec.engine, VllmEngineSpec):
        raise BadInput(f"tune is for engine.backend vllm, not {spec.engine.backend}")
    with pilots(spec, settings, console) as place:
        hardware = _only(place.slots, spec.pool)
        spec = auto_args.filled_in(place.ledger, spec, place.slots)
        engine = resolved(spec).engine
        assert isinstance(engine, VllmEngineSpec)
        before = _rounds(place.ledger, engine.model, spec.task.kind, hardware)
        found = [Candidate(args) for args in halving.candidates(engine.args, tried)]
        best = _search(found, _Trials(spec, place, console, before), rows)
        tuned = Tuned(found, best, hardware, engine.model, spec.task.kind)
        kept = Tuning(hardware, best.args, max(best.rates.values()))
        with place.ledger.transaction() as connection:
            tunings.keep(connection, tuned.model, tuned.task, kept)
        return tuned


@dataclass(frozen=True, slots=True)
class _Trials:
    """Runs trials of a spec; `rounds` of tuning came before, and each has outputs of its own."""

    spec: JobSpec
    place: PilotPlace
    console: Console
    rounds: int

    def run(self, candidate: Candidate, rows: int) -> float | None:
        """The rows/s of an engine with these arguments; None, with the problem noted, for a trial that
        did not come to its end.
        """
        try:
            pilot = self.place.run(self._spec(candidate.args), rows)
        except Permanent as error:  # the fleet of this machine broke with these arguments
            candidate.problem = str(error)
            return None
        rate, candidate.problem = _rate(self.place.ledger, pilot)
        if rate is not None:
            candidate.rates[rows] = rate
        return rate

    def _spec(self, args: Mapping[str, Any]) -> JobSpec:
        spec = self.spec
        own = {"args": dict(args), "args_auto": False}
        output = f"{resolved(spec).output.uri}-tune-{self.rounds + 1}"
        return spec.model_copy(
            update={
                "name": f"{spec.name[:52]}-tune",
                "engine": spec.engine.model_copy(update=own),
                "output": spec.output.model_copy(update={"uri": output}),
                "limits": spec.limits.model_copy(update={"finish_by": None}),
            }
        )


def _search(found: Sequence[Candidate], trials: _Trials, rows: int) -> Candidate:
    """Runs the rungs, and returns the fastest candidate of the last one; BadInput where none ran."""
    going = list(range(len(found)))
    steps = halving.rungs(len(found), rows)
    for step, after in zip(steps, [*steps[1:], halving.Rung(1, rows)], strict=True):
        rates: dict[int, float | None] = {}
        for number in going:
            each = found[number]
            trials.console.print(
                f"trial {len(rates) + 1} of {len(going)} with {step.rows:,} rows: {_text(each.args)}",
                soft_wrap=True,
                markup=False,
            )
            rates[number] = trials.run(each, step.rows)
        going = halving.survivors(rates, after.candidates)
        if not going:
            problems = list(dict.fromkeys(str(each.problem) for each in found if each.problem))
            raise BadInput(f"no trial came to its end: {first_few(problems, 2)}")
    return found[max(going, key=lambda number: rates[number] or 0.0)]


def _rate(ledger: Ledger, pilot: FinishedPilot) -> tuple[float | None, str | None]:
    """Rows/s of an engine at work, or why there is no rate."""
    job = pilot.job
    if job.state is not JobState.COMPLETED:
        return None, job.reason or f"the trial was {job.state}"
    with ledger.transaction() as connection:
        row = jobs.progress(connection, job.id)
        spent = spending.similar_jobs(
            connection, job.spec.pool, job.spec.engine_key, "null", only=job.id
        )
    if row["rows_failed"]:
        return None, f"{row['rows_failed']:,} rows failed: `nightshift errors {job.id}`"
    seconds = sum(each.engine_seconds for each in spent)
    if not seconds:
        return None, "no row ran"
    return sum(each.rows_run for each in spent) / seconds, None


def _rounds(ledger: Ledger, model: str, task: str, hardware: str) -> int:
    with ledger.transaction() as connection:
        kept = tunings.of_model(connection, model, task)
    return next((each.rounds for each in kept if each.hardware == hardware), 0)


def _only(slots: Mapping[str, int], pool: str) -> str:
    """The hardware of all slots; BadInput where they have several kinds, or an old worker says none."""
    if len(slots) == 1:
        return next(iter(slots))
    if not slots:
        raise BadInput(
            f"the workers of the pool {pool} are too old to say which hardware they have"
        )
    raise BadInput(
        f"the pool {pool} has different hardware ({first_few(sorted(slots))}): tune in a pool of equal "
        "machines"
    )


def _text(args: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in args.items()) or "vLLM's own defaults"


def as_json(tuned: Tuned) -> dict[str, Any]:
    """What was tried and what is kept, for machines."""
    return {
        "model": tuned.model,
        "task": tuned.task,
        "hardware": tuned.hardware,
        "kept": tuned.best.args,
        "gain": tuned.gain,
        "tried": [
            {"args": each.args, "rows_per_second": each.rates, "problem": each.problem}
            for each in tuned.candidates
        ],
    }


def show(tuned: Tuned, console: Console) -> None:
    """The table of what was tried, and what is kept."""
    own, *_ = tuned.candidates
    rungs = sorted({rows for each in tuned.candidates for rows in each.rates})
    table = Table(title="Rows/s of an engine", title_justify="left")
    table.add_column("arguments", overflow="fold")
    for rows in rungs:
        table.add_column(f"{rows:,} rows", justify="right")
    table.add_column("", overflow="fold")
    for each in tuned.candidates:
        differs = {name: value for name, value in each.args.items() if own.args.get(name) != value}
        rates = [f"{each.rates[rows]:,.1f}" if rows in each.rates else "" for rows in rungs]
        said = "kept" if each is tuned.best else each.problem or ""
        table.add_row("as in the spec" if each is own else _text(differs), *rates, said)
    console.print(table, markup=False)
    if tuned.best is own:
        said = "None was faster than the arguments of the spec, which are kept"
    elif tuned.gain is None:
        said = f"Kept: {_text(tuned.best.args)}; the arguments of the spec did not run"
    else:
        said = (
            f"Kept: {_text(tuned.best.args)}, {tuned.gain:.2f} times the rows/s of the spec's own"
        )
    console.print(
        f"{said}, for {tuned.model}, {tuned.task}, on {tuned.hardware}. `engine.args: auto` uses them.",
        soft_wrap=True,
        markup=False,
    )
