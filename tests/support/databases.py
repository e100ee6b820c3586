"""Addresses of databases on one server, and what is sent to one."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy import event

from nightshift.common.ledger import Ledger

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


@contextmanager
def statements(ledger: Ledger) -> Iterator[list[str]]:
    """The statements of all transactions of this ledger meanwhile, but for their BEGIN."""
    sent: list[str] = []

    def note(*arguments: Any) -> None:
        if not arguments[2].startswith("BEGIN"):
            sent.append(arguments[2])

    event.listen(ledger.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(ledger.engine, "before_cursor_execute", note)
