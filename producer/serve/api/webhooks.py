"""`/api/webhooks`: where a tenant wants to hear of the end of its batches."""

from typing import Any

from starlette.responses import JSONResponse
from starlette.routing import Route

from nightshift.common.ledger import audit_log
from nightshift.producer.serve.api_batches import send_webhooks
from nightshift.producer.serve.calls import JSON_OBJECT, Call, route
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import ids, outbox, tenants

MOST_ENDPOINTS = 20
"""Addresses of one tenant."""

MOST_URL = 2000
"""Characters of an address."""


def create_webhook(call: Call) -> JSONResponse:
    """Adds an address, and answers with the secret that its events are signed with."""
    settings, given = call.context.settings, call.json()
    if settings.webhook_key is None:
        raise ApiError(
            400, "the operator has not set NIGHTSHIFT_WEBHOOK_KEY: there are no webhooks"
        )
    url, events = given.get("url"), given.get("events", list(outbox.EVENTS))
    if not isinstance(url, str) or not url:
        raise ApiError(400, "url is missing or no text", param="url", code="missing_parameter")
    if len(url) > MOST_URL:
        raise ApiError(400, f"url has more than {MOST_URL:,} characters", param="url")
    if not isinstance(events, list) or not events or set(map(str, events)) - set(outbox.EVENTS):
        raise ApiError(400, f"events are some of {', '.join(outbox.EVENTS)}", param="events")
    events = [each for each in outbox.EVENTS if each in events]
    send_webhooks.check(url, private=settings.webhook_private)
    id = ids.new("we_")
    with call.ledger.transaction() as connection:
        tenants.lock(connection, call.caller.tenant)
        if len(outbox.endpoints(connection, call.caller.tenant)) >= MOST_ENDPOINTS:
            raise ApiError(400, f"there are {MOST_ENDPOINTS} webhooks, and no more are allowed")
        outbox.add(connection, id, call.caller.tenant, url, events)
        # Without the address, which may hold a secret.
        detail = {"tenant": call.caller.tenant, "events": events}
        audit_log.record(connection, "webhook create", subject=f"webhook {id}", detail=detail)
    secret = send_webhooks.secret(settings.webhook_key.get_secret_value(), id)
    made = {"id": id, "object": "webhook", "url": url, "events": events, "secret": secret}
    return JSONResponse(made, 201)


def list_webhooks(call: Call) -> dict[str, Any]:
    """The addresses, without their secrets."""
    with call.ledger.transaction() as connection:
        rows = outbox.endpoints(connection, call.caller.tenant)
    data = [
        {
            "id": row["id"],
            "object": "webhook",
            "url": row["url"],
            "events": list(row["events"]),
            "created_at": int(row["created_at"].timestamp()),
        }
        for row in rows
    ]
    return {"object": "list", "data": data, "has_more": False}


def delete_webhook(call: Call) -> dict[str, Any]:
    """Nothing more is sent to the address."""
    with call.ledger.transaction() as connection:
        removed = outbox.remove(connection, call.path["id"], call.caller.tenant)
        if removed:
            subject, detail = f"webhook {call.path['id']}", {"tenant": call.caller.tenant}
            audit_log.record(connection, "webhook delete", subject=subject, detail=detail)
    if not removed:
        raise not_found("webhook", call.path["id"])
    return {"id": call.path["id"], "object": "webhook", "deleted": True}


ROUTES: list[Route] = [
    route("POST", "/api/webhooks", create_webhook, takes=JSON_OBJECT, statuses=(201,)),
    route("GET", "/api/webhooks", list_webhooks, "viewer"),
    route("DELETE", "/api/webhooks/{id}", delete_webhook),
]
