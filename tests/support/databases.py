"""Addresses of databases on one server."""

from itertools import count
from urllib.parse import urlsplit, urlunsplit

NUMBERS = count(1)
"""So that no two databases of a process have the same name."""


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def with_port(url: str, port: int) -> str:
    """The same address behind another port of loopback."""
    parts = urlsplit(url)
    account = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{account}@127.0.0.1:{port}"))
