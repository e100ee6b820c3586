"""Finds the fastest engine arguments for a spec by trials, and keeps them in the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from nightshift.common import permits
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, VllmEngineSpec
from nightshift.common.text import counted, first_few
from nightshift.producer.estimate.pilot_place import PilotPlace, pilots
from nightshift.producer.submit import auto_args
from nightshift.producer.submit.auto_args import as_text
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.submit import survey
from nightshift.producer.tune import arguments, halving
from nightshift.producer.tune.halving import Rung
from nightshift.producer.tune.trials import Candidate, Trials


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried, the spec's own arguments first, and which was fastest, on which hardware; `best`
    is None where no trial came to its end. `left_out` are arguments of the spec that may change answers, and that
    `args: auto` of other jobs does not get.
    """

    candidates: Sequence[Candidate]
    best: Candidate | None
    hardware: str
    model: str
    task: str
    left_out: Mapping[str, Any] = field(default_factory=dict)

    @property
    def for_auto(self) -> dict[str, Any] | None:
        """What `args: auto` stands for from now on; None where nothing is kept."""
        if self.best is None:
            return None
        return {name: each for name, each in self.best.args.items() if name not in self.left_out}

    @property
    def gain(self) -> float | None:
        """The best rate over that of the spec's own arguments, with the most rows that both ran."""
        return None if self.best is None else faster(self.best, self.candidates[0])

    def refuse_without_result(self) -> None:
        """BadInput where nothing is kept."""
        if self.best is None:
            problems = list(dict.fromkeys(each.problem or "" for each in self.candidates))
            raise BadInput(
                f"no trial came to its end: {first_few(list(filter(None, problems)), 2)}"
            )


def faster(one: Candidate, other: Candidate) -> float | None:
    """The rate of one over that of the other, with the most rows that both ran; None without such rows."""
    both = one.rates.keys() & other.rates.keys()
    return one.rates[max(both)] / other.rates[max(both)] if both else None


def tune(
    spec: JobSpec,
    settings: Settings,
    named: Mapping[str, Sequence[Any]],
    console: Console,
    *,
    rows: int | None,
) -> Tuned:
    """Find the fastest of the arguments for the rows of a spec, and keep them in the ledger.

    `named` are values that are to be tried. The trials run where a pilot of the spec runs, the last ones
    with so many rows; None is as many as the arguments need. Raises BadInput where a
    submit would, for an argument that may change answers, for another backend than vLLM, and for a pool of unequal
    machines.
    """
    if not isinstance(spec.engine, VllmEngineSpec):
        raise BadInput(f"tune is for engine.backend vllm, not {spec.engine.backend}")
    with pilots(spec, settings, console) as place:
        hardware = _only(place.slots, spec.pool)
        spec = auto_args.filled_in(place.ledger, spec, place.slots if place.is_here else None)
        permits.check_at_submit(spec, _permitted(spec, settings, place))
        engine = resolved(spec).engine
        assert isinstance(engine, VllmEngineSpec)
        found = [Candidate(args) for args in arguments.candidates(engine.args, named)]
        trials = Trials(spec, place, console, _rounds(place.ledger, spec, hardware))
        steps = _steps(found, rows_there(found, trials, settings), rows)
        try:
            best = search(found, trials, steps)
            if best is not None and "max_num_batched_tokens" not in named:
                best = try_sizes(found, best, trials)
        finally:
            trials.report_left()
        left_out = arguments.left_out(engine.args)
        tuned = Tuned(found, best, hardware, engine.model, spec.task.kind, left_out)
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
                f"trial {len(rates) + 1} of {len(going)} with {counted(step.rows, 'row')}: {as_text(each.args)}",
                soft_wrap=True,
                markup=False,
            )
            rates[number] = trials.run(each, step.rows)
        going, before = halving.survivors(rates, keep), rates
    sound = [each for each in found if each.rates and each.problem is None]
    return max(sound, key=lambda each: each.last, default=None)


def try_sizes(found: list[Candidate], best: Candidate, trials: Trials) -> Candidate:
    """Runs the best arguments with half and twice the tokens a step, adds them to `found`, and returns the
    fastest.
    """
    for args in arguments.sizes_beside(best.args, [each.args for each in found]):
        one = Candidate(args)
        if (rate := _one_more(found, one, best, trials)) is not None and rate > _rate(best):
            best = one
    return best


def _one_more(
    found: list[Candidate], one: Candidate, best: Candidate, trials: Trials
) -> float | None:
    """The rate of one more candidate with as many rows as the best; None where it broke. Where the budget is
    spent, it does not run, and is not added to `found`.
    """
    rows, _ = best.last
    is_spent = trials.is_budget_spent()
    said = (
        "limits.budget is spent: not tried"
        if is_spent
        else f"one more trial with {counted(rows, 'row')}"
    )
    trials.console.print(f"{said}: {as_text(one.args)}", soft_wrap=True, markup=False)
    if is_spent:
        return None
    found.append(one)
    return trials.run(one, trials.asked.get(rows, rows))


def _rate(one: Candidate) -> float:
    return one.last[1]


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
    if tuned.best is None or tuned.for_auto is None:
        return
    _, rate = tuned.best.last
    with ledger.transaction() as connection:
        kept = Tuning(tuned.hardware, tuned.for_auto, rate)
        tunings.keep(connection, tuned.model, tuned.task, kept)


def _rounds(ledger: Ledger, spec: JobSpec, hardware: str) -> int:
    """How often the model of a spec was tuned on this hardware."""
    engine = resolved(spec).engine
    assert isinstance(engine, VllmEngineSpec)
    with ledger.transaction() as connection:
        kept = tunings.of_model(connection, engine.model, spec.task.kind)
    return next((each.rounds for each in kept if each.hardware == hardware), 0)


def _only(slots: Mapping[str, int], pool: str) -> str:
    """Return the hardware of all slots; BadInput if they have several kinds, or none has reported any."""
    if len(slots) == 1:
        return next(iter(slots))
    if not slots:
        raise BadInput(
            f"no living slot of the pool {pool} has reported its hardware: try again in a few seconds"
        )
    raise BadInput(
        f"the pool {pool} has different hardware ({first_few(sorted(slots))}): tune in a pool of equal "
        "machines"
    )
