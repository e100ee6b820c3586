"""Copies of inputs that can only be read from their front: CSV as Parquet, compressed JSONL as the
plain lines that it holds.

A copy is written whole, under a name that says what it was made of. So a second submit finds the
copy, and a crash leaves nothing that a reader would take for one.
"""

import codecs
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from threading import BoundedSemaphore
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import InputFormat, SourceFile
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.formats import input_copies, reading, source_files, unpacking
from nightshift.common.formats.csv import records as csv_input
from nightshift.common.formats.jsonl import plan
from nightshift.common.formats.jsonl.lines import content_start, is_blank
from nightshift.common.formats.parquet.write import regrouped
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo
from nightshift.common.storage.unfinished import final_name

MOST_AT_ONCE = 4
"""Most conversions that run at once: each holds a row group and some blocks of its file."""

CHUNK_BYTES = 2**20

_conversions = BoundedSemaphore(MOST_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Converter:
    """Makes the copies of one job's input under its output directory."""

    spec_input: InputSpec
    output_uri: str

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
        folder = f"{self.output_uri.rstrip('/')}/{input_copies.FOLDER}"
        there = {f"{folder}/{name}" for name in storage.list_names(folder)}
        for file in files:
            copies = input_copies.copies_of(self.spec_input, self.output_uri, file)
            if copies and file.rows and there.isdisjoint(copies):
                info = FileInfo(file.uri, file.size, file.fingerprint)
                self._make(
                    copies[0], info, file.format, input_copies.rows_left(self.spec_input, file)
                )

    def _make(self, uri: str, info: FileInfo, kind: InputFormat, limit: int | None) -> None:
        write = self._write_csv if kind == "csv" else _write_lines

        def write_checked(sink: BinaryIO) -> None:
            write(info, limit, sink)
            # A later submit trusts the copy's name, which says what the copy was made of.
            if storage.stat(info.uri) != info:
                raise BadInput(f"{info.uri} changed while it was read: submit when it is complete")

        with _conversions, _content_errors(info.uri):
            storage.write_again(uri, write_checked)

    def _write_csv(self, info: FileInfo, limit: int | None, sink: BinaryIO) -> None:
        delimiter = csv_input.delimiter_of(info.uri, self.spec_input.delimiter)
        columns = csv_input.ColumnTypes(_header(info.uri, delimiter))
        with pq.ParquetWriter(sink, columns.schema, compression="zstd") as writer:
            records = _limited(_records(info.uri, columns, delimiter), limit)
            for table in regrouped(records, columns.schema):
                writer.write_table(table)
            writer.add_key_value_metadata(input_copies.encoded_types(columns.types))


def _header(uri: str, delimiter: str) -> list[str]:
    """The column names; none where the file holds nothing."""
    with _open_stream(uri) as stream:
        head = bytes(stream.read(CHUNK_BYTES))
    return csv_input.header(uri, head, delimiter) if head.strip(b"\xef\xbb\xbf\r\n") else []


def _records(uri: str, columns: csv_input.ColumnTypes, delimiter: str) -> Iterator[pa.RecordBatch]:
    if not columns.names:
        return
    with _open_stream(uri, counted=True) as stream:
        rows, bounds = 0, reading.current()
        for batch in csv_input.batches(uri, stream, columns.names, delimiter):
            columns.narrow(batch)
            rows += batch.num_rows
            bounds.check_rows(rows)
            yield batch


def _limited(records: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from records
        return
    left = limit
    for batch in records:
        yield batch.slice(0, left)
        # The last record of a file is known to be whole only once the end of the file was read.
        if left < batch.num_rows:
            return
        left -= batch.num_rows


def _write_lines(info: FileInfo, limit: int | None, sink: BinaryIO) -> None:
    bounds = reading.current()
    with _open_stream(info.uri, counted=True) as stream:
        if limit is None:
            counter = plan.RowCount() if bounds.counts_rows else None
            while chunk := stream.read(CHUNK_BYTES):
                if counter is not None:
                    bounds.check_rows(counter.add(chunk))
                sink.write(chunk)
            return
        handle = BufferedReader(stream, CHUNK_BYTES)
        piece = handle.readline(CHUNK_BYTES).removeprefix(codecs.BOM_UTF8)
        left, blank_line = limit, True
        while left and piece:
            sink.write(piece)
            blank_line = blank_line and is_blank(piece)
            if piece.endswith(b"\n"):
                left -= not blank_line
                blank_line = True
                bounds.check_rows(limit - left)
            piece = handle.readline(CHUNK_BYTES)


def lines(uri: str, most_bytes: int | None = None) -> Iterator[bytes]:
    """The lines of a file with their ends, decompressed, without a byte order mark. Of a line with more
    than `most_bytes` come its first bytes, one more than that. Without it a line that is too long for the
    plan is refused.

    Raises BadInput for what is cut off or damaged, StorageUnavailable.
    """
    bounds = reading.current()
    if most_bytes is None and bounds.most_line_bytes is not None:
        for line in lines(uri, bounds.most_line_bytes):
            bounds.check_line(uri, len(line))
            yield line
        return
    if source_files.compression(uri) is None:
        with storage.open_input(uri, sequential=True) as handle:
            content_start(handle)
            yield from _bounded(handle, most_bytes)
        return
    with _content_errors(uri), _open_stream(uri) as stream:
        for number, line in enumerate(_bounded(BufferedReader(stream, CHUNK_BYTES), most_bytes)):
            yield line if number else line.removeprefix(codecs.BOM_UTF8)


def _bounded(handle: BinaryIO, most_bytes: int | None) -> Iterator[bytes]:
    if most_bytes is None:
        yield from handle
        return
    while line := handle.readline(most_bytes + 1):
        yield line
        rest = line if len(line) > most_bytes else b""
        while rest and not rest.endswith(b"\n"):
            rest = handle.readline(CHUNK_BYTES)


@contextmanager
def _open_stream(uri: str, *, counted: bool = False) -> Iterator[Any]:
    """The decompressed bytes of a file, from their front, within the bounds of the plan; `counted` are
    those that become a copy.
    """
    codec = source_files.compression(uri)
    with storage.open_input(uri, sequential=True) as raw:
        if not raw.peek(1):
            yield pa.BufferReader(b"")
        elif codec is None:
            yield _Bounded(pa.PythonFile(raw, mode="r"), uri, None, counted=counted)
        else:
            size = raw.seek(0, io.SEEK_END)
            raw.seek(0)
            with unpacking.opened(raw, codec, uri) as stream:
                yield _Bounded(stream, uri, size, counted=counted)


class _Bounded(io.RawIOBase):
    """A stream that is held to the bounds of its plan; `size` is that of the compressed file."""

    def __init__(self, stream: Any, uri: str, size: int | None, *, counted: bool) -> None:
        self._stream, self._uri, self._size, self._counted = stream, uri, size, counted
        self._unpacked, self._bounds = 0, reading.current()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._came(self._stream.readinto(buffer))

    def read_buffer(self, size: int) -> pa.Buffer:
        """What `read` gives, without a copy, as files of Arrow have it."""
        buffer = self._stream.read_buffer(size)
        self._came(buffer.size)
        return buffer

    def _came(self, count: int) -> int:
        self._bounds.check()
        self._unpacked += count
        if self._size is not None:
            self._bounds.check_ratio(self._uri, self._size, self._unpacked)
        if self._counted:
            self._bounds.add_bytes(count)
        return count


@contextmanager
def _content_errors(uri: str) -> Iterator[None]:
    """Errors of Arrow become BadInput: they are about the content, since storage raises our own."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadInput(f"{uri} vanished while it was read: submit again") from error
    except MemoryError as error:
        raise StorageUnavailable(f"{uri}: not enough memory to convert it") from error
    except pa.ArrowInvalid as error:
        raise BadInput(
            f"{uri} is no CSV in UTF-8 with records of at most {csv_input.BLOCK_BYTES >> 20} MiB: "
            f"{error}"
        ) from error
    except (pa.ArrowException, OSError) as error:
        why = ""
        if source_files.compression(uri) == "zstd":
            with storage.open_input(uri, sequential=True) as raw:
                why = unpacking.zstd_fault(raw)
        raise BadInput(f"{uri} {why or f'is damaged: {error}; copy it again'}") from error


def are_there(spec_input: InputSpec, output_uri: str, files: Sequence[SourceFile]) -> bool:
    """Whether every copy of planned files, sorted ones included, is there now."""
    copies = [input_copies.copies_of(spec_input, output_uri, file) for file in files if file.rows]
    copies += [(uri,) for uri in {file.arranged for file in files} if uri is not None]
    if not any(copies):
        return True
    folder = f"{output_uri.rstrip('/')}/{input_copies.FOLDER}"
    there = {f"{folder}/{name}" for name in storage.list_names(folder)}
    return all(not there.isdisjoint(names) for names in copies if names)


def sweep(
    output_uri: str, wanted: set[str], before: Callable[[], object] = lambda: None
) -> list[str]:
    """Removes what a failed or killed submit has left among the copies of a job; returns why some
    of it stays. `before` is called before each removal, and may raise.

    A begun copy that somebody writes now stays: an append may store what becomes of it.
    """
    folder = f"{output_uri.rstrip('/')}/{input_copies.FOLDER}"
    names = [name for name in storage.list_names(folder) if final_name(name) is None]
    unwanted = {f"{folder}/{name}" for name in names} - wanted

    def each() -> Iterator[str]:
        for uri in [*storage.left_unfinished(folder), *sorted(unwanted)]:
            before()
            yield uri

    refused = storage.delete_all(each())
    storage.remove_directory(folder)
    return refused
