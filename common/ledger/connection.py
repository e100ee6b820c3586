"""Connections to the ledger: one pool, bounded waits, the driver's errors wrapped once.

The rows of a batch go in and come out as RowRanges; the tables keep them as int8multirange.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.errors import _WaitTimeout
from psycopg.types.string import StrDumperUnknown
from sqlalchemy import Connection, RowMapping, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import (
    LedgerRefused,
    LedgerUnavailable,
    LedgerUnreachable,
    StatementRefused,
)
from nightshift.common.ledger import server_url
from nightshift.common.text import escaped

__all__ = ["Actor", "Connection", "Ledger", "Row", "acting"]

Row = RowMapping
"""A result row by column name, for callers that do not import SQLAlchemy."""

LOCK_SECONDS = 5.0
"""Longest wait for a row that somebody else holds."""

IDLE_IN_TRANSACTION_SECONDS = 10.0
"""Postgres ends the session of a process that is frozen inside a transaction after this time."""

ANSWER_SECONDS = 30.0
"""Longest wait for an answer, unless the caller names another."""

SILENCE_SECONDS = 2.0
"""Longest wait beyond the server's own limit: a server that is later is frozen or cut off."""

CONNECT_SECONDS = 5
"""Longest wait for a new connection; libpq takes no less than two."""

CONNECT_ARGS = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "nightshift",
    # Server-side prepared statements are session state, which PgBouncer does not keep.
    "prepare_threshold": None,
}


class Actor(NamedTuple):
    """Who changes something, and from which machine, as the audit log names both."""

    who: str
    host: str


OUR_FAULT = ("22", "23", "42")
"""Classes of SQLSTATE that the same statement would get again: data, integrity, syntax. All
others (timeouts, deadlocks, fail-over, a session that was ended) may pass."""


class Ledger:
    """The Postgres that is the truth.

    `url` is postgresql://user:password@host:port/database. Nothing connects before the first
    transaction. Threads may share one Ledger. A statement may take `answer_seconds`; a server that
    is silent for longer counts as away.
    """

    def __init__(
        self, url: str, *, connections: int = 8, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        parsed = server_url.parsed(url)
        self.url = url
        self.place = server_url.place(parsed)
        self._waits: dict[int, float] = {}
        self.is_abandoned: Callable[[], bool] = lambda: False
        """Return True if the process that kept the embedded server running has ended; called during an outage."""
        self.engine = create_engine(
            parsed,
            pool_size=connections,
            max_overflow=connections,
            pool_timeout=10,
            pool_pre_ping=False,
            connect_args=CONNECT_ARGS,
        )
        # Nothing relies on session state, so each transaction sets its limits. BEGIN and the limits
        # are one message: a process frozen between the two would hold a transaction without limits.
        # The JIT is off: compiling costs more than any of our short statements.
        limits = {
            "lock_timeout": min(LOCK_SECONDS, answer_seconds),
            "statement_timeout": answer_seconds,
            "idle_in_transaction_session_timeout": min(IDLE_IN_TRANSACTION_SECONDS, answer_seconds),
        }
        self._begin = "BEGIN; SET LOCAL jit = off" + "".join(
            f"; SET LOCAL {name} = {round(seconds * 1000)}" for name, seconds in limits.items()
        )
        self._silence_seconds = answer_seconds + SILENCE_SECONDS
        event.listen(self.engine, "begin", self._begin_limited)
        event.listen(self.engine, "do_connect", self._connect)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: commits at the end, rolls back on any error.

        Raises LedgerUnavailable when Postgres is away, slow or broke off, also during COMMIT:
        then the outcome is unknown and the caller reads back; likewise on deadlocks and timeouts.
        Raises Permanent when the database refuses the statement itself.
        """
        with wrapped_errors(self.place), self.engine.begin() as connection:
            yield connection

    def acting(self, actor: Actor) -> Self:
        """Return this ledger for somebody else than the user of this process: changes in its transactions are those of
        the actor in the audit log. The connections are shared.
        """
        found = copy(self)
        found.engine = self.engine.execution_options(nightshift_actor=actor)
        return found

    def waiting_seconds(self, thread: int) -> float:
        """Return how long a thread, by its identifier, has waited for an answer that is not there yet."""
        since = self._waits.get(thread)
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """Closes every idle connection, and each busy one once its thread gives it back."""
        event.listen(self.engine.pool, "checkin", _closed_at_return)
        self.engine.dispose()

    def _begin_limited(self, connection: Connection) -> None:
        _driver(connection).silence_seconds = self._silence_seconds
        connection.exec_driver_sql(self._begin)

    def _connect(self, _dialect: object, _record: object, args: Any, options: Any) -> Any:
        usual = {"connect_timeout": max(2, min(CONNECT_SECONDS, int(self._silence_seconds)))}
        # autocommit: the driver then sends no BEGIN of its own, but still COMMIT and ROLLBACK.
        with waiting(self._waits):
            connection = PatientConnection.connect(*args, autocommit=True, **{**usual, **options})
        connection.silence_seconds, connection.waits = self._silence_seconds, self._waits
        connection.adapters.register_dumper(str, TextDumper)
        connection.adapters.register_dumper(RowRanges, RowRangesDumper)
        connection.adapters.register_loader("int8multirange", RowRangesLoader)
        return connection


def acting(connection: Connection) -> Actor | None:
    """Return the actor of a connection; None for the user of this process."""
    found: Actor | None = connection.get_execution_options().get("nightshift_actor")
    return found


@contextmanager
def wrapped_errors(place: str) -> Iterator[None]:
    """Raise the driver's errors as errors of our own, which name the server at `place`."""
    try:
        yield
    except PoolTimeout as error:
        raise LedgerUnavailable(f"no free connection to Postgres at {place}") from error
    except (DBAPIError, psycopg.Error) as error:
        raise _wrapped(error, place) from error


SERVER_CLOCK = """
    SELECT current_setting('server_version') AS version,
           extract(epoch FROM clock_timestamp())::float8 AS seconds
"""
"""Version and clock of Postgres."""


def server_clock(connection: Connection) -> tuple[str, float]:
    """The version of Postgres, and what its clock shows, in seconds since 1970."""
    row = connection.exec_driver_sql(SERVER_CLOCK).one()
    return row.version, row.seconds


def lift_time_limit(connection: Connection) -> None:
    """Lets the statements of this transaction take as long as they need (COPY, migrations)."""
    _driver(connection).silence_seconds = None
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")


def one_moment(connection: Connection) -> None:
    """Lets every statement of this transaction see the ledger as it is at the first of them. Comes before it."""
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def scan_in_order(connection: Connection) -> None:
    """Lets this transaction read indexes in their order only, whatever the statistics say.

    Before the first ANALYZE of a million batches, Postgres expects few pending or leased ones and
    plans a bitmap of all of them with a sort. Where many are leased, it reads the whole table, again
    for each piece that is taken back. An ordinary scan of an index also marks the entries of dead
    rows, so that the next scan passes over them; a bitmap scan does not.
    """
    connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = off")


def _closed_at_return(driver: object, record: ConnectionPoolEntry) -> None:
    if driver is not None:
        record.invalidate()


def _driver(connection: Connection) -> "PatientConnection":
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, PatientConnection)
    return driver


