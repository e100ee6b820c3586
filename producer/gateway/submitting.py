"""A spec of a caller becomes a job, within what its tenant may do: for the HTTP API and for the pages.

What loads Arrow is imported where it is used.
"""

from typing import TYPE_CHECKING

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.gateway import tenant_jobs, tenants
from nightshift.common.ledger.gateway.keys import Caller
from nightshift.common.ledger.gateway.tenants import Tenant
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.batch_api import layout, limits
from nightshift.producer.gateway import access
from nightshift.producer.gateway.errors import ApiError

if TYPE_CHECKING:
    from nightshift.producer.submit.submitted import Submitted


def submit_for(
    ledger: Ledger,
    settings: Settings,
    caller: Caller,
    spec: JobSpec,
    scope: str | None,
    pilot_rows: int | None = None,
) -> "Submitted":
    """Submits a spec, or a pilot of so many of its rows; the same spec over unchanged files gives the same
    job. ApiError or BadInput for what the caller may not, and then there is no job; `scope` is the tenant
    whose jobs the caller sees, None for all.
    """
    from nightshift.producer.estimate import pilot
    from nightshift.producer.submit.submit import submit

    settings, spec = bounded(ledger, settings, caller, spec)
    if spec.batch.arrange == "auto":
        # Sorting takes memory and disk, which many callers share here.
        batch = spec.batch.model_copy(update={"arrange": "none"})
        spec = spec.model_copy(update={"batch": batch})
    tenant = caller.tenant

    def within(connection: Connection, job_id: int) -> None:
        access.refuse_spent(connection, tenant)
        if caller.role != "operator":
            access.refuse_more_rows(connection, tenant, job_id)

    if pilot_rows is None:
        done = submit(ledger, spec, settings, tenant=tenant, within=within)
    else:
        done, _ = pilot.submit_pilot(
            ledger, spec, settings, pilot_rows, tenant=tenant, within=within
        )
    with ledger.transaction() as connection:
        if tenant_jobs.get(connection, scope, done.job_id) is None:
            said = f"{spec.output.uri} is the output of a job of another tenant"
            raise ApiError(409, said, param="output.uri", code="output_taken", retried=False)
    return done


def bounded(
    ledger: Ledger, settings: Settings, caller: Caller, spec: JobSpec
) -> tuple[Settings, JobSpec]:
    """The settings that a caller's spec is held to, and the spec as it is held to them. ApiError 400 for
    one beyond what the tenant may do.
    """
    tenant = bounds(ledger, caller)
    if tenant is None:
        return settings, spec
    if why := limits.refusal(tenant, spec, settings.serve_store):
        raise ApiError(400, why, code="not_allowed")
    # Both must allow a place: what the server may reach, and what the tenant may.
    storage.check_roots([*spec.input.uris, spec.output.uri], settings.allowed_roots)
    # Files are held to these roots once more when they are listed: links may lead elsewhere.
    roots = [*tenant.roots]
    if settings.serve_store is not None:
        roots.append(layout.inputs(settings.serve_store, tenant.name))
    held = settings.model_copy(update={"allowed_roots": roots})
    return held, limits.bound(tenant, spec)


def bounds(ledger: Ledger, caller: Caller) -> Tenant | None:
    """The tenant whose limits hold; None for an operator, who has none."""
    if caller.role == "operator":
        return None
    with ledger.transaction() as connection:
        tenant = tenants.get(connection, caller.tenant)
    if tenant is None:
        raise BadInput(f"there is no tenant {caller.tenant}")
    return tenant
