"""The file that a command writes: its format by its suffix, and whether it may be written."""

from collections.abc import Iterable

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private


def suffix_of(target: str, known: Iterable[str]) -> str:
    """Which of the known suffixes the file has; BadInput when it has none of them."""
    for suffix in known:
        if target.lower().endswith(suffix):
            return suffix
    raise BadInput(
        f"{private(target)} ends in none of {', '.join(known)}: the suffix says the format"
    )


def check(job: Job, target: str, *, force: bool) -> None:
    """BadInput for a file in the output directory, and for one that exists, unless `force`."""
    refuse_inside(job.output_uri, target)
    if storage.exists(target) and not force:
        raise BadInput(f"{private(target)} exists: --force replaces it")
    folder, _, name = target.rpartition("/")
    # An earlier command that was killed left what it had written.
    storage.delete_all(storage.left_unfinished(folder or "/", lambda final: final == name))


def refuse_inside(output_uri: str, target: str) -> None:
    """BadInput for a file that readers of the output directory would take for one of its own."""
    folder = output_uri.rstrip("/")
    if target.startswith(f"{folder}/"):
        raise BadInput(
            f"{private(target)} lies inside the output directory {private(folder)}: name another place"
        )
