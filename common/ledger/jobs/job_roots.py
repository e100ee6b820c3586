"""The folders that a job may use: those it was admitted under and that its tenant still has. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """The folders that an admitted job may use.

    `roots` are the tenant's roots at the admission, None for a job without such a limit. `uploads` is the
    server's folder with the tenant's uploads.
    """

    roots: Sequence[str] | None = None
    uploads: str | None = None


UNBOUND = Admitted()
"""For a job from the command line: only the roots of each process bound such a job."""


def still_held(admitted: Admitted, tenant_roots: Sequence[str] | None) -> tuple[str, ...] | None:
    """The folders that the admission allowed and the tenant still has, with the uploads; None for a job that
    is held to no roots. If the tenant is gone, only the uploads are left.
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
    """The one of two folders that lies in the other; None where neither does."""
    for inner, outer in ((one, other), (other, one)):
        if inner == outer or inner.startswith(f"{outer.rstrip('/')}/"):
            return inner
    return None
