"""Checks of a batch's requests that hold for every engine."""

from collections.abc import Mapping
from typing import Any

RESPONSES_FIELDS = {
    "background": "the request would end before its response is there, and a batch waits for it",
    "previous_response_id": "the requests of a batch run in any order, on any worker, and keep no responses",
    "conversation": "the requests of a batch run in any order, on any worker, and keep no conversation",
}
"""Fields of /v1/responses with the reason that a batch cannot take them."""


def mistake(body: Mapping[str, Any], endpoint: str) -> tuple[str, str] | None:
    """Return the field of a request's body that a batch cannot take, and the reason; None if the body has none."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        return "model", "the model is not a string"
    if body.get("stream"):
        return "stream", "stream is set, and a batch does not stream"
    if endpoint == "/v1/responses":
        for field, why in RESPONSES_FIELDS.items():
            if body.get(field):
                return field, f"{field} is set: {why}"
    return None
