"""Keys of the HTTP API: made, listed, revoked, and looked up by their hash.

A key is `nsk-` and 256 random bits. The ledger keeps its SHA-256: a slow hash protects words that
people choose, and adds nothing to that many random bits.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Connection

Role = Literal["viewer", "user", "operator"]
"""viewer reads what its tenant has; user also writes; operator does so for every tenant."""

PREFIX = "nsk-"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant, a role, and the number and name of the key for the audit log."""

    tenant: str
    role: Role
    name: str


INSERT = text("""
    INSERT INTO api_keys (tenant, name, role, hash, hint, expires_at)
    VALUES (:tenant, :name, :role, :hash, :hint, :expires_at)
    RETURNING id
""")
"""One key."""

FIND = text("""
    SELECT id, tenant, role, name FROM api_keys
    WHERE hash = :hash AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
""")
"""The key of this hash, if it opens anything."""

USED = text("""
    UPDATE api_keys SET used_at = now()
    WHERE hash = :hash AND (used_at IS NULL OR used_at < now() - interval '1 minute')
""")
"""Notes that a key is in use, at most once a minute."""

REVOKE = text("""
    UPDATE api_keys SET revoked_at = now() WHERE id = :id AND revoked_at IS NULL
""")
"""Ends a key."""

LISTED = text("""
    SELECT id, tenant, name, role, hint,
           CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired'
                ELSE 'open' END AS state,
           created_at, expires_at, revoked_at, used_at
    FROM api_keys
    WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant
    ORDER BY id
""")
"""Keys without their hashes."""


def create(
    connection: Connection, tenant: str, name: str, role: Role, expires_at: datetime | None
) -> tuple[int, str]:
    """Makes a key of an existing tenant; returns its number, and the key, which nobody can read later."""
    key = PREFIX + secrets.token_urlsafe(32)
    given = {"tenant": tenant, "name": name, "role": role, "expires_at": expires_at}
    found = connection.scalar(
        INSERT, {**given, "hash": _hash(key), "hint": f"{key[:8]}…{key[-4:]}"}
    )
    assert isinstance(found, int)
    return found, key


def find(connection: Connection, key: str) -> Caller | None:
    """Who brings this key; None where it opens nothing."""
    found = connection.execute(FIND, {"hash": _hash(key)}).one_or_none()
    if found is None:
        return None
    connection.execute(USED, {"hash": _hash(key)})
    return Caller(found.tenant, found.role, f"key {found.id} {found.name}".strip())


def listed(connection: Connection, tenant: str | None = None) -> list[RowMapping]:
    """Every key, or those of a tenant, the oldest first."""
    return list(connection.execute(LISTED, {"tenant": tenant}).mappings())


def revoke(connection: Connection, number: int) -> bool:
    """Ends a key at once; False where it was revoked before, or there is none of this number."""
    return connection.execute(REVOKE, {"id": number}).rowcount == 1


def exist(connection: Connection) -> bool:
    """Whether a key was ever made, also one that opens nothing any more."""
    return bool(connection.scalar(text("SELECT EXISTS (SELECT FROM api_keys)")))


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
