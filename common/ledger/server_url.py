"""The URL of the ledger: what connects, and the server that it names, for messages without a password."""

from itertools import zip_longest
from typing import Any
from urllib.parse import unquote

import psycopg
from sqlalchemy import URL, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import ArgumentError

from nightshift.common.errors import BadInput

NO_URL = "NIGHTSHIFT_DATABASE_URL is no postgresql:// URL"


def parsed(url: str) -> URL:
    """The URL for the driver of this product. BadInput, which never holds the URL, for one that names
    no Postgres.
    """
    try:
        found = make_url(url)
    except ArgumentError as error:
        raise BadInput(NO_URL) from error
    except ValueError:  # its text holds what stands behind the last colon, maybe of a password
        raise BadInput(
            f"{NO_URL}: its port is no number; in a password %, :, /, @ and ? are percent-encoded, and "
            "several hosts stand as ?host=one:5432&host=two:5432"
        ) from None
    if found.get_backend_name() not in ("postgresql", "postgres"):
        raise BadInput(NO_URL)
    if "@" in (found.host or ""):
        raise BadInput(f"{NO_URL}: in a password %, :, /, @ and ? are percent-encoded")
    # libpq's own URLs name a folder of sockets as %2Frun%2Fpostgresql.
    host = found.host and unquote(found.host)
    url_of_driver = found.set(drivername="postgresql+psycopg", host=host)
    try:
        _options(url_of_driver)
    except ArgumentError as error:
        raise BadInput(f"NIGHTSHIFT_DATABASE_URL cannot be used: {error}") from None
    return url_of_driver


def place(url: URL) -> str:
    """The server and the database that libpq connects to by this URL: `host:5432/database`, or
    `/folder/.s.PGSQL.5432 (database)` for a socket; several servers with commas; never a password.
    """
    given = _options(url)
    usual = {
        option.keyword.decode(): (option.val or b"").decode()
        for option in psycopg.pq.Conninfo.get_defaults()
    }

    def of(name: str) -> str:
        return str(given.get(name) or usual.get(name) or "")

    database = of("dbname") or of("user")
    if of("service") and not (given.get("host") or given.get("hostaddr")):
        return f"the service {of('service')} ({database})"
    # A host that stands beside a hostaddr is the name in a certificate: libpq connects to the address.
    hosts, ports = (of("hostaddr") or of("host")).split(","), of("port").split(",")
    servers = [
        _server(host, port or "5432")
        for host, port in zip_longest(hosts, ports[: len(hosts)], fillvalue=ports[0])
    ]
    is_tcp = all(hosts) and not any(host.startswith(SOCKETS) for host in hosts)
    return ",".join(servers) + (f"/{database}" if is_tcp else f" ({database})")


def _options(url: URL) -> dict[str, Any]:
    """What libpq gets; ArgumentError where hosts and ports do not fit."""
    dialect: Any = PGDialect_psycopg
    options: dict[str, Any] = dialect().create_connect_args(url)[1]
    return options


SOCKETS = ("/", "@")
"""How the host begins that names a folder of sockets, or an abstract one."""


def _server(host: str, port: str) -> str:
    if not host:  # libpq takes the folder that it was built with
        return f"the local socket of port {port}"
    if host.startswith(SOCKETS):
        return f"{host}/.s.PGSQL.{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
