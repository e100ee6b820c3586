"""Names of things that clients of the HTTP API keep: `file-…`, `batch_…`."""

import secrets


def new(prefix: str) -> str:
    """A name that nobody can guess: 96 random bits in hexadecimal digits."""
    return prefix + secrets.token_hex(12)
