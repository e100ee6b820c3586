"""What the specs of a tenant may do, and how much at once. Pure."""

from nightshift.common.ledger.gateway.tenants import Tenant
from nightshift.common.spec import FunctionEngineSpec, JobSpec, OpenaiEngineSpec
from nightshift.common.storage import resolve


def refusal(tenant: Tenant, spec: JobSpec) -> str | None:
    """Why a spec is beyond what its tenant may do, in one sentence; None where it is not."""
    if why := place_refusal(tenant, spec):
        return why
    if isinstance(spec.engine, FunctionEngineSpec) and not tenant.callables:
        return "this tenant may not run functions: engine.backend function"
    if isinstance(spec.engine, OpenaiEngineSpec) and not tenant.remotes:
        return "this tenant may not name a server: engine.base_url"
    for uri in [*spec.input.uris, spec.output.uri]:
        if not _is_below(uri, tenant.roots):
            return f"{uri[:200]} lies outside the folders of this tenant: {_said(tenant.roots)}"
    return None


def place_refusal(tenant: Tenant, spec: JobSpec) -> str | None:
    """As `refusal`, of a spec whose engine and folders the operator has chosen: that of a batch."""
    if spec.priority > tenant.max_priority:
        return (
            f"priority {spec.priority} is above {tenant.max_priority}, the highest of this tenant"
        )
    if tenant.pools is not None and spec.pool not in tenant.pools:
        return f"the pool {spec.pool} is none of this tenant's: {', '.join(tenant.pools) or 'none'}"
    return None


def quota_refusal(tenant: Tenant, reserved: tuple[int, int], asked: tuple[int, int]) -> str | None:
    """Why so many rows and tokens more are beyond what the tenant may have open at once, beside what it
    has `reserved`; None where they are not.
    """
    kinds = (("rows", tenant.max_rows), ("tokens", tenant.max_tokens))
    for (what, most), has, wants in zip(kinds, reserved, asked, strict=True):
        if most is not None and has + wants > most:
            return (
                f"{wants:,} {what} are asked for, {has:,} are open already, and this tenant may have "
                f"{most:,} at once"
            )
    return None


def _is_below(uri: str, roots: tuple[str, ...]) -> bool:
    """Whether an address lies below one of the roots; a relative path never does."""
    if "://" not in uri and not uri.startswith("/"):
        return False
    place = resolve(uri)
    bare = [resolve(root).rstrip("/") for root in roots]
    return any(place == root or place.startswith(f"{root}/") for root in bare)


def _said(roots: tuple[str, ...]) -> str:
    return ", ".join(roots) or "it has none"
