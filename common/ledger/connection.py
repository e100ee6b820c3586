"""Connections to the ledger: one pool, bounded waits, the driver's errors wrapped once."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Connection, RowMapping, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from common.errors import BadInput, LedgerUnavailable, Permanent

__all__ = ["Connection", "Ledger", "Row"]

Row = RowMapping
"""A result row by column name, for callers that do not import SQLAlchemy."""

LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 30_000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 10_000
"""A frozen process inside a transaction is thrown out after this; nobody waits for it longer."""

CONNECT_ARGS = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "nightshift",
    # Server-side prepared statements are session state, which PgBouncer does not keep.
    "prepare_threshold": None,
}

# No session state is relied on, so the limits travel with each transaction.
LIMITS = (
    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; "
    f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}; "
    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_TIMEOUT_MS}"
)

OUR_FAULT = ("22", "23", "42")
"""Classes of SQLSTATE that the same statement would meet again: data, integrity, syntax. All
others (timeouts, deadlocks, fail-over, a session thrown out) may pass."""


class Ledger:
    """The Postgres that is the truth.

    `url` is postgresql://user:password@host:port/database. Nothing connects before the first
    transaction. Threads may share one Ledger.
    """

    def __init__(self, url: str, *, connections: int = 8) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise BadInput("NIGHTSHIFT_DATABASE_URL is no postgresql:// URL") from error
        if parsed.get_backend_name() not in ("postgresql", "postgres"):
            raise BadInput("NIGHTSHIFT_DATABASE_URL is no postgresql:// URL")
        self.url = url
        self.place = f"{parsed.host or 'localhost'}:{parsed.port or 5432}/{parsed.database or ''}"
        self.engine = create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_size=connections,
            max_overflow=connections,
            pool_timeout=10,
            pool_pre_ping=False,
            connect_args=CONNECT_ARGS,
        )
        event.listen(self.engine, "begin", _set_limits)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: commits at the end, rolls back on any error.

        Raises LedgerUnavailable when Postgres is away, slow or broke off, also during COMMIT:
        then the outcome is unknown and the caller reads back; likewise on deadlocks and timeouts.
        Raises Permanent when the database refuses the statement itself.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except PoolTimeout as error:
            raise LedgerUnavailable(f"no free connection to Postgres at {self.place}") from error
        except DBAPIError as error:
            raise _wrapped(error, self.place) from error
        except psycopg.Error as error:
            raise _wrapped_driver(error, self.place) from error

    def close(self) -> None:
        """Closes every idle connection."""
        self.engine.dispose()


def _set_limits(connection: Connection) -> None:
    connection.exec_driver_sql(LIMITS)


def _wrapped(error: DBAPIError, place: str) -> Exception:
    if isinstance(error.orig, psycopg.Error):
        return _wrapped_driver(error.orig, place)
    return Permanent(f"Postgres at {place} refused a statement: {error.orig}")


def _wrapped_driver(error: psycopg.Error, place: str) -> Exception:
    said = " ".join(str(error).split())
    if error.sqlstate is not None and error.sqlstate.startswith(("28", "3D")):
        return BadInput(f"Postgres at {place} refused the connection: {said}")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return LedgerUnavailable(f"Postgres at {place} cannot be reached: {said}")
    if isinstance(error, psycopg.InterfaceError) or (
        error.sqlstate is not None and not error.sqlstate.startswith(OUR_FAULT)
    ):
        return LedgerUnavailable(f"Postgres at {place} gave up on a statement: {said}")
    return Permanent(f"Postgres at {place} refused a statement: {said}")
