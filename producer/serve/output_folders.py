"""Where the results of a job lie whose user names no output directory. Pure."""

from collections.abc import Iterator, Sequence

from nightshift.common import storage
from nightshift.producer.serve import store_layout

OUTPUTS = "outputs"
"""Folder below a root of a tenant."""


def candidates(
    places: Sequence[str], *, roots: Sequence[str] | None, store: str | None, tenant: str
) -> list[str]:
    """Folders for the output directory of a job whose input lies at `places`, the best first. `roots` are those
    of its tenant, None for an operator.

    Results of what lies in the store lie there, too. A tenant with folders of its own has the results in the first
    of them; an operator without a store has them beside the input.
    """
    of_store = [] if store is None else [store_layout.outputs(store, tenant)]
    if of_store and any(
        _is_below(place, f"{storage.resolve(str(store))}/{tenant}") for place in places
    ):
        return of_store
    if roots is None:
        return [*of_store, *_beside(places)]
    return [*(f"{root.rstrip('/')}/{OUTPUTS}" for root in roots[:1]), *of_store]


def _is_below(place: str, folder: str) -> bool:
    return storage.resolve(place).startswith(f"{folder}/")


def _beside(places: Sequence[str]) -> Iterator[str]:
    """The folder around what the first place names without its pattern."""
    for place in places[:1]:
        parts = storage.resolve(place).split("/")
        least = 3 if "://" in place else 2  # no root of a machine, and none of all buckets
        pattern = next((at for at, part in enumerate(parts) if set(part) & set("*?[")), None)
        around = (len(parts) if pattern is None else pattern) - 1
        if pattern is not None and around < least:
            around = pattern  # in the folder of the files themselves
        if around >= least:
            yield "/".join(parts[:around])
