"""Finds the fastest engine arguments for a spec by trials, and keeps them in the ledger."""

import re
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
from nightshift.common.spec import GenerateTask, JobSpec, VllmEngineSpec
from nightshift.common.text import counted, first_few
from nightshift.producer.estimate.pilot_place import PilotPlace, pilots
from nightshift.producer.submit import auto_args
from nightshift.producer.submit.auto_args import as_text
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.submit import survey
from nightshift.producer.tune import changes, halving
from nightshift.producer.tune.checkpoint import is_quantised
from nightshift.producer.tune.halving import Rung
from nightshift.producer.tune.trials import Candidate, Trials

CPU = re.compile(r"\d+ CPU cores")
"""How the hardware of a slot without GPUs begins."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried, the spec's own arguments first, and which was fastest, on which hardware; `best`
    is None where no trial came to its end. `offered` would be faster and may change answers, which nobody
    allowed. `rows_of` says whose rows ran. `left_out` are arguments of the spec that may change answers, and
    that nobody allowed for other jobs.
    """

    candidates: Sequence[Candidate]
    best: Candidate | None
    hardware: str
    model: str
    task: str
    rows_of: str
    offered: Candidate | None = None
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
    min_agreement: float | None = None,
) -> Tuned:
    """Finds the fastest of the arguments for the rows of a spec, and keeps them in the ledger.

    `named` are values that are to be tried. The trials run where a pilot of the spec runs, the last ones
    with so many rows; None is as many as the arguments need. Arguments that may change answers are kept
    where the share of equal answers is `min_agreement` or more; None keeps none. Raises BadInput where a
    submit would, for another backend than vLLM, and for a pool of unequal machines.
    """
    if not isinstance(spec.engine, VllmEngineSpec):
        raise BadInput(f"tune is for engine.backend vllm, not {spec.engine.backend}")
    with pilots(spec, settings, console) as place:
        hardware = _only(place.slots, spec.pool)
        spec = auto_args.filled_in(place.ledger, spec, place.slots if place.is_here else None)
        before = _before(place.ledger, spec, hardware)
        spec = without_changes(spec, before)
        permits.check_at_submit(spec, _permitted(spec, settings, place))
        engine = resolved(spec).engine
        assert isinstance(engine, VllmEngineSpec)
        on_gpu = not CPU.match(hardware)
        search_of = changes.search_of(
            engine.args,
            named,
            spec.task.kind,
            on_gpu=on_gpu,
            is_quantised=is_quantised(engine.model, engine.revision),
        )
        for said in search_of.left_out:
            console.print(said, markup=False)
        found = [Candidate(args) for args in search_of.first]
        trials = Trials(spec, place, console, rounds_of(before, min_agreement))
        single = [Candidate({**engine.args, **each}) for each in search_of.further]
        steps = _steps(found, rows_there([*found, *single], trials, settings), rows)
        try:
            best = search(found, trials, steps)
            offered = None
            if best is not None:
                if "max_num_batched_tokens" not in named:
                    best = try_sizes(found, best, trials)
                best, offered = try_changes(found, best, trials, search_of.further, min_agreement)
        finally:
            trials.report_left()
        left_out = changes.cheaper(engine.args) if min_agreement is None else {}
        rows_of = f"{spec.name}, {form_of(spec)}"
        tuned = Tuned(
            found, best, hardware, engine.model, spec.task.kind, rows_of, offered, left_out
        )
        _keep(place.ledger, tuned, trials.rounds)
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
    for args in changes.sizes_beside(best.args, [each.args for each in found]):
        one = Candidate(args)
        if (rate := _one_more(found, one, best, trials)) is not None and rate > _rate(best):
            best = one
    return best


