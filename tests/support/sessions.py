"""Sessions of Postgres that outlive the Ledger that opened them.

A new backend reads the catalogs anew for its first statements, which costs it and us 25 ms of CPU. Here the session
of a closed connection is reset and goes to the next Ledger of the same database and process.
"""

import os
import threading
from collections import defaultdict
from typing import Any

from psycopg.pq import ConnStatus, ExecStatus, PGconn, TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from nightshift.common.ledger.connection import PatientConnection

MOST_IDLE = 4
"""Idle sessions that are kept of each database."""

_kept: set[tuple[Any, ...]] = set()
_idle: dict[tuple[Any, ...], list[PGconn]] = defaultdict(list)
_lock = threading.Lock()
_known: dict[int | None, dict[str, Any]] = {}
"""What SQLAlchemy's dialect has learned of each server, by its port."""

_plain_connect = PatientConnection.connect.__func__  # type: ignore[attr-defined]
_plain_close = PatientConnection.close
_plain_initialize = PGDialect_psycopg.initialize


def keep(port: int, database: str) -> None:
    """Keep the sessions of this database from now on."""
    _patch()
    with _lock:
        _kept.add((port, database))


def pids(port: int, database: str) -> list[int]:
    """Return the backends of the idle sessions of this database."""
    with _lock:
        return [
            each.backend_pid
            for key, idle in _idle.items()
            if key[:2] == (port, database)
            for each in idle
        ]


def drop(port: int, database: str) -> None:
    """Close the idle sessions of this database, and keep no more."""
    with _lock:
        _kept.discard((port, database))
        for key in [key for key in _idle if key[:2] == (port, database)]:
            for each in _idle.pop(key):
                each.finish()


def _patch() -> None:
    PGDialect_psycopg.initialize = _initialize  # type: ignore[method-assign]
    PatientConnection.connect = classmethod(_connect)  # type: ignore[assignment,method-assign]
    PatientConnection.close = _close  # type: ignore[method-assign]


def _connect(cls: type[PatientConnection], *arguments: Any, **options: Any) -> PatientConnection:
    place = (options.get("port"), options.get("dbname"))
    if arguments or place not in _kept:
        return _plain_connect(cls, *arguments, **options)
    context = options.pop("context", None)
    key = (*place, os.getpid(), *sorted(options.items()))
    while (pgconn := _taken(key)) is not None:
        if pgconn.exec_(b"DISCARD ALL").status == ExecStatus.COMMAND_OK:
            connection = _around(cls, pgconn, context, options)
            break
        pgconn.finish()
    else:
        connection = _plain_connect(cls, context=context, **options)
    connection.session = key
    return connection


def _taken(key: tuple[Any, ...]) -> PGconn | None:
    with _lock:
        return _idle[key].pop() if _idle[key] else None


def _around(
    cls: type[PatientConnection], pgconn: PGconn, context: Any, options: dict[str, Any]
) -> PatientConnection:
    """Return what `Connection.connect` returns, around a session that is there already."""
    connection = cls(pgconn)
    connection._autocommit = options["autocommit"]
    connection.prepare_threshold = options["prepare_threshold"]
    if context is not None:
        connection._adapters = type(connection.adapters)(context.adapters)
    return connection


def _initialize(dialect: PGDialect_psycopg, connection: Connection) -> None:
    """Ask a server once a process what it is, not for each Ledger."""
    url = connection.engine.url
    if (url.port, url.database) not in _kept:
        _plain_initialize(dialect, connection)
        return
    if url.port not in _known:
        before = {**vars(dialect)}
        _plain_initialize(dialect, connection)
        _known[url.port] = {
            name: value
            for name, value in vars(dialect).items()
            if before.get(name, before) is not value and name != "_type_memos"  # a cache of its own
        }
    vars(dialect).update(_known[url.port])


def _close(self: PatientConnection) -> None:
    key = getattr(self, "session", None)
    pgconn = self.pgconn
    if (
        key is not None
        and key[:2] in _kept
        and key[2] == os.getpid()
        and pgconn.status == ConnStatus.OK
        and pgconn.transaction_status == TransactionStatus.IDLE
    ):
        with _lock:
            is_kept = len(_idle[key]) < MOST_IDLE
            if is_kept:
                _idle[key].append(pgconn)
        if is_kept:
            self.pgconn = PGconn.__new__(PGconn)  # without a server, and so closed for its holder
    _plain_close(self)
