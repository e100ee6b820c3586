"""Bytes that nobody wants: files that were deleted, that have expired, or that never came whole."""

import structlog

from nightshift.common import storage
from nightshift.common.errors import StorageUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.gateway import files, uploads

log = structlog.get_logger(__name__)

MOST_FILES = 100
"""Files of one sweep, so that other duties are not held up."""

SILENT_SECONDS = 3600.0
"""A file that is being received, and that nobody has touched for so long, never comes."""


def sweep_once(ledger: Ledger) -> bool:
    """Removes the bytes of some files, then their rows; False where nothing is left to do.

    Bytes go first: a row without bytes is swept again, and bytes without a row would stay for ever.
    """
    with ledger.transaction() as connection:
        found = files.take_unwanted(connection, MOST_FILES, SILENT_SECONDS)
    for id, uri in found:
        try:
            storage.delete(uri)
        except StorageUnavailable as error:
            log.warning("file_not_swept", file=id, why=str(error))
            continue
        with ledger.transaction() as connection:
            files.forget(connection, id)
    return sweep_parts(ledger) or len(found) == MOST_FILES


def sweep_parts(ledger: Ledger) -> bool:
    """The same for parts of uploads that are over."""
    with ledger.transaction() as connection:
        found = uploads.take_unwanted(connection, MOST_FILES)
    for id, uri in found:
        try:
            storage.delete(uri)
        except StorageUnavailable as error:
            log.warning("part_not_swept", part=id, why=str(error))
            continue
        with ledger.transaction() as connection:
            uploads.forget_part(connection, id)
    return len(found) == MOST_FILES
