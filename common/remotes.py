"""Addresses of remote servers: their one form, and which of them an operator allows."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from nightshift.common.errors import BadInput

OPENAI = "https://api.openai.com/v1"
"""The address for OPENAI_API_KEY where OPENAI_BASE_URL names no other."""

PORTS = {"http": 80, "https": 443}


def address(url: str) -> str:
    """The address in its one form: the same text whatever its case, default port and last slash.

    BadInput for text that is no http or https address, and for a path that servers may read in two
    ways.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadInput(f"{url} is no address: {error}") from error
    if parts.scheme not in PORTS or not host or parts.username is not None:
        raise BadInput(f"{url} is no http:// or https:// address without a user")
    if "%" in parts.path or any(step in (".", "..") for step in parts.path.split("/")):
        raise BadInput(f"{url} has a path that can be read in two ways")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or PORTS[parts.scheme]}{parts.path.rstrip('/')}"


def check(base_url: str, allowed: Sequence[str]) -> None:
    """BadInput for an address under none of `allowed`; an empty list allows all addresses."""
    wanted = address(base_url)
    if not allowed or any(f"{wanted}/".startswith(f"{address(root)}/") for root in allowed):
        return
    raise BadInput(
        f"engine.base_url {base_url} is none of those that NIGHTSHIFT_ALLOWED_REMOTES names: "
        f"{', '.join(allowed)}"
    )
