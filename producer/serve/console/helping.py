"""What a page offers for a job that stands: its reasons, and the buttons that help, for somebody who may act."""

from nightshift.common.ledger import Connection
from nightshift.common.ledger.fleet import cordons
from nightshift.common.ledger.jobs import deadlines
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.advice.here import Here
from nightshift.producer.control import job_settings
from nightshift.producer.control.seen import written
from nightshift.producer.explain import facts, reasons
from nightshift.producer.explain.reasons import Reason
from nightshift.producer.serve.console.remedies import Remedy, Shown, remedies
from nightshift.producer.serve.ledger import tenants


def settings_of(connection: Connection, job: Job) -> dict[str, str]:
    """The fields of a job that its page changes, as the page writes them. A job without a price has no budget."""
    spec = job.spec
    found = {
        "pool": spec.pool,
        "priority": spec.priority,
        "weight": spec.weight,
        "max_parallel": spec.limits.max_parallel,
        "finish_by": job_settings.shown(deadlines.finish_by(connection, job.id)),
    }
    if spec.engine.has_price:
        found["budget"] = spec.limits.budget
    return {name: written(value) for name, value in found.items()}


def helped(
    connection: Connection, job: Job, here: Here, tenant: str | None, *, acts: bool
) -> list[tuple[Reason, list[Remedy]]]:
    """Each reason why the job stands where it stands, with its buttons: none for somebody who may not act."""
    known = facts.facts(connection, job, tenant=tenant, here=here)
    found = reasons.explain(known)
    if not acts:
        return [(each, []) for each in found]
    shown = Shown(
        settings_of(connection, job),
        {} if tenant is not None else cordons.states(connection),
        None if tenant is None else tenants.get(connection, tenant),
    )
    return [(each, remedies(each, known, shown)) for each in found]
