"""Databases of the tests on one server, their addresses, and what is sent to one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import event

from nightshift.common.ledger import Ledger
from tests.support import homes, sessions, warm

NUMBERS = count(1)
"""So that no two databases of a process have the same name."""

PUBLIC = "relnamespace = 'public'::regnamespace"

SHAPE = f"""
SELECT (SELECT md5(string_agg(attrelid::text || attnum || xmin, ',')) FROM pg_attribute),
       (SELECT md5(string_agg(oid::text || xmin, ',')) FROM pg_proc),
       (SELECT md5(string_agg(oid::text || xmin, ',')) FROM pg_trigger),
       (SELECT md5(string_agg(oid::text || xmin, ',')) FROM pg_constraint),
       (SELECT md5(string_agg(oid::text || xmin, ',')) FROM pg_rewrite),
       (SELECT md5(string_agg(indexrelid::text || xmin, ',')) FROM pg_index),
       (SELECT md5(string_agg(concat(oid, relname, relowner, reloptions, relacl), ',' ORDER BY oid))
        FROM pg_class WHERE {PUBLIC}),
       (SELECT count(*) FROM pg_statistic),
       (SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_'),
       (SELECT count(*) FROM pg_db_role_setting)
"""
"""Whether a test changed more than rows: each change of a catalog has a transaction of its own."""

OTHERS_END = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s AND pid <> ALL (%s)
"""

Shape = tuple[Any, ...]
Connection = psycopg.Connection[tuple[Any, ...]]


class Databases:
    """The databases of one server, each for one test at a time.

    A migrated one in which a test changed rows alone is emptied and serves again: a copy fills 8 MB of memory, which
    takes longer. It changes its name unless nothing that the test started can come back to it. With `keeps_sessions`
    (the server is never stopped) sessions serve again as well.
    """

    def __init__(self, url: str, *, keeps_sessions: bool = False) -> None:
        self._url = url
        self._port = urlsplit(url).port or 5432
        self._keeps_sessions = keeps_sessions
        self._free: list[str] = []
        self._made: dict[str, tuple[bool, Started]] = {}
        self._shape: Shape | None = None
        self._seeds: dict[str, bytes] = {}
        self._sequences = ""
        self._sessions: dict[str | None, Connection] = {}

    def take(self, *, migrated: bool = True) -> str:
        """The URL of a database that nobody uses, with nothing in it."""
        if migrated and self._free:
            name = self._free.pop()
        else:
            name = f"nightshift_test_{next(NUMBERS)}"
            template = homes.TEMPLATE if migrated else "template0"
            with self._connected() as connection:
                connection.execute(
                    SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                        Identifier(name), Identifier(template)
                    )
                )
        if migrated and self._shape is None:
            with self._connected(name) as connection:
                self._note(connection)
        if migrated and self._keeps_sessions:
            sessions.keep(self._port, name)
        self._made[name] = migrated, _started()
        return with_database(self._url, name)

    def give_back(self, url: str) -> None:
        """Ends every session of a database. Whoever comes later, under the old name, reaches nothing."""
        name = urlsplit(url).path.removeprefix("/")
        migrated, before = self._made.pop(name)
        processes, threads = _started()
        is_alone = self._keeps_sessions and processes == before[0] and threads <= before[1]
        if not is_alone:
            self._leave(name)
        with self._connected() as connection:
            if migrated:
                connection.execute(OTHERS_END, [name, self._pids(name)])
                # Somebody may have come again at once, or the test may have shut everybody out.
                with suppress(psycopg.OperationalError):
                    if not is_alone:
                        renamed = f"nightshift_test_{next(NUMBERS)}"
                        _rename(connection, name, renamed)
                        name = renamed
                    if self._is_emptied(name):
                        self._free.append(name)
                        return
            self._leave(name)
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))

    def close(self) -> None:
        """Close the sessions that are kept."""
        for name in [*self._sessions]:
            self._leave(name)

    def _is_emptied(self, name: str) -> bool:
        """Whether the database is as it was made, once the rows of its tests are gone."""
        with self._connected(name) as connection:
            if connection.execute(SHAPE).fetchone() != self._shape:
                return False
            held = _tables_with_pages(connection)
            changed = {*held} - self._seeds.keys()
            seeds = {
                each for each in self._seeds if _content(connection, each) != self._seeds[each]
            }
            if names := sorted(changed | seeds):
                # CASCADE names tables that refer to these: empty ones, or named as well.
                statement = SQL("TRUNCATE {} CASCADE")
                connection.execute(statement.format(SQL(", ").join(map(Identifier, names))))
            for table in seeds:
                copy = SQL("COPY {} FROM STDIN").format(Identifier(table))
                with connection.cursor().copy(copy) as rows:
                    rows.write(self._seeds[table])
            connection.execute(self._sequences)
        return True

    def _note(self, connection: Connection) -> None:
        self._shape = connection.execute(SHAPE).fetchone()
        tables = _tables_with_pages(connection)
        self._seeds = {table: _content(connection, table) for table in tables}
        keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text = ANY (%s)"
        assert connection.execute(keys, [tables]).fetchone() == (0,), "a TRUNCATE would empty seeds"
        query = f"SELECT relname FROM pg_class WHERE relkind = 'S' AND {PUBLIC}"
        values = []
        for (name,) in connection.execute(query).fetchall():
            state = SQL("SELECT last_value, is_called FROM {}").format(Identifier(name))
            ((last, is_called),) = connection.execute(state).fetchall()
            values.append(f"setval('{name}', {last}, {is_called})")
        self._sequences = f"SELECT {', '.join(values)}"

    @contextmanager
    def _connected(self, name: str | None = None) -> Iterator[Connection]:
        """A session in a database, or in that of the server's URL; it is kept if sessions are."""
        connection = self._sessions.get(name)
        if connection is None or connection.closed:
            url = self._url if name is None else with_database(self._url, name)
            connection = psycopg.connect(url, autocommit=True)
            if self._keeps_sessions:
                self._sessions[name] = connection
        try:
            yield connection
        finally:
            if not self._keeps_sessions:
                connection.close()

    def _pids(self, name: str) -> list[int]:
        own = self._sessions.get(name)
        pids = [] if own is None or own.closed else [own.info.backend_pid]
        return [*pids, *sessions.pids(self._port, name)]

    def _leave(self, name: str | None) -> None:
        """Close our sessions in a database."""
        if name is not None:
            sessions.drop(self._port, name)
        if (connection := self._sessions.pop(name, None)) is not None:
            connection.close()


Started = tuple[int, set[threading.Thread]]


def _started() -> Started:
    """What may come back to a database: how many processes were started until now, and the living threads."""
    return warm.started, {*threading.enumerate()}


def _rename(connection: Connection, name: str, to: str) -> None:
    statement = SQL("ALTER DATABASE {} RENAME TO {}")
    connection.execute(statement.format(Identifier(name), Identifier(to)))


def _tables_with_pages(connection: Connection) -> list[str]:
    query = f"SELECT relname FROM pg_class WHERE relkind = 'r' AND {PUBLIC} AND pg_relation_size(oid) > 0"
    return [name for (name,) in connection.execute(query).fetchall()]


def _content(connection: Connection, table: str) -> bytes:
    with connection.cursor().copy(SQL("COPY {} TO STDOUT").format(Identifier(table))) as rows:
        return b"".join(bytes(each) for each in rows)


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
