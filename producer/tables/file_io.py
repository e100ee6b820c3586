"""Files of Iceberg tables as pyiceberg opens them, by way of our storage: the roots that hold for a job hold
for every metadata, manifest, data and delete file, and S3 is reached as everywhere else.

Imported where a catalog is opened, since pyiceberg is an extra.
"""

import io
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from pyiceberg.io import FileIO, InputFile, OutputFile

from nightshift.common import storage
from nightshift.common.formats.parquet.foreign_footer import MAGIC, checked_metadata

SPOOL_BYTES = 8 * 2**20
"""Content of a file that is written stays in memory up to this size, and goes to the folder of temporary files
beyond it, until it is complete."""

COPY_BYTES = 2**20


def location_uri(location: str) -> str:
    """The address of a location in a table: as written, since Iceberg's names of files have no escapes."""
    for scheme in ("file://", "file:"):
        if location.startswith(f"{scheme}/"):
            return location.removeprefix(scheme)
    return location


P = ParamSpec("P")
T = TypeVar("T")


def _held(function: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """The function, held to the roots around whoever calls this, in stores, too."""

    @storage.carried
    def held(uri: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        storage.check_object(uri)
        return function(uri, *args, **kwargs)

    return held


class StorageIO(FileIO):  # type: ignore[misc]  # pyiceberg is not looked into
    """Opens files for pyiceberg, in whichever of its threads, within the roots that hold for whoever makes this
    object (`storage.within`).
    """

    def __init__(self, properties: Any = None) -> None:
        super().__init__(dict(properties or {}))
        self.open = _held(storage.open_input)
        self.stat = _held(storage.stat)
        self.exists = _held(storage.exists)
        self.write = _held(storage.write_whole)
        self.create = _held(storage.create)
        self.remove = _held(storage.delete)

    def new_input(self, location: str) -> "StoredInput":
        """A file to read."""
        return StoredInput(self, location)

    def new_output(self, location: str) -> "StoredOutput":
        """A file to write."""
        return StoredOutput(self, location)

    def delete(self, location: Any) -> None:
        """Removes a file, given by its location or as one of the two below."""
        self.remove(location_uri(getattr(location, "location", location)))


class StoredInput(InputFile):  # type: ignore[misc]
    """A file that is read."""

    def __init__(self, io_: StorageIO, location: str) -> None:
        super().__init__(location)
        self._io, self._uri = io_, location_uri(location)

    def __len__(self) -> int:
        return self._io.stat(self._uri).size

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._io.exists(self._uri)

    def open(self, seekable: bool = True) -> io.BufferedReader:
        """The open file; raises what `storage.open_input` raises, and an OSError for a Parquet file that would end
        the process (`foreign_footer`).
        """
        file = self._io.open(self._uri, sequential=not seekable)
        try:
            if seekable and _ends_like_parquet(file):
                checked_metadata(file)
                file.seek(0)
        except BaseException:
            file.close()
            raise
        return file


class StoredOutput(OutputFile):  # type: ignore[misc]
    """A file that is written: nobody sees it before it is complete."""

    def __init__(self, io_: StorageIO, location: str) -> None:
        super().__init__(location)
        self._io, self._uri = io_, location_uri(location)

    def __len__(self) -> int:
        return self._io.stat(self._uri).size

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._io.exists(self._uri)

    def to_input_file(self) -> StoredInput:
        """The same file to read."""
        return StoredInput(self._io, self.location)

    def create(self, overwrite: bool = False) -> "StoredSink":
        """A stream for the content; FileExistsError where the file is there and `overwrite` is not said."""
        if not overwrite and self.exists():
            raise FileExistsError(f"{self._uri} is there already")
        return StoredSink(self._io, self._uri, overwrite)


class StoredSink:
    """The content of a file on its way, which is stored when the stream is closed, unless an error ended it."""

    def __init__(self, io_: StorageIO, uri: str, overwrite: bool) -> None:
        self._io, self._uri, self._overwrite = io_, uri, overwrite
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115

    @property
    def closed(self) -> bool:
        """Whether the file is stored, or given up."""
        return self._spool.closed

    def write(self, data: bytes) -> int:
        """Takes bytes; returns how many."""
        return self._spool.write(data)

    def tell(self) -> int:
        """How many bytes there are."""
        return self._spool.tell()

    def flush(self) -> None:
        """Nothing: the content is stored when it is complete."""

    def close(self) -> None:
        """Stores the content; FileExistsError where somebody else has made the file meanwhile."""
        if self.closed:
            return
        with self._spool as spool:
            spool.seek(0)
            if self._overwrite:
                self._io.write(self._uri, lambda sink: _copy(spool, sink), replace=True)
            elif not self._io.create(self._uri, spool.read()):
                raise FileExistsError(f"{self._uri} is there already")

    def __enter__(self) -> "StoredSink":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._spool.close()


def _ends_like_parquet(file: io.BufferedReader) -> bool:
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - len(MAGIC)))
    found = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    return found


def _copy(spool: IO[bytes], sink: IO[bytes]) -> None:
    while piece := spool.read(COPY_BYTES):
        sink.write(piece)
