"""Who asks: by a key, by the header of a trusted proxy, or anybody of this machine while no key was made."""

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs, tenant_costs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.remotes import is_loopback
from nightshift.common.settings import Settings
from nightshift.common.text import counted
from nightshift.producer.control.answer import Changes
from nightshift.producer.serve import store_layout
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import keys, quotas, tenants
from nightshift.producer.serve.ledger.keys import Caller, Role
from nightshift.producer.serve.tenants import limits

LOCAL_TENANT = "default"
"""The tenant of whoever asks without a key."""

RANK: dict[Role, int] = {"viewer": 0, "user": 1, "operator": 2}

OWN_SITE = ("same-origin", "none")
"""What a browser says in Sec-Fetch-Site of a request that no other site has made."""


class SpentOut(ApiError, BadInput):
    """429, which is not to be sent again: the tenant has as much as it may have. A submit that meets it
    leaves nothing.
    """

    def __init__(self, why: str, code: str) -> None:
        super().__init__(429, why, type="insufficient_quota", code=code, retried=False)


def nobody_enters(ledger: Ledger, settings: Settings) -> bool:
    """Whether others reach the server while no key was ever made: nobody is let in until there is one."""
    if is_loopback(settings.serve_host) or settings.serve_tenant_header is not None:
        return False
    with ledger.transaction() as connection:
        return not keys.exist(connection)


def caller(request: Request, ledger: Ledger, settings: Settings, key: str | None = None) -> Caller:
    """Who asks, with the `key` of a session or that of the request; ApiError 401 where nothing says so."""
    key = _key(request) or key
    with ledger.transaction() as connection:
        found = keys.find(connection, key) if key else None
        found = found or _by_proxy(request, connection, settings)
        if found is not None:
            return found
        if _is_open(request, settings) and not keys.exist(connection):
            tenants.ensure(connection, LOCAL_TENANT)
            return Caller(LOCAL_TENANT, "operator", "local")
    said = "the API key opens nothing" if key else "an API key is needed: Authorization: Bearer …"
    raise _unknown(said)


def require(caller: Caller, role: Role) -> None:
    """ApiError 403 where the role of the caller is not enough."""
    if RANK[caller.role] < RANK[role]:
        raise ApiError(
            403,
            f"this request needs the role {role} or higher; your role is {caller.role}",
            code="forbidden",
        )


def refuse_spent(connection: Connection, tenant: str) -> None:
    """SpentOut where the budget of the tenant is spent."""
    why = tenant_costs.spent_out(connection, tenant)
    if why is not None:
        raise SpentOut(why, code="insufficient_quota")


def refuse_more_rows(
    connection: Connection, tenant_name: str, job_id: int, *, again: bool = False
) -> None:
    """Raise SpentOut if the open rows of a job, with those of the tenant's other jobs, exceed the tenant's limit. If the
    job runs `again`, its open rows are those it will have then. Locks the tenant.
    """
    tenants.lock(connection, tenant_name)
    tenant = tenants.get(connection, tenant_name)
    assert tenant is not None
    if again:
        rows, tokens = quotas.again(connection, job_id)
    else:
        progress = jobs.progress(connection, job_id)
        rows = progress["rows_total"] - progress["rows_done"] - progress["rows_failed"]
        tokens = 0
    has = quotas.reserved(connection, tenant_name, besides=job_id)
    why = limits.quota_refusal(tenant, has, (rows, tokens))
    if why is not None:
        by_rows = tenant.max_rows is not None and has[0] + rows > tenant.max_rows
        raise SpentOut(why, code="rows_limit_exceeded" if by_rows else "token_limit_exceeded")


def count_results(connection: Connection, caller: Caller, job_id: int, outputs: str) -> None:
    """Lets the results of a new job count as stored if they lie below `outputs`, the folder of its tenant in
    the store. SpentOut where the tenant has no byte left for them; an operator is not bound.
    """
    if not quotas.count_results(connection, job_id, outputs) or caller.role == "operator":
        return
    tenant = tenants.get(connection, caller.tenant)
    assert tenant is not None
    why = limits.stored_refusal(tenant, quotas.stored(connection, caller.tenant), (0, 1))
    if why is not None:
        raise SpentOut(why, code="storage_limit_exceeded")


def room_for_rows(
    connection: Connection, tenant_name: str, *, of_job: bool
) -> tuple[int, str] | None:
    """How many rows the input of a tenant's plan may have, and why no more: those that may be open beside
    the open ones if it is the plan `of_job`, else as many as may be open at all; None for any number.
    SpentOut where there is no room for one.
    """
    tenant = tenants.get(connection, tenant_name)
    if tenant is None or tenant.max_rows is None:
        return None
    rows, _ = quotas.reserved(connection, tenant_name, besides=0) if of_job else (0, 0)
    if rows >= tenant.max_rows:
        why = limits.quota_refusal(tenant, (rows, 0), (1, 0))
        raise SpentOut(str(why), code="rows_limit_exceeded")
    room = tenant.max_rows - rows
    return room, (
        f"more than {counted(room, 'row')} are asked for, {rows:,} are open already, and this tenant may have "
        f"{tenant.max_rows:,} at once"
    )


