"""The folders that a job may use: those it was admitted under and that its tenant still has. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """The folders that an admitted job may use.

    `roots` are the tenant's roots at the admission, None for a job without such a limit. `uploads` and
    `outputs` are the server's folders with what the tenant has uploaded and with results of its jobs.
    """

    roots: Sequence[str] | None = None
    uploads: str | None = None
    outputs: str | None = None


UNBOUND = Admitted()
"""For a job from the command line: only the roots of each process bound such a job."""


def still_held(admitted: Admitted, tenant_roots: Sequence[str] | None) -> tuple[str, ...] | None:
    """The folders that the admission allowed and the tenant still has, with the tenant's folders of the server; None
    for a job that is held to no roots. If the tenant is gone, only the folders of the server are left.
    """
    if admitted.roots is None:
        return None
    both = (
        narrower
        for own in admitted.roots
        for now in tenant_roots or ()
        if (narrower := _narrower(own, now)) is not None
    )
    of_server = (each for each in (admitted.uploads, admitted.outputs) if each is not None)
    return tuple(dict.fromkeys((*both, *of_server)))


def owned(
    tenant: str, admitted: Admitted, tenant_roots: Sequence[str] | None
) -> tuple[str, ...] | None:
    """The folders of a job's tenant, whose paths the tenant may read in messages about the job; None for a job of the
    command line, which has no tenant.
    """
    if not tenant:
        return None
    return still_held(admitted, tenant_roots) or ()


def _narrower(one: str, other: str) -> str | None:
    """The one of two folders that lies in the other; None where neither does."""
    for inner, outer in ((one, other), (other, one)):
        if inner == outer or inner.startswith(f"{outer.rstrip('/')}/"):
            return inner
    return None
