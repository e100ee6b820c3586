"""What a page can do about a reason why a job stands where it stands. Pure."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nightshift.common.ledger.fleet import outages
from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.advice.advice import Subject
from nightshift.producer.explain.reasons import Reason
from nightshift.producer.explain.snapshot import Facts
from nightshift.producer.serve.console.mending import WAS
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.serve.tenants import limits


class Help(StrEnum):
    """What the page can do: resume a paused job, run failed rows again, load the engine again, raise the
    priority, move to another pool, tell how a worker is started, lead to the form below, end cordons.
    """

    RESUME = "resume"
    RETRY = "retry"
    LOAD = "load"
    PRIORITY = "priority"
    POOL = "pool"
    WORKER = "worker"
    FORM = "form"
    FLEET = "fleet"


HELPS: Mapping[str, tuple[Help, ...] | str] = {
    "paused": (Help.RESUME,),
    "completed": (Help.RETRY,),
    "failed": (Help.RETRY,),
    "cancelled": "a cancel is final",
    "no_run": "it takes a shell on the machine of the folder",
    "no_reaper": "it takes a shell on a machine of the operator",
    **{
        f"{kind}_away": "the wait ends with its cause, outside of the fleet"
        for kind in outages.Kind
    },
    "closing": "a reaper is at it",
    "look_failed": "the next look comes by itself; what it met lies outside",
    "waits_for_files": "nothing is wrong",
    "leases_left": "a reaper takes the leases back by itself",
    "standing": (Help.FLEET,),
    "working": "nothing is wrong",
    "max_parallel": (Help.FORM,),
    "late": (Help.FORM,),
    "backing_off": "the rest ends by itself",
    "no_worker": (Help.POOL, Help.WORKER),
    "other_engine_only": (Help.POOL,),
    "cordoned": (Help.FLEET, Help.POOL),
    "lost": (Help.POOL, Help.FLEET),
    "others_first": (Help.PRIORITY,),
    "load_failed": (Help.LOAD, Help.POOL),
    "loading": "nothing is wrong",
    "making_room": "a slot is being freed by itself",
    "soon": "it takes seconds",
    "slots_taken": (Help.PRIORITY, Help.POOL),
}
"""What helps by the kind of a reason, or why nothing on a page does."""


MOST_UNCORDONED = 3
"""Cordons that a page offers to end; more lead to the page of the fleet."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A button: its words, and the form that it sends to `place`; a link where there is no `form`. `asks` names a
    field that a person fills in. `stands_out` is false for one of several that would do the same elsewhere.
    """

    label: str
    place: str
    form: Mapping[str, str] = field(default_factory=dict)
    asks: str = ""
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
    """The buttons beside a reason, for somebody who may change the job."""
    helps = HELPS.get(reason.kind, ())
    if isinstance(helps, str):
        return []
    return [each for wanted in helps for each in _buttons(wanted, reason, facts, shown)]


def _buttons(wanted: Help, reason: Reason, facts: Facts, shown: Shown) -> Iterator[Remedy]:
    here, state = f"/jobs/{facts.job_id}", {f"{WAS}state": str(facts.state)}
    match wanted:
        case Help.RESUME:
            yield from _resume(facts, shown)
        case Help.RETRY:
            yield from _retry(facts)
        case Help.LOAD:
            yield Remedy("Once mended: try again now", f"{here}/load", state)
        case Help.PRIORITY if reason.priority is not None and shown.may(
            "priority", reason.priority
        ):
            given = {"priority": str(reason.priority), f"{WAS}priority": shown.fields["priority"]}
            yield Remedy(f"Raise priority to {reason.priority}", f"{here}/set", state | given)
        case Help.POOL:
            was = {f"{WAS}pool": shown.fields["pool"]}
            others = [
                pool for pool in facts.pools if pool != facts.pool and shown.may("pool", pool)
            ]
            for pool in others:
                form = state | was | {"pool": pool}
                alone = len(others) == 1
                yield Remedy(f"Move to pool {pool}", f"{here}/set", form, stands_out=alone)
        case Help.WORKER if shown.tenant is None:
            yield Remedy("How to start a worker", "/fleet")
        case Help.FORM:
            yield Remedy("Change it below", "#change")
        case Help.FLEET if shown.tenant is None:
            yield from _uncordon(facts, shown)


def _resume(facts: Facts, shown: Shown) -> Iterator[Remedy]:
    job = Subject(facts.job_id, reason=facts.reason)
    if job.refused:
        yield from _retry(facts)
    place = f"/jobs/{facts.job_id}/move"
    form = {f"{WAS}state": str(facts.state), "do": "resume"}
    if job.over_budget and "budget" in shown.fields:
        was = {f"{WAS}budget": shown.fields["budget"]}
        yield Remedy("Resume with this budget", place, form | was, "budget")
    else:
        yield Remedy("Resume", place, form)


def _retry(facts: Facts) -> Iterator[Remedy]:
    if facts.is_archived:
        return
    label = f"Run {counted(facts.rows_failed, 'failed row')} again"
    if facts.state is JobState.FAILED and not facts.rows_failed:
        label = "Run the job again"
    if facts.rows_failed or facts.state is JobState.FAILED:
        form = {f"{WAS}state": str(facts.state), "kind": ""}
        yield Remedy(label, f"/jobs/{facts.job_id}/retry", form)


def _uncordon(facts: Facts, shown: Shown) -> Iterator[Remedy]:
    """The cordons of the job's pool end; an operator's part."""
    held = {slot.cordon for slot in facts.slots}
    names = sorted(name for name in shown.cordons if name in held)
    for name in names[:MOST_UNCORDONED]:
        form = {"do": "uncordon", "name": name, f"{WAS}state": shown.cordons[name]}
        yield Remedy(f"Uncordon {name}", "/fleet", form, stands_out=len(names) == 1)
    if not 0 < len(names) <= MOST_UNCORDONED:
        yield Remedy("To the fleet", "/fleet")
