"""What a page can do about a reason why a job stands where it stands. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nightshift.common.ledger.fleet import outages
from nightshift.common.states import JobState
from nightshift.producer.advice.advice import Subject
from nightshift.producer.explain.reasons import Reason
from nightshift.producer.explain.snapshot import Facts
from nightshift.producer.serve.console.mending import WAS
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.serve.tenants import limits


class Help(StrEnum):
    """What the page can do: resume a paused job, run failed rows again, load the engine again, raise the
    priority, move to another pool, lead to the form below, lead an operator to the fleet.
    """

    RESUME = "resume"
    RETRY = "retry"
    LOAD = "load"
    PRIORITY = "priority"
    POOL = "pool"
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
    "backing_off": "the rest ends by itself",
    "no_worker": (Help.POOL,),
    "other_engine_only": (Help.POOL,),
    "cordoned": (Help.POOL, Help.FLEET),
    "lost": (Help.POOL, Help.FLEET),
    "others_first": (Help.PRIORITY,),
    "load_failed": (Help.LOAD, Help.POOL),
    "loading": "nothing is wrong",
    "making_room": "a slot is being freed by itself",
    "soon": "it takes seconds",
    "slots_taken": (Help.PRIORITY, Help.POOL),
}
"""What helps by the kind of a reason, or why nothing on a page does."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A button: its words, and the form that it sends to `place`; a link where there is no `form`. `asks` names a
    field that a person fills in.
    """

    label: str
    place: str
    form: Mapping[str, str] = field(default_factory=dict)
    asks: str = ""


def remedies(
    reason: Reason, facts: Facts, now: Mapping[str, str], tenant: Tenant | None
) -> list[Remedy]:
    """The buttons beside a reason, for somebody who may change the job. `now` has the fields of the job as the
    page shows them, `tenant` whose limits hold, None for an operator.
    """
    helps = HELPS.get(reason.kind, ())
    if isinstance(helps, str):
        return []
    here = f"/jobs/{facts.job_id}"
    return [
        Remedy(
            each.label,
            each.place if each.place.startswith(("/", "#")) else f"{here}/{each.place}",
            {f"{WAS}state": str(facts.state), **each.form} if each.form else {},
            each.asks,
        )
        for help_ in helps
        for each in _remedies(help_, reason, facts, now, tenant)
    ]


def _remedies(
    help_: Help, reason: Reason, facts: Facts, now: Mapping[str, str], tenant: Tenant | None
) -> Iterator[Remedy]:
    match help_:
        case Help.RESUME:
            yield from _resume(facts, now)
        case Help.RETRY:
            yield from _retry(facts)
        case Help.LOAD:
            yield Remedy("Try again now", "load", {"do": "load"})
        case Help.PRIORITY:
            yield from _priority(reason, now, tenant)
        case Help.POOL:
            yield from _pools(facts, now, tenant)
        case Help.FORM:
            yield Remedy("Change it below", "#change")
        case Help.FLEET if tenant is None:
            yield Remedy("To the fleet", "/fleet")


def _resume(facts: Facts, now: Mapping[str, str]) -> Iterator[Remedy]:
    job = Subject(facts.job_id, reason=facts.reason)
    if job.refused:
        yield from _retry(facts)
    if job.over_budget:
        form = {"do": "resume", f"{WAS}budget": now["budget"]}
        yield Remedy("Resume with this budget", "move", form, "budget")
    else:
        yield Remedy("Resume", "move", {"do": "resume"})


def _retry(facts: Facts) -> Iterator[Remedy]:
    if facts.rows_failed:
        yield Remedy(f"Run {facts.rows_failed:,} failed rows again", "retry", {"kind": ""})
    elif facts.state is JobState.FAILED:
        yield Remedy("Run the job again", "retry", {"kind": ""})


def _priority(reason: Reason, now: Mapping[str, str], tenant: Tenant | None) -> Iterator[Remedy]:
    if reason.priority is None or _refused(tenant, "priority", reason.priority):
        return
    form = {"priority": str(reason.priority), f"{WAS}priority": now["priority"]}
    yield Remedy(f"Raise priority to {reason.priority}", "set", form)


def _pools(facts: Facts, now: Mapping[str, str], tenant: Tenant | None) -> Iterator[Remedy]:
    for pool in facts.pools:
        if pool != facts.pool and not _refused(tenant, "pool", pool):
            form = {"pool": pool, f"{WAS}pool": now["pool"]}
            yield Remedy(f"Move to pool {pool}", "set", form)


def _refused(tenant: Tenant | None, name: str, value: object) -> bool:
    return tenant is not None and bool(limits.change_refusal(tenant, {name: (None, value)}))
