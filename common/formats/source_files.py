"""Files of the input: which format a file has by its declaration and its name, and
whether it is still the file that was planned.
"""

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from nightshift.common import storage
from nightshift.common.descriptor import InputFormat, SourceFile
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.public_text import private
from nightshift.common.spec.table_uris import table_rows
from nightshift.common.text import counted

SUFFIXES: Final[Mapping[str, InputFormat]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
}

COMPRESSED_INSIDE: Final[Mapping[str, str]] = {"parquet": "Parquet"}
"""Formats whose files are never compressed as a whole, with their names."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Suffix, after that of JSONL or CSV, to Arrow's name of the codec."""


REFUSED_SUFFIXES = {
    ".json": "holds one value and not rows: `{lines}` writes a row a line",
    ".xz": "cannot be read: compress it with gzip or zstd instead",
    ".zip": "is an archive: unpack it",
    ".xlsx": "is a workbook: save it as CSV",
}
"""Formats that people try, and what to do instead; `lines` is a command."""

UNPACKERS = {"gzip": "gzip -dc", "zstd": "zstd -dc", "bz2": "bzip2 -dc"}
"""The command that unpacks what each codec of COMPRESSIONS packs."""


def file_format(uri: str, declared: InputFormat | None = None) -> InputFormat:
    """The declared format, else that of the suffix; BadInput for a suffix of no known format."""
    if table_rows(uri) is not None:
        return "table"
    packed = compression(uri)
    bare = PurePosixPath(uri).with_suffix("") if packed else PurePosixPath(uri)
    suffix = bare.suffix.lower()
    found = declared or SUFFIXES.get(suffix)
    if packed and found is not None and found in COMPRESSED_INSIDE:
        raise BadInput(
            f"{private(uri)}: {COMPRESSED_INSIDE[found]} is compressed inside: decompress the file around it"
        )
    if found is not None:
        return found
    works = ", ".join(SUFFIXES)
    if suffix in REFUSED_SUFFIXES:
        raise BadInput(
            f"{private(uri)}: a {suffix} file {REFUSED_SUFFIXES[suffix].format(lines=lines_of(uri))}; supported suffixes are {works}"
        )
    raise BadInput(
        f"{private(uri)}: the suffix does not tell the format; supported suffixes are {works}; or set input.format"
    )


def lines_of(uri: str, rows: str = ".[]") -> str:
    """The command that makes JSON lines of a JSON file; `rows` are its rows as jq says it. A file of a store
    stands in the command with its name alone.
    """
    file = uri.rpartition("/")[2] if "://" in uri else uri
    codec = compression(uri)
    bare = PurePosixPath(file).with_suffix("") if codec else PurePosixPath(file)
    name = bare.stem if bare.suffix.lower() == ".json" else f"{bare.stem}-lines"
    read = f"jq -c {shlex.quote(rows) if rows != '.' else rows}"
    packed = f"{UNPACKERS[codec]} {shlex.quote(file)} | {read}" if codec else ""
    return f"{packed or f'{read} {shlex.quote(file)}'} > {shlex.quote(f'{name}.jsonl')}"


BYTE_ORDER_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Encodings by their byte order mark, by which iconv knows the order of bytes and which it leaves out; the longer marks
first."""


def wide_encoding(head: bytes) -> str | None:
    """The encoding of several bytes a character of a text file that begins with these bytes, by its byte order mark or
    its zero bytes; None for any other. The name is that of iconv.
    """
    for mark, name in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return name
    first = head[:64]
    if len(first) >= 4 and b"\0" in first:
        even, odd = first[::2], first[1::2]
        if all(even) and 2 * odd.count(0) > len(odd):
            return "UTF-16LE"
        if all(odd) and 2 * even.count(0) > len(even):
            return "UTF-16BE"
    return None


def in_utf_8(uri: str, encoding: str = "CP1252") -> str:
    """Return the command that converts a text file from an encoding to UTF-8. The command names a file of a store
    without its folder.
    """
    file = uri.rpartition("/")[2] if "://" in uri else uri
    codec = compression(uri)
    bare = PurePosixPath(file).with_suffix("") if codec else PurePosixPath(file)
    name = shlex.quote(f"{bare.stem}-utf8{bare.suffix}")
    make = f"iconv -f {encoding} -t UTF-8"
    if codec:
        return f"{UNPACKERS[codec]} {shlex.quote(file)} | {make} > {name}"
    return f"{make} {shlex.quote(file)} > {name}"


def compression(uri: str) -> str | None:
    """Arrow's name of the codec by the suffix; None for no compression."""
    return COMPRESSIONS.get(PurePosixPath(uri).suffix.lower())


def check_unchanged(source: SourceFile) -> None:
    """SourceChanged when the file is gone, or not the one that was planned."""
    try:
        now = storage.stat(source.uri)
    except FileNotFoundError as error:
        raise gone(source) from error
    if (now.size, now.fingerprint) != (source.size, source.fingerprint):
        raise SourceChanged(
            f"{private(source.uri)} changed since the job was submitted (it had {counted(source.size, 'byte')} and has "
            f"{now.size}); put the old one back and run `nightshift retry JOB --dead`, or submit a "
            "new job"
        )


def gone(source: SourceFile) -> SourceChanged:
    """The error for a file that is not there any more."""
    return SourceChanged(
        f"{private(source.uri)} is gone since the job was submitted; put it back and run `nightshift retry JOB "
        "--dead`, or submit a new job"
    )