def reserve_bytes(
    connection: Connection,
    caller: Caller,
    wanted: int | None,
    most: int | None,
) -> int | None:
    """Return the most bytes that a file of this caller may have, which its row reserves: the `wanted` ones of its
    request, None if the request does not say, up to `most` and to what its tenant may still store; None for any
    number. SpentOut if that is nothing, or one more file is too many. Locks the tenant; an operator is not bound.
    """
    most = _least(most, wanted)
    if caller.role == "operator":
        return most
    tenants.lock(connection, caller.tenant)
    tenant = tenants.get(connection, caller.tenant)
    assert tenant is not None
    count, size = quotas.stored(connection, caller.tenant)
    why = limits.stored_refusal(tenant, (count, size), (1, 1))
    if why is not None:
        raise SpentOut(why, code="storage_limit_exceeded")
    return _least(most, None if tenant.max_bytes is None else tenant.max_bytes - size)


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def own_folders(ledger: Ledger, settings: Settings, caller: Caller) -> Sequence[str] | None:
    """The folders whose paths a caller reads in messages; None for an operator, who reads every path."""
    if caller.role == "operator":
        return None
    with ledger.transaction() as connection:
        tenant = tenants.get(connection, caller.tenant)
    roots = () if tenant is None else tenant.roots
    store = settings.serve_store
    if store is None:
        return roots
    return (
        *roots,
        store_layout.inputs(store, caller.tenant),
        store_layout.outputs(store, caller.tenant),
    )


def may_reopen(caller: Caller, job: Job) -> Callable[[Connection], None]:
    """What is asked before rows of a job run again: raises SpentOut where the tenant may not have them
    open again. An operator is not bound.
    """

    def ask(connection: Connection) -> None:
        if caller.role == "operator":
            return
        refuse_spent(connection, caller.tenant)
        if job.state.over:
            refuse_more_rows(connection, caller.tenant, job.id, again=True)

    return ask


def may_change(caller: Caller) -> Callable[[Connection, Changes], None]:
    """What is asked about changed fields of a job: raises ApiError 400 for a priority or a pool beyond what
    the tenant may have. An operator is not bound.
    """

    def ask(connection: Connection, changes: Changes) -> None:
        if caller.role == "operator":
            return
        tenant = tenants.get(connection, caller.tenant)
        if tenant is not None and (why := limits.change_refusal(tenant, changes)):
            raise ApiError(400, why, code="not_allowed")

    return ask


def _key(request: Request) -> str:
    """The key of the request, "" for none; ApiError 401 where the request has several, or has one in
    its address, which logs keep.
    """
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise _unknown("the request has more than one Authorization header")
    if any(value.startswith(keys.PREFIX) for value in request.query_params.values()):
        raise _unknown("a key in an address stands in logs: send it as Authorization: Bearer …")
    scheme, _, key = "".join(given).partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _by_proxy(request: Request, connection: Connection, settings: Settings) -> Caller | None:
    """The tenant that a trusted proxy names; None where no such proxy asks, or it names none."""
    host = request.client.host if request.client else ""
    if settings.serve_tenant_header is None or not is_proxy(host, settings):
        return None
    given = request.headers.getlist(settings.serve_tenant_header)
    if not given:
        return None
    if len(given) > 1:
        raise _unknown(f"the request has more than one {settings.serve_tenant_header} header")
    _refuse_other_sites(request)
    if tenants.get(connection, given[0]) is None:
        tenants.ensure(connection, given[0])
    return Caller(given[0], "user", "proxy")


def is_proxy(host: str, settings: Settings) -> bool:
    """Return True if the address is one of a trusted proxy."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped in network for network in settings.serve_proxies)


def _is_open(request: Request, settings: Settings) -> bool:
    """Whether a request without a key may count as this machine's: the server listens to this machine
    alone, no proxy stands before it, the request names a loopback address, and it is not made by the
    page of another site in a browser of this machine. ApiError 403 for the page of another site.
    """
    names = request.headers.getlist("host")
    if settings.serve_tenant_header is not None or not is_loopback(settings.serve_host):
        return False
    if len(names) != 1 or not is_loopback(_host(names[0])):
        return False
    _refuse_other_sites(request)
    origins = request.headers.getlist("origin")
    if any(origin != f"{request.url.scheme}://{names[0]}" for origin in origins):
        raise _other_site()
    return True


def _host(name: str) -> str:
    """A Host header without its port; "" for what is none."""
    try:
        return urlsplit(f"//{name}").hostname or ""
    except ValueError:
        return ""


def _refuse_other_sites(request: Request) -> None:
    """ApiError 403 for what a browser sends for the page of another site. Programs send no such header."""
    if any(site not in OWN_SITE for site in request.headers.getlist("sec-fetch-site")):
        raise _other_site()


def _unknown(said: str) -> ApiError:
    return ApiError(401, said, code="invalid_api_key")


def _other_site() -> ApiError:
    return ApiError(
        403, "a page of another site needs a key to send requests here", code="forbidden"
    )
