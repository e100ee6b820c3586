"""The data files of a table, as files of a job: their facts, and whether their columns are what a job reads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats.streams import content_errors
from nightshift.common.public_text import private
from nightshift.common.storage import FileInfo

NO_WAY_ON = (
    "the job takes no later version either; a job of its own reads the newest version as a whole"
)
"""What follows where the rows of a version cannot be read any more."""

THREADS = 16
"""Files that are looked at at once: on object stores the waiting costs most."""

T = TypeVar("T")


class FileGone(BadInput):
    """A file of a version is not there any more."""


def infos(uris: Sequence[str], version: str) -> list[FileInfo]:
    """The files as they are now, by name; BadInput for one that is gone from this version, or lies outside the
    roots around the caller.
    """
    return _each(storage.stat, sorted(uris), version)


def schemas(uris: Sequence[str], version: str) -> list[pa.Schema]:
    """The columns of Parquet files, by their footers; raises BadInput as `infos`, and for a damaged one."""

    def schema(uri: str) -> pa.Schema:
        with storage.open_input(uri) as file, content_errors(uri):
            return pq.read_schema(file)

    return _each(schema, uris, version)


@contextmanager
def there(uri: str, version: str) -> Iterator[None]:
    """BadInput where a file is gone from a version."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileGone(
            f"{version} can be read no longer: its file {private(uri)} is gone, as after a vacuum"
        ) from error


def are_whole(found: Sequence[pa.Schema], columns: Sequence[str]) -> bool:
    """Whether each file has each of the columns, with the same type in all files."""
    if any(set(columns) - set(schema.names) for schema in found):
        return False
    return all(len({schema.field(name).type for schema in found}) <= 1 for name in columns)


def _each(look: Callable[[str], T], uris: Sequence[str], version: str) -> list[T]:
    def looked(uri: str) -> T:
        storage.check_object(uri)
        with there(uri, version):
            return look(uri)

    if not uris:
        return []
    with ThreadPoolExecutor(min(THREADS, len(uris))) as threads:
        return list(threads.map(storage.carried(looked), uris))