def try_changes(
    found: list[Candidate],
    best: Candidate,
    trials: Trials,
    further: Sequence[Mapping[str, Any]],
    least: float | None,
) -> tuple[Candidate, Candidate | None]:
    """Runs each of the further arguments alone on top of the best, then together those that are allowed and
    pay, and adds all to `found`. Returns the fastest that may be kept, and the fastest that would pay and
    may not be kept, None without one.

    Answers are compared with those of the spec's own arguments; with those of the best where the spec's own did
    not run.
    """
    rows, _ = best.last
    own = found[0] if rows in found[0].jobs and found[0].problem is None else best
    if not trials.is_sampled:
        for each in found:
            if each is not own and each.problem is None and rows in each.jobs:
                trials.compare(each, own, rows)
    tops = []
    for change in further:
        one = Candidate({**best.args, **change}, changed=change)
        if _compared_trial(found, one, own, best, trials):
            tops.append(one)
    tops.sort(key=_rate, reverse=True)
    allowed = [one for one in tops if _is_allowed(one, least)]
    kept = allowed[0] if allowed else best
    for other in allowed[1:]:
        added = {name: other.args[name] for name in other.changed.keys() - kept.changed.keys()}
        if not added:  # another value of the same argument
            continue
        one = Candidate({**kept.args, **added}, changed={**kept.changed, **added})
        if _compared_trial(found, one, own, kept, trials) and _is_allowed(one, least):
            kept = one
    offered = (
        one
        for one in tops
        if one.agreement is not None and changes.is_worth(_rate(one), _rate(kept))
    )
    return kept, next(offered, None)


def _compared_trial(
    found: list[Candidate], one: Candidate, own: Candidate, best: Candidate, trials: Trials
) -> bool:
    """Runs a candidate whose answers may differ; whether it is fast enough that they matter."""
    rate = _one_more(found, one, best, trials)
    if rate is None:
        return False
    trials.compare(one, own, best.last[0])
    return changes.is_worth(rate, _rate(best))


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


def _is_allowed(one: Candidate, least: float | None) -> bool:
    return changes.is_allowed(None if one.agreement is None else one.agreement.equal, least)


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


def _keep(ledger: Ledger, tuned: Tuned, rounds: int) -> None:
    if tuned.best is None or tuned.for_auto is None:
        return
    _, rate = tuned.best.last
    with ledger.transaction() as connection:
        kept = Tuning(tuned.hardware, tuned.for_auto, rate, detail=detail(tuned, rounds))
        tunings.keep(connection, tuned.model, tuned.task, kept)


def detail(tuned: Tuned, rounds: int) -> dict[str, Any]:
    """What the ledger keeps beside the arguments, after a round with so many before."""
    best, own = tuned.best, tuned.candidates[0].args
    found: dict[str, Any] = {}
    if best is not None and (of_spec := changes.cheaper(own)):
        found["of_spec"] = {
            name: each for name, each in of_spec.items() if name not in best.changed
        }
    if best is not None and best.changed and best.agreement is not None:
        found |= {
            "changed": dict(best.changed),
            "own": {name: own[name] for name in best.changed if name in own},
            "agreement": best.agreement.as_json(),
            "said": f"{best.agreement} to those of the arguments that were tuned, measured on the rows of "
            f"{tuned.rows_of}",
        }
    return found if tuned.offered is None else {**found, "offered": rounds}


def form_of(spec: JobSpec) -> str:
    """The form of a job's answers in a word or two."""
    task = spec.task
    if not isinstance(task, GenerateTask):
        return task.kind
    forms = {"choice": "choice", "json_schema": "JSON", "regex": "regex", "grammar": "grammar"}
    found = (said for name, said in forms.items() if getattr(task.output, name, None) is not None)
    return next(found, "free text")


def rounds_of(before: Tuning | None, min_agreement: float | None) -> int:
    """How many rounds count as over. Where the last one left faster arguments since they may change answers,
    and these are allowed now, that round goes on: its trials are found again.
    """
    if before is None:
        return 0
    goes_on = min_agreement is not None and "offered" in before.detail
    return int(before.detail["offered"]) if goes_on else before.rounds


def without_changes(spec: JobSpec, before: Tuning | None) -> JobSpec:
    """A spec that says auto without the arguments that may change answers, which an earlier round kept by the
    user's word: they are measured anew, against what they took the place of.
    """
    engine = spec.engine
    if before is None or not isinstance(engine, VllmEngineSpec) or not engine.args_auto:
        return spec
    if engine.args != before.args:
        return spec
    left = {name: each for name, each in engine.args.items() if name not in before.changed}
    own = before.detail.get("own", {}) if before.changed else {}
    return spec.model_copy(update={"engine": engine.model_copy(update={"args": {**left, **own}})})


def _before(ledger: Ledger, spec: JobSpec, hardware: str) -> Tuning | None:
    """What the last round on this hardware kept."""
    engine = resolved(spec).engine
    assert isinstance(engine, VllmEngineSpec)
    with ledger.transaction() as connection:
        kept = tunings.of_model(connection, engine.model, spec.task.kind)
    return next((each for each in kept if each.hardware == hardware), None)


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
