"""The folders that a job may use: those it was admitted under and that its tenant still has. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the ledger keeps of an admission: `roots` of the tenant at that time, None where the job is
    held to none, and the folder of the server with the `uploads` of the tenant.
    """

    roots: Sequence[str] | None = None
    uploads: str | None = None


UNBOUND = Admitted()
"""Of a job from the command line: what holds it are the roots of each process."""


def still_held(admitted: Admitted, tenant_roots: Sequence[str] | None) -> tuple[str, ...] | None:
    """What both the admission and the tenant allow now; None for a job that is held to no roots. Of a
    tenant that is gone the uploads alone are left.
    """
    if admitted.roots is None:
        return None
    both = (
        narrower
        for own in admitted.roots
        for now in tenant_roots or ()
        if (narrower := _narrower(own, now)) is not None
    )
    uploads = () if admitted.uploads is None else (admitted.uploads,)
    return tuple(dict.fromkeys((*both, *uploads)))


def _narrower(one: str, other: str) -> str | None:
    """Of two folders the one that lies in the other, None where neither does."""
    for inner, outer in ((one, other), (other, one)):
        if inner == outer or inner.startswith(f"{outer.rstrip('/')}/"):
            return inner
    return None