@contextmanager
def waiting(waits: dict[int, float] | None) -> Iterator[None]:
    """Note in `waits` since when this thread waits."""
    if waits is None:
        yield
        return
    thread = threading.get_ident()
    waits[thread] = time.monotonic()
    try:
        yield
    finally:
        waits.pop(thread, None)


class PatientConnection(psycopg.Connection[Any]):
    """Ends a connection whose server does not answer at all.

    With a frozen Postgres, or a network that loses every packet, the kernel keeps the connection
    open, and libpq has no timeout of its own for this.
    """

    silence_seconds: float | None = None
    waits: dict[int, float] | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Waits for an answer; without one, closes the connection and raises OperationalError."""
        try:
            with waiting(self.waits):
                return super().wait(gen, interval, timeout or self.silence_seconds)
        except _WaitTimeout as error:
            self.close()
            raise psycopg.OperationalError(
                f"no answer within {timeout or self.silence_seconds} seconds"
            ) from error


class TextDumper(StrDumperUnknown):
    """Text as it is, or escaped where Postgres or UTF-8 cannot hold it.

    Texts of engines, servers and user code come in messages, and no transaction may fail by one of
    them. What must be exact, such as a spec, a name of a file or of a column, is refused before.
    """

    def dump(self, obj: str) -> Buffer | None:
        """For parameters, arrays of them and COPY."""
        try:
            return super().dump(obj)
        except (psycopg.DataError, UnicodeEncodeError):
            return super().dump(escaped(obj))


class RowRangesDumper(Dumper):
    """RowRanges as an int8multirange: {[0,256)}."""

    oid = psycopg.postgres.types["int8multirange"].oid

    def dump(self, obj: RowRanges) -> bytes:
        """For parameters, arrays of them and COPY."""
        return ("{" + ",".join(f"[{start},{stop})" for start, stop in obj.ranges) + "}").encode()


class RowRangesLoader(Loader):
    """An int8multirange as RowRanges; Postgres keeps its ranges half-open, disjoint and ascending."""

    def load(self, data: Buffer) -> RowRanges:
        """Both bounds of every range are finite row indices."""
        bounds = [int(bound) for bound in re.findall(rb"\d+", data)]
        return RowRanges(tuple(zip(bounds[::2], bounds[1::2], strict=True)))


def _wrapped(error: DBAPIError | psycopg.Error, place: str) -> Exception:
    cause = error.orig if isinstance(error, DBAPIError) else error
    message = " ".join(str(cause).split())
    sqlstate: str | None = getattr(cause, "sqlstate", None)
    if sqlstate is not None and sqlstate.startswith(("28", "3D")):
        return LedgerRefused(f"Postgres at {place} refused the connection: {message}")
    if isinstance(cause, psycopg.OperationalError) and sqlstate is None:
        return LedgerUnreachable(f"Postgres at {place} cannot be reached: {message}")
    if isinstance(cause, psycopg.InterfaceError) or (
        sqlstate is not None and not sqlstate.startswith(OUR_FAULT)
    ):
        return LedgerUnavailable(f"Postgres at {place} gave up on a statement: {message}")
    return StatementRefused(f"Postgres at {place} refused a statement: {message}")
