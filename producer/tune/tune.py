"""Finds the fastest engine arguments for a spec by trials, and keeps them in the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from nightshift.common import permits
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, VllmEngineSpec
from nightshift.common.text import first_few
from nightshift.producer.estimate.pilot_place import PilotPlace, pilots
from nightshift.producer.submit import auto_args
from nightshift.producer.submit.auto_args import as_text
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.submit import survey
from nightshift.producer.tune import halving
from nightshift.producer.tune.halving import Rung
from nightshift.producer.tune.trials import Candidate, Trials


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried, the spec's own arguments first, and which was fastest, on which hardware; `best`
    is None where no trial came to its end.
    """

    candidates: Sequence[Candidate]
    best: Candidate | None
    hardware: str
    model: str
    task: str

    @property
    def gain(self) -> float | None:
        """The best rate over that of the spec's own arguments, with the most rows that both ran."""
        if self.best is None:
            return None
        own = self.candidates[0].rates
        both = own.keys() & self.best.rates.keys()
        return self.best.rates[max(both)] / own[max(both)] if both else None

    def refuse_without_result(self) -> None:
        """BadInput where nothing is kept."""
        if self.best is None:
            problems = list(dict.fromkeys(each.problem or "" for each in self.candidates))
            raise BadInput(
                f"no trial came to its end: {first_few(list(filter(None, problems)), 2)}"
            )


def tune(
    spec: JobSpec,
    settings: Settings,
    tried: Mapping[str, Sequence[Any]],
    console: Console,
    *,
    rows: int | None,
) -> Tuned:
    """Finds the fastest of the arguments for the rows of a spec, and keeps them in the ledger.

    The trials run where a pilot of the spec runs, the last ones with so many rows; None is as many as
    the arguments need. Raises BadInput where a submit would, for another backend than vLLM, and for a
    pool of unequal machines.
    """
    if not isinstance(spec.engine, VllmEngineSpec):
        raise BadInput(f"tune is for engine.backend vllm, not {spec.engine.backend}")
    with pilots(spec, settings, console) as place:
        hardware = _only(place.slots, spec.pool)
        spec = auto_args.filled_in(place.ledger, spec, place.slots if place.is_here else None)
        permits.check_at_submit(spec, _permitted(spec, settings, place))
        engine = resolved(spec).engine
        assert isinstance(engine, VllmEngineSpec)
        found = [Candidate(args) for args in halving.candidates(engine.args, tried)]
        trials = Trials(
            spec, place, console, _rounds(place.ledger, engine.model, spec.task.kind, hardware)
        )
        steps = _steps(found, rows_there(found, trials, settings), rows)
        try:
            best = search(found, trials, steps)
        finally:
            trials.report_left()
        tuned = Tuned(found, best, hardware, engine.model, spec.task.kind)
        _keep(place.ledger, tuned)
        return tuned


def search(found: Sequence[Candidate], trials: Trials, steps: Sequence[Rung]) -> Candidate | None:
    """Runs the rungs while the budget lasts, and returns the fastest candidate of the last one that any
    came through. A candidate that broke in some trial is never returned; None where all did.
    """
    going = list(range(len(found)))
    before: Mapping[int, float | None] = {}
    for step, keep in zip(steps, [*(each.candidates for each in steps[1:]), 1], strict=True):
        rates: dict[int, float | None] = {}
        for number in going:
            if trials.is_budget_spent():
                trials.console.print("limits.budget is spent: the trials end here")
                # A step that is cut short did not run all candidates: the rates of the step before decide.
                return _fastest(before or rates, found)
            each = found[number]
            trials.console.print(
                f"trial {len(rates) + 1} of {len(going)} with {step.rows:,} rows: {as_text(each.args)}",
                soft_wrap=True,
                markup=False,
            )
            rates[number] = trials.run(each, step.rows)
        going, before = halving.survivors(rates, keep), rates
    sound = [each for each in found if each.rates and each.problem is None]
    return max(sound, key=lambda each: each.last, default=None)


def _fastest(rates: Mapping[int, float | None], found: Sequence[Candidate]) -> Candidate | None:
    """The fastest candidate by the rates of one step, which can be compared; None where none ran."""
    ran = {
        number: rate
        for number, rate in rates.items()
        if rate is not None and found[number].problem is None
    }
    return found[max(ran, key=ran.__getitem__)] if ran else None


def _permitted(spec: JobSpec, settings: Settings, place: PilotPlace) -> Settings:
    """The settings that the trials of a spec are held to: a user who tunes on this machine is
    its operator.
    """
    return permits.of_operator(spec, settings) if place.is_here else settings


def rows_there(found: Sequence[Candidate], trials: Trials, settings: Settings) -> int:
    """How many rows the input has. BadInput for a candidate that a submit would refuse."""
    specs = [trials.spec_of(each.args, 1) for each in found]
    for spec in specs:
        permits.check_at_submit(spec, _permitted(spec, settings, trials.place))
    own = specs[0]
    _, plan = survey(own, _permitted(own, settings, trials.place), ledger=trials.place.ledger)
    return plan.rows_total


def _steps(found: Sequence[Candidate], there: int, rows: int | None) -> list[Rung]:
    """The rungs, with as many rows as there are at most."""
    least = halving.enough_rows([each.args for each in found])
    wanted = max(halving.ROWS, halving.ETA * least) if rows is None else rows
    return halving.rungs(len(found), min(wanted, there), least)


def _keep(ledger: Ledger, tuned: Tuned) -> None:
    if tuned.best is None:
        return
    _, rate = tuned.best.last
    with ledger.transaction() as connection:
        kept = Tuning(tuned.hardware, tuned.best.args, rate)
        tunings.keep(connection, tuned.model, tuned.task, kept)


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
