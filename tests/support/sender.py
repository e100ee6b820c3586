"""A tenant whose batches end, and the sending of the webhooks that say so."""

from typing import Any

from pydantic import SecretStr

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.settings import Settings, load_settings
from nightshift.producer.serve.api_batches import send_webhooks
from nightshift.producer.serve.ledger import (
    api_batch_steps,
    api_batches,
    outbox,
    tenants,
)
from nightshift.producer.serve.ledger.api_batches import NewApiBatch

KEY = "an operator's long key"

FIRST, SECOND = "we_1", "we_2"
"""Ids of addresses."""


class Sender:
    """A tenant whose batches end, and the sending of what its addresses are to hear."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.made = ledger, 0
        self.settings: Settings = load_settings(webhook_key=SecretStr(KEY), webhook_private=True)
        with ledger.transaction() as connection:
            tenants.ensure(connection, "acme")

    def tell(self, url: str, endpoint_id: str = FIRST) -> None:
        """From now on the address hears of every end."""
        with self.ledger.transaction() as connection:
            outbox.add(connection, endpoint_id, "acme", url, outbox.EVENTS)

    def batch(self) -> str:
        """A batch that a reaper has yet to look at; its id."""
        self.made += 1
        new = NewApiBatch(
            f"batch_{self.made}",
            "acme",
            "/v1/embeddings",
            "f",
            "1h",
            3600,
            None,
            None,
            {},
            "me",
            b"",
        )
        with self.ledger.transaction() as connection:
            assert api_batches.insert(connection, new) is not None
        return new.id

    def end(self, batch_id: str) -> None:
        """The batch is cancelled, which ends it at once."""
        with self.ledger.transaction() as connection:
            self.end_in(connection, batch_id)

    @staticmethod
    def end_in(connection: Connection, batch_id: str) -> None:
        """The same, in a transaction of the caller."""
        found = api_batches.locked(connection, "acme", batch_id)
        assert found is not None
        api_batch_steps.cancel(connection, found)

    def send(self) -> bool:
        """What a reaper does again and again."""
        return send_webhooks.send_once(self.ledger, self.settings)

    def rows(self) -> list[Any]:
        """The outbox, the oldest first; `wait` in seconds, `sent` and `left` as truth values."""
        with self.ledger.transaction() as connection:
            return list(
                connection.exec_driver_sql(
                    "SELECT id, tries, error, delivered_at IS NOT NULL AS sent, "
                    "given_up_at IS NOT NULL AS left, "
                    "extract(epoch FROM next_try_at - now())::float8 AS wait "
                    "FROM webhook_outbox ORDER BY created_at, id"
                )
            )

    def move(self, seconds: float) -> None:
        """That much time passes for every event."""
        with self.ledger.transaction() as connection:
            connection.exec_driver_sql(
                f"UPDATE webhook_outbox SET next_try_at = next_try_at - interval '{seconds} s', "
                f"created_at = created_at - interval '{seconds} s'"
            )
