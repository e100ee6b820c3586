"""Copies of inputs that can only be read from their front: CSV as Parquet, compressed JSONL as the
plain lines that it holds.

A copy is written whole, under a name that says what it was made of. So a second submit finds the
copy, and a crash leaves nothing that a reader would take for one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import BinaryIO

from nightshift.common import storage
from nightshift.common.descriptor import InputFormat, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import input_copies, reading
from nightshift.common.formats.format import Copy
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.streams import content_errors
from nightshift.common.public_text import private
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo
from nightshift.common.storage.unfinished import final_name

MOST_AT_ONCE = 4
"""Most conversions that run at once: each holds a row group and some blocks of its file."""


_conversions = BoundedSemaphore(MOST_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Converter:
    """Makes the copies of one job's input under its output directory; those of tables by `copy_table`."""

    spec_input: InputSpec
    output_uri: str
    copy_table: Copy | None = None

    def copy(self, info: FileInfo, kind: InputFormat, limit: int | None = None) -> FileInfo:
        """The copy of a file, made if there is none yet; with a limit, a copy of its first rows.

        Raises BadInput for a file that is cut off, damaged, of another format or changes meanwhile,
        and StorageUnavailable.
        """
        facts = (info.size, info.fingerprint)
        uri = input_copies.copy_uri(self.spec_input, self.output_uri, info.uri, kind, facts, limit)
        reading.copies.use(self.output_uri, uri)
        if not storage.exists(uri):
            self._make(uri, info, kind, limit)
            reading.copies.made(self.output_uri, uri)
        return storage.stat(uri)

    def restore(self, files: Sequence[SourceFile]) -> None:
        """Makes missing copies of a planned job again; raises what `copy` raises."""
        there = input_copies.there(self.output_uri)
        for file in files:
            copy = input_copies.copy_of(self.spec_input, self.output_uri, file)
            if copy is not None and file.rows and copy not in there:
                info = FileInfo(file.uri, file.size, file.fingerprint)
                self._make(copy, info, file.format, input_copies.rows_left(self.spec_input, file))

    def _make(self, uri: str, info: FileInfo, kind: InputFormat, limit: int | None) -> None:
        copy = self.copy_table if kind == "table" else FORMATS[kind].copy
        if copy is None:
            raise BadInput(
                f"{private(uri)}, the copy of {private(info.uri)}, is gone: submit again"
            )

        def write_checked(sink: BinaryIO) -> None:
            copy(info, self.spec_input, limit, sink)
            # A later submit trusts the copy's name, which says what the copy was made of. A version of a table
            # stays as it is.
            if kind != "table" and storage.stat(info.uri) != info:
                raise BadInput(
                    f"{private(info.uri)} changed while it was read: submit when it is complete"
                )

        with _conversions, content_errors(info.uri):
            storage.write_again(uri, write_checked)


def are_there(spec_input: InputSpec, output_uri: str, files: Sequence[SourceFile]) -> bool:
    """Whether every copy of planned files, sorted ones included, is there now. For an append this is asked under
    the lock of the job's submit: finish sweeps copies under the same lock, so that what is there now stays
    until the plan is stored.
    """
    copies = {input_copies.copy_of(spec_input, output_uri, file) for file in files if file.rows}
    copies |= {file.arranged for file in files}
    copies.discard(None)
    return not copies or copies <= input_copies.there(output_uri)


def sweep(
    output_uri: str, wanted: set[str], before: Callable[[], object] = lambda: None
) -> list[str]:
    """Removes the copies that a failed or killed submit has left; returns why some of them stay. `before` is
    called before each removal, and may raise. Begun copies are left to `output_directory.left_by_killed`.
    """
    folder = input_copies.folder(output_uri)
    names = [name for name in storage.list_names(folder) if final_name(name) is None]
    unwanted = {f"{folder}/{name}" for name in names} - wanted

    def each() -> Iterator[str]:
        for uri in sorted(unwanted):
            before()
            yield uri

    refused = storage.delete_all(each())
    storage.remove_directory(folder)
    return refused
