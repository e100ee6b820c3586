"""The log of a Delta table as our storage reads it. delta-rs opens the log and the files of a table by itself:
before it does, all that it would open is held to the roots.
"""

import json
import os
import re
import uuid
from base64 import b85decode
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats.parquet.foreign_footer import open_parquet
from nightshift.common.formats.streams import content_errors
from nightshift.common.public_text import marked, private

FOLDER = "_delta_log"

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""The digits of base 85 in which the names of deletion vectors are written (Delta protocol, Deletion Vectors)."""

RFC_1924 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
"""Those of the standard library."""

_DIGITS = str.maketrans(Z85, RFC_1924)

CHECKPOINT = ".checkpoint"

VERSION_DIGITS = 20
"""Length of the version at the beginning of a name in the log."""

ABSOLUTE = ("file:///", "s3://", "s3a://")

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

ODD = re.compile(r"[\x00-\x1f\x7f\\?#]|^ | $")
"""What parsers of URLs drop, cut off or take for a slash: writers of logs encode these."""

NAME_DIGITS = 20
"""Length of the name of a vector in these digits: 16 bytes."""


@dataclass(frozen=True, slots=True)
class Named:
    """A data file that the log names, and the file with its deletion vector, where it has one."""

    path: str
    vector: str | None
    has_vector: bool


def check_place(root: str) -> None:
    """BadInput for a table whose log is not there, lies outside the roots or holds a link: delta-rs would follow
    it.
    """
    check_log(root)
    if not storage.list_names(f"{root}/{FOLDER}"):
        raise BadInput(f"{private(root)} is no Delta table: there is no {FOLDER} in it")


def check_log(root: str) -> None:
    """The same, but that there may be no table yet."""
    log = f"{root}/{FOLDER}"
    storage.check_object(root)
    storage.folder_identity(log)
    if not storage.is_local(root):
        return
    folder = Path(log)
    inside = (Path(at, name) for at, *names in os.walk(log) for name in chain(*names))
    for path in chain([folder], inside):
        if path.is_symlink():
            raise BadInput(
                f"{private(path)} is a link, and links in the log of a table are not followed"
            )


def check_sidecars(root: str) -> None:
    """BadInput for a checkpoint that names a file outside its own folder: delta-rs would open it."""
    for name in storage.list_names(f"{root}/{FOLDER}"):
        if CHECKPOINT not in name:
            continue
        uri = f"{root}/{FOLDER}/{name}"
        for path in _sidecars(uri):
            if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", path):
                raise BadInput(
                    f"{private(uri)} names a file '{private(path)}', which does not lie beside it"
                )


def _sidecars(uri: str) -> Iterator[str]:
    with storage.open_input(uri, links=False) as file, content_errors(uri):
        if uri.endswith(".json"):
            for line in file:
                with suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict) and isinstance(found.get("sidecar"), dict):
                        yield str(found["sidecar"].get("path"))
        elif uri.endswith(".parquet"):
            parquet = open_parquet(file)
            if "sidecar" in parquet.schema_arrow.names:
                for batch in parquet.iter_batches(columns=["sidecar"]):
                    held = batch.column("sidecar").drop_null().to_pylist()
                    yield from (str(each.get("path")) for each in held)


def data_uri(root: str, path: str) -> str:
    """The address of a file by the name that the log has for it, a URL relative to the root or absolute. BadInput
    for a name of which libraries make different addresses.
    """
    is_absolute = path.startswith(ABSOLUTE)
    if ODD.search(path) or (SCHEME.match(path) and not is_absolute) or path.startswith("//"):
        raise BadInput(
            f"the log of {private(root)} names a file '{private(path)}', which is no address of a file"
        )
    if not is_absolute and not path.startswith("/"):
        return storage.resolve(f"{root}/{unquote(path)}")
    # A file:// address is decoded by storage itself.
    uri = storage.resolve(path if is_absolute and path.startswith("file:") else unquote(path))
    if storage.is_local(uri) and not storage.is_local(root):
        raise BadInput(
            f"the log of {private(root)} names a file '{private(path)}' of a machine: copy it into the store"
        )
    return uri


def is_below(path: str) -> bool:
    """Whether a name in a log leads to a file below the folder of its table, however often a library decodes it."""
    while True:
        if path.startswith("/") or SCHEME.match(path) or ".." in path.split("/"):
            return False
        decoded = unquote(path)
        if decoded == path:
            return True
        path = decoded


def commit(root: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of a version; None where the log has them no longer, or not yet."""
    uri = f"{root}/{FOLDER}/{version:020}.json"
    try:
        with storage.open_input(uri, sequential=True, links=False) as file:
            return [json.loads(line) for line in file if line.strip()]
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadInput(f"{private(uri)} cannot be read: {marked(error)}") from error


