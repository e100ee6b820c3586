"""The advice of a reason as buttons of a page. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.advice.advice import Action, Advice
from nightshift.producer.explain.reasons import Reason
from nightshift.producer.explain.snapshot import Facts
from nightshift.producer.serve.console.mending import WAS
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.serve.tenants import limits


@dataclass(frozen=True, slots=True)
class Remedy:
    """A button: its words, and the form that it sends to `place`; a link where there is no `form`. `asks` names a
    field that a person fills in. `stands_out` is false for one of several of the same `kind`.
    """

    label: str
    place: str
    form: Mapping[str, str] = field(default_factory=dict)
    asks: str = ""
    kind: Action | None = None
    stands_out: bool = True

    @property
    def id(self) -> str:
        """A name of the button on its page, another one for another form; letters and digits alone."""
        whole = "\n".join([self.place, self.label, *self.form.values()])
        return f"help-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows of the job's fields, and of the cordons by their names; `tenant` is whose limits hold,
    None for an operator.
    """

    fields: Mapping[str, str]
    cordons: Mapping[str, str] = field(default_factory=dict)
    tenant: Tenant | None = None

    def may(self, name: str, value: object) -> bool:
        """Whether the limits of the tenant allow this value of a field."""
        return self.tenant is None or not limits.change_refusal(self.tenant, {name: (None, value)})


def remedies(reason: Reason, facts: Facts, shown: Shown) -> list[Remedy]:
    """Return the buttons of a reason, for somebody who may change the job: one for each advice that a page can do,
    then links.
    """
    buttons = [each for advice in reason.advice for each in _buttons(advice, facts, shown)]
    alike = Counter(each.kind for each in buttons)
    found = [replace(each, stands_out=alike[each.kind] == 1) for each in buttons]
    return sorted(found, key=lambda each: not each.form)


def _buttons(advice: Advice, facts: Facts, shown: Shown) -> Iterator[Remedy]:
    here, state = f"/jobs/{facts.job_id}", {f"{WAS}state": str(facts.state)}
    kind, value = advice.action, advice.value
    match kind:
        case Action.RESUME:
            form = state | {"do": "resume"}
            if advice.asks and advice.asks in shown.fields:
                was = {f"{WAS}{advice.asks}": shown.fields[advice.asks]}
                label = f"Resume with this {advice.asks}"
                yield Remedy(label, f"{here}/move", form | was, advice.asks, kind)
            else:
                yield Remedy("Resume", f"{here}/move", form, kind=kind)
        case Action.RETRY:
            yield from _retry(facts)
        case Action.LOAD:
            yield Remedy("Once mended: try again now", f"{here}/load", state, kind=kind)
        case Action.PRIORITY | Action.POOL if shown.may(
            str(kind), int(value) if kind is Action.PRIORITY else value
        ):
            label = (
                f"Raise priority to {value}" if kind is Action.PRIORITY else f"Move to pool {value}"
            )
            form = state | {str(kind): value, f"{WAS}{kind}": shown.fields[str(kind)]}
            yield Remedy(label, f"{here}/set", form, kind=kind)
        case Action.WORKER:
            yield Remedy("How to start a worker", "/fleet", kind=kind)
        case Action.SETTINGS:
            yield Remedy("Change it below", f"{here}#change", kind=kind)
        case Action.UNCORDON if value in shown.cordons:
            form = {"do": "uncordon", "name": value, f"{WAS}state": shown.cordons[value]}
            yield Remedy(f"Uncordon {value}", "/fleet", form, kind=kind)
        case Action.FLEET:
            yield Remedy("To the fleet", "/fleet", kind=kind)


def _retry(facts: Facts) -> Iterator[Remedy]:
    label = f"Run {counted(facts.rows_failed, 'failed row')} again"
    if facts.state is JobState.FAILED and not facts.rows_failed:
        label = "Run the job again"
    if facts.rows_failed or facts.state is JobState.FAILED:
        form = {f"{WAS}state": str(facts.state), "kind": ""}
        yield Remedy(label, f"/jobs/{facts.job_id}/retry", form, kind=Action.RETRY)
