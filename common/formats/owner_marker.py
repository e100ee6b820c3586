"""The marker in an output directory that says which ledger and which job the directory belongs to."""

import json
from dataclasses import asdict, dataclass

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_names
from nightshift.common.public_text import private

MARKER_BYTES = 4096
"""More than a marker has."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The id of a ledger, and the identity of a job."""

    ledger: str
    identity: str

    def encoded(self) -> bytes:
        """The content of the marker."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def place(output_uri: str) -> str:
    """Where the marker of an output directory is."""
    return part_names.final(output_uri, part_names.OWNER)


def read(output_uri: str) -> Owner | None:
    """Who owns a directory; None where no marker says so. Raises StorageUnavailable."""
    uri = place(output_uri)
    try:
        if not storage.exists(uri, links=False):
            return None
        with storage.open_input(uri, links=False) as file:
            found = json.loads(file.read(MARKER_BYTES))
        return Owner(str(found["ledger"]), str(found["identity"]))
    # Somebody else may have written anything: brackets in brackets are a RecursionError.
    except (BadInput, FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None


def refuse_foreign(output_uri: str, wanted: Owner, job_id: int) -> bool:
    """BadInput where the directory of a known job belongs to somebody else by now; False where no
    marker says whom it belongs to.
    """
    found = read(output_uri)
    if found not in (None, wanted):
        raise BadInput(
            f"{private(output_uri)} belongs to another job or ledger by now, as {part_names.OWNER} in it "
            f"says: job {job_id} cannot continue there"
        )
    return found is not None
