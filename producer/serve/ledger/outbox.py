"""Webhooks: where tenants want to hear of the end of their batches, and what is still to be sent.

A row of the outbox is written in the transaction that ends a batch, so no end goes unsaid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Connection

EVENTS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
"""What is sent: the ends of batches."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 15.0, 3600.0
"""Pauses between tries: the first is longer than a try may take, and each is twice the one before."""

GIVEN_UP_AFTER_SECONDS = 3 * 86_400.0
"""How long an event is tried."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event to one address; `tries` counts this one."""

    id: str
    endpoint_id: str
    url: str
    body: str
    tries: int


WRITE = text("""
    WITH ended AS (
        SELECT 'evt_' || replace(gen_random_uuid()::text, '-', '') AS id, e.id AS endpoint_id,
               'batch.' || b.state AS event, b.id AS batch
        FROM api_batches b JOIN webhook_endpoints e ON e.tenant = b.tenant
        WHERE b.id = :id AND e.removed_at IS NULL AND 'batch.' || b.state = ANY (e.events)
        FOR SHARE OF e
    )
    INSERT INTO webhook_outbox (id, endpoint_id, event, body, next_try_at)
    SELECT id, endpoint_id, event, json_build_object(
        'id', id, 'object', 'event', 'type', event,
        'created_at', floor(extract(epoch FROM now()))::bigint,
        'data', json_build_object('id', batch))::text,
        greatest(now(), (SELECT min(o.next_try_at) FROM webhook_outbox o
                         WHERE o.endpoint_id = ended.endpoint_id AND o.error IS NOT NULL
                           AND o.delivered_at IS NULL AND o.given_up_at IS NULL))
    FROM ended
""")
"""The state of a batch as an event for each address that wants it. A removal of the address waits for
this transaction. Behind an event that failed the new one waits.
"""

TAKE = text("""
    UPDATE webhook_outbox o
    SET tries = o.tries + 1,
        next_try_at = now() + make_interval(secs => least(:first * 2 ^ o.tries, :longest))
    FROM webhook_endpoints e
    WHERE e.id = o.endpoint_id AND o.id = (
        SELECT id FROM webhook_outbox
        WHERE delivered_at IS NULL AND given_up_at IS NULL AND next_try_at <= now()
        ORDER BY next_try_at, created_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING o.id, o.endpoint_id, e.url, o.body, o.tries
""")
"""The event that is due for longest. The process that takes it has FIRST_PAUSE_SECONDS before the next try."""

FAILED = text("""
    WITH failed AS (
        UPDATE webhook_outbox
        SET error = :error,
            given_up_at = CASE WHEN created_at < now() - make_interval(secs => :most) THEN now() END
        WHERE id = :id AND delivered_at IS NULL
        RETURNING id, endpoint_id, next_try_at
    ), behind AS (
        SELECT o.id, failed.next_try_at FROM webhook_outbox o JOIN failed USING (endpoint_id)
        WHERE o.id <> failed.id AND o.next_try_at < failed.next_try_at
          AND o.delivered_at IS NULL AND o.given_up_at IS NULL
        ORDER BY o.id FOR UPDATE OF o SKIP LOCKED
    )
    UPDATE webhook_outbox o SET next_try_at = behind.next_try_at FROM behind WHERE o.id = behind.id
""")
"""A try that came to nothing. The other events of the address wait with this one: an address that does
not answer takes the time of one try from those of other tenants, not that of all its events.
"""

FORGET = text("""
    DELETE FROM webhook_outbox WHERE id IN (
        SELECT id FROM webhook_outbox
        WHERE coalesce(delivered_at, given_up_at) < now() - make_interval(days => :days)
        LIMIT :most)
""")
"""Events that are over for long."""

ENDPOINTS = text("""
    SELECT id, url, events, created_at FROM webhook_endpoints
    WHERE tenant = :tenant AND removed_at IS NULL ORDER BY created_at, id
""")
"""The addresses of a tenant."""


def write(connection: Connection, batch_id: str) -> None:
    """Notes the end of a batch for the addresses that want to hear of it; in the transaction of that end."""
    connection.execute(WRITE, {"id": batch_id})


def take(connection: Connection) -> Delivery | None:
    """Takes the event that is due for longest; None where none is due."""
    given = {"first": FIRST_PAUSE_SECONDS, "longest": LONGEST_PAUSE_SECONDS}
    row = connection.execute(TAKE, given).mappings().one_or_none()
    return None if row is None else Delivery(**row)


def delivered(connection: Connection, id: str) -> None:
    """The receiver has the event."""
    statement = text("UPDATE webhook_outbox SET delivered_at = now(), error = NULL WHERE id = :id")
    connection.execute(statement, {"id": id})


def failed(connection: Connection, id: str, error: str) -> None:
    """The receiver does not have the event, and hears of no other before its next try. After
    GIVEN_UP_AFTER_SECONDS there is no further try.
    """
    given = {"id": id, "error": error, "most": GIVEN_UP_AFTER_SECONDS}
    connection.execute(FAILED, given)


def forget(connection: Connection, days: int, most: int) -> int:
    """Deletes at most `most` events that were sent or given up more than `days` days ago; returns how many."""
    return connection.execute(FORGET, {"days": days, "most": most}).rowcount


def add(connection: Connection, id: str, tenant: str, url: str, events: Sequence[str]) -> None:
    """From now on the address hears of these events."""
    statement = text("""
        INSERT INTO webhook_endpoints (id, tenant, url, events)
        VALUES (:id, :tenant, :url, CAST(:events AS text[]))
    """)
    given = {"id": id, "tenant": tenant, "url": url, "events": list(events)}
    connection.execute(statement, given)


def endpoints(connection: Connection, tenant: str) -> list[RowMapping]:
    """The addresses of a tenant, the oldest first."""
    return list(connection.execute(ENDPOINTS, {"tenant": tenant}).mappings())


def remove(connection: Connection, id: str, tenant: str) -> bool:
    """The address hears of nothing more, also not of what is still to be sent."""
    statement = text("""
        UPDATE webhook_endpoints SET removed_at = now()
        WHERE id = :id AND tenant = :tenant AND removed_at IS NULL
    """)
    if connection.execute(statement, {"id": id, "tenant": tenant}).rowcount == 0:
        return False
    unsent = text("""
        UPDATE webhook_outbox SET given_up_at = now(), error = 'the address was removed'
        WHERE endpoint_id = :id AND delivered_at IS NULL AND given_up_at IS NULL
    """)
    connection.execute(unsent, {"id": id})
    return True
