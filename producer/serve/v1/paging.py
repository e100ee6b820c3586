"""What lists have in common: how many, in which order, behind what."""

from nightshift.producer.serve.calls import Call
from nightshift.producer.serve.errors import ApiError


def limit(call: Call, *, default: int, most: int) -> int:
    """How many a page may have; ApiError 400 for anything but a number from 1 to `most`."""
    given = call.query.get("limit")
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 9 or not 1 <= int(given) <= most:
        raise ApiError(
            400, f"limit is {given[:20]!r}, but must be a number from 1 to {most:,}", param="limit"
        )
    return int(given)


def descending(call: Call) -> bool:
    """Whether the newest come first."""
    given = call.query.get("order", "desc")
    if given not in ("asc", "desc"):
        raise ApiError(400, f"order is {given[:20]!r}, but must be asc or desc", param="order")
    return given == "desc"
