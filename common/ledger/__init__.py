"""The SQL of everything except the HTTP API: every state change of a job or a batch is one transaction here.

Functions take a connection, do one statement or one tight group, and never commit; callers own
the transaction (`Ledger.transaction`). `now()` is Postgres's, always (DESIGN section 2).
"""

from nightshift.common.ledger.connection import Connection, Ledger, Row

__all__ = ["Connection", "Ledger", "Row"]
