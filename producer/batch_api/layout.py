"""Where the files of the HTTP API lie in the store that the operator names."""

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.settings import Settings


def root(settings: Settings) -> str:
    """The store; BadInput where the operator names none."""
    if settings.serve_store is None:
        raise BadInput(
            "NIGHTSHIFT_SERVE_STORE is not set: files and batches need a folder or a URI that every "
            "`nightshift serve` and every reaper can reach"
        )
    return storage.resolve(settings.serve_store).rstrip("/")


def file(settings: Settings, tenant: str, file_id: str) -> str:
    """Where the bytes of a file are written; a row of `api_files` keeps the place."""
    return f"{root(settings)}/{tenant}/files/{file_id}.jsonl"


def part(settings: Settings, tenant: str, part_id: str) -> str:
    """Where a part of an upload is written."""
    return f"{root(settings)}/{tenant}/parts/{part_id}"


def output(settings: Settings, tenant: str, batch_id: str) -> str:
    """The output directory of the job of a batch."""
    return f"{root(settings)}/{tenant}/batches/{batch_id}"
