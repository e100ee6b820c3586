"""Files on local disk and in object stores: list, read, write whole, move, delete.

This is the face of the room: callers write `storage.stat(uri)`.
"""

from nightshift.common.storage.addresses import (
    check_roots,
    fixed_folder,
    is_local,
    is_pattern_over,
    resolve,
)
from nightshift.common.storage.file_info import FileInfo
from nightshift.common.storage.files import (
    check_directory,
    checksum,
    delete,
    exists,
    make_directory,
    move,
    open_input,
    read_range,
    remove_directory,
    stat,
    write_bytes,
    write_whole,
)
from nightshift.common.storage.listing import expand, list_names
from nightshift.common.storage.streams import Written
from nightshift.common.storage.syncs import gathered_syncs

__all__ = [
    "FileInfo",
    "Written",
    "check_directory",
    "check_roots",
    "checksum",
    "delete",
    "exists",
    "expand",
    "fixed_folder",
    "gathered_syncs",
    "is_local",
    "is_pattern_over",
    "list_names",
    "make_directory",
    "move",
    "open_input",
    "read_range",
    "remove_directory",
    "resolve",
    "stat",
    "write_bytes",
    "write_whole",
]
