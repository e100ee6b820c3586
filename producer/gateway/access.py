"""Who asks: by a key, by the header of a trusted proxy, or anybody of this machine while no key exists."""

import ipaddress

from starlette.requests import Request

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.gateway import keys, tenants
from nightshift.common.ledger.gateway.keys import Caller, Role
from nightshift.common.settings import Settings
from nightshift.producer.gateway.errors import ApiError

LOCAL_TENANT = "default"
"""The tenant of whoever asks without a key."""

RANK: dict[Role, int] = {"viewer": 0, "user": 1, "operator": 2}


def check_listening(ledger: Ledger, settings: Settings) -> None:
    """BadInput when others could reach the server and no key exists."""
    if is_loopback(settings.serve_host) or settings.serve_tenant_header is not None:
        return
    with ledger.transaction() as connection:
        if keys.exist(connection):
            return
    raise BadInput(
        f"NIGHTSHIFT_SERVE_HOST is {settings.serve_host}, which other machines reach, and there is no "
        "key: make one with `nightshift key create`, or leave the host at 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def caller(request: Request, ledger: Ledger, settings: Settings) -> Caller:
    """Who asks; ApiError 401 where nothing says so."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    key = key.strip()
    with ledger.transaction() as connection:
        if key and scheme.lower() == "bearer":
            found = keys.find(connection, key)
            if found is not None:
                return found
        if _is_open(request, settings) and not keys.exist(connection):
            tenants.ensure(connection, LOCAL_TENANT)
            return Caller(LOCAL_TENANT, "operator", "local")
    said = "the API key opens nothing" if key else "an API key is needed: Authorization: Bearer …"
    raise ApiError(401, said, code="invalid_api_key")


def require(caller: Caller, role: Role) -> None:
    """ApiError 403 where the role of the caller is not enough."""
    if RANK[caller.role] < RANK[role]:
        raise ApiError(
            403, f"the role {caller.role} may not do this; it takes {role}", code="forbidden"
        )


def _is_open(request: Request, settings: Settings) -> bool:
    """Whether a request without a key may count as this machine's: it came to a loopback address
    under a loopback name, which the page of another site in a browser cannot make it do.
    """
    name = request.url.hostname or ""
    return is_loopback(settings.serve_host) and is_loopback(name)