def check_files(root: str, named: Iterable[Named], read: Collection[str]) -> None:
    """BadInput for a file outside the roots that the log names, data or vector, and for one that is gone of the
    data files that are `read`, and of their vectors.
    """
    for each in named:
        data = data_uri(root, each.path)
        for uri in (data, *([] if each.vector is None else [data_uri(root, each.vector)])):
            storage.check_object(uri)
            try:
                storage.stat(uri)
            except FileNotFoundError as error:
                # Of other files a vacuum may have taken some.
                if data in read:
                    raise BadInput(
                        f"the file {private(uri)} of {private(root)} is gone, as after a vacuum"
                    ) from error


def log_names(root: str, until: int | None) -> Iterator[str]:
    """The files of the log up to a version, None for all, by their names in its folder; those beside checkpoints
    all.
    """
    log = f"{root}/{FOLDER}"
    for name in storage.list_names(log):
        number = name[:VERSION_DIGITS]
        if number.isdigit() and (until is None or int(number) <= until):
            yield name
    for name in storage.list_names(f"{log}/_sidecars"):
        yield f"_sidecars/{name}"


def named_files(root: str, until: int | None = None) -> Iterator[Named]:
    """Every file that any version in the log adds, or versions up to one. What lies beside checkpoints says no
    version, and counts always.
    """
    log = f"{root}/{FOLDER}"
    for folder in (log, f"{log}/_sidecars"):
        for name in storage.list_names(folder):
            number = name[:VERSION_DIGITS]
            if folder == log and until is not None and number.isdigit() and int(number) > until:
                continue
            if name.endswith(".json"):
                yield from _of_lines(f"{folder}/{name}")
            elif name.endswith(".parquet"):
                yield from _of_checkpoint(f"{folder}/{name}")


def _of_lines(uri: str) -> Iterator[Named]:
    with storage.open_input(uri, sequential=True, links=False) as file:
        for line in file:
            with suppress(ValueError):
                action = json.loads(line)
                if isinstance(action, dict) and isinstance(action.get("add"), dict):
                    yield _named(action["add"].get("path"), action["add"].get("deletionVector"))


def _of_checkpoint(uri: str) -> Iterator[Named]:
    with storage.open_input(uri, links=False) as file, content_errors(uri):
        parquet = open_parquet(file)
        if "add" not in parquet.schema_arrow.names:
            return
        fields = {field.name for field in parquet.schema_arrow.field("add").type}
        wanted = ["add.path", *(["add.deletionVector"] if "deletionVector" in fields else [])]
        for batch in parquet.iter_batches(columns=wanted):
            added = pa.Table.from_batches([batch]).filter(pc.is_valid(batch.column("add")))
            for add in added.column("add").to_pylist():
                yield _named(add["path"], add.get("deletionVector"))


def _named(path: str, vector: dict[str, Any] | None) -> Named:
    return Named(path, _vector_path(vector), vector is not None)


def _vector_path(vector: dict[str, Any] | None) -> str | None:
    """Where a deletion vector lies, relative to the root or absolute; None for one that stands in the log."""
    if vector is None or vector.get("storageType") == "i":
        return None
    where = str(vector.get("pathOrInlineDv"))
    if vector.get("storageType") == "p":
        return where
    prefix, digits = where[:-NAME_DIGITS], where[-NAME_DIGITS:]
    try:
        name = uuid.UUID(bytes=b85decode(digits.translate(_DIGITS)))
    except ValueError as error:
        raise BadInput(f"the log names a deletion vector {where!r}, which is no name") from error
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"
