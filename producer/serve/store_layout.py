"""Where the files of the HTTP API lie in the store that the operator names."""

from pathlib import PurePosixPath

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import source_files
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


def inputs(store: str, tenant: str) -> str:
    """The folder below a store with the inputs that a tenant has uploaded for jobs."""
    return f"{storage.resolve(store).rstrip('/')}/{tenant}/inputs"


def input(settings: Settings, tenant: str, file_id: str, name: str) -> str:  # noqa: A001
    """Where the bytes of an uploaded input are written: with the suffix of its `name`, which tells the
    format. BadInput for a name whose suffix tells none.
    """
    source_files.file_format(name)
    suffix = "".join(PurePosixPath(name).suffixes[-2 if source_files.compression(name) else -1 :])
    return f"{inputs(root(settings), tenant)}/{file_id}{suffix.lower()}"


def outputs(store: str, tenant: str) -> str:
    """The folder below a store with the output directories that the server chooses for jobs of a tenant."""
    return f"{storage.resolve(store).rstrip('/')}/{tenant}/outputs"


def output(settings: Settings, tenant: str, batch_id: str) -> str:
    """The output directory of the job of a batch."""
    return f"{root(settings)}/{tenant}/batches/{batch_id}"
