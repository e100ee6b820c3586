"""A ledger whose every transaction is one that is open."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nightshift.common.ledger.connection import Connection, Ledger, wrapped_errors


class OneTransaction(Ledger):
    """The view of a ledger from within one transaction, for code that takes a ledger. `transaction` gives that
    transaction each time, to one thread at a time, and ends nothing.
    """

    def __init__(self, ledger: Ledger, connection: Connection) -> None:
        self.url, self.place = ledger.url, ledger.place
        self._waits, self.is_abandoned = ledger._waits, ledger.is_abandoned
        self._connection = connection
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the open transaction. Raises what `Ledger.transaction` raises."""
        with self._turn, wrapped_errors(self.place):
            yield self._connection

    def close(self) -> None:
        """Do nothing: who has opened the transaction ends it."""
