"""Objects in a store, by way of fsspec: the driver, what it says of an object, whole writes."""

import errno
import tempfile
import threading
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from nightshift.common.errors import BadInput
from nightshift.common.public_text import private
from nightshift.common.storage import unfinished
from nightshift.common.storage.addresses import split
from nightshift.common.storage.driver_errors import guard, writing
from nightshift.common.storage.streams import Content, FileInfo, Naming, Written, fill

UPLOAD_PIECE_BYTES = 16 * 2**20
"""Objects of twice this size are uploaded in pieces; ten pieces are in memory at once."""

IN_PIECES = ("s3", "gs")
"""Schemes whose drivers upload in pieces of a size that one can say."""

STREAMED = ("s3",)
"""Those whose drivers also take bytes as they come, and take a failed upload back. Google's sends each
piece from the loop that its other requests share.
"""

STREAM_PIECE_BYTES = 8 * 2**20
"""Pieces of a streamed upload, of which a few are in memory; 10,000 are 80 GB. With 16 MiB a server took
206 MB, with 8 MiB 166 to 179, with 5 MiB no less (400 MB, one or two runs each).
"""

_ON_CONDITION: dict[str, dict[str, Any]] = {"abfs": {"overwrite": False}}
"""How the driver of a scheme is told to replace no object, where fsspec's own word is not its."""

COPY_BYTES = 5 * 2**30
"""The largest object that S3 copies in one request."""

DRIVERS: dict[str, Any] = {}
"""The driver of each scheme, made at its first use."""

_driver_lock = threading.Lock()


def driver_of(uri: str) -> tuple[Any, str]:
    """The driver, and the driver's own name of the address; BadInput names a missing package."""
    scheme, rest = split(uri)
    with _driver_lock:
        # Listings are never cached: other machines write to the same places.
        try:
            kind = fsspec.get_filesystem_class(scheme)
            if not isinstance(DRIVERS.get(scheme), kind):
                with guard("reached", uri):
                    DRIVERS[scheme] = kind(use_listings_cache=False)
        except ImportError as error:
            package = str(known_implementations[scheme]["class"]).partition(".")[0]
            raise BadInput(
                f"{private(uri)}: {scheme}:// needs the package {package}; run pip install {package}"
            ) from error
        fs = DRIVERS[scheme]
    return fs, str(fs._strip_protocol(f"{scheme}://{rest}"))


def info(uri: str) -> FileInfo:
    """The object as it is now; FileNotFoundError for a directory."""
    fs, path = driver_of(uri)
    with guard("read", uri):
        if _speaks_s3(fs) and "/" in path:
            # `fs.info` would also list the name as a folder, where there is no such object.
            facts = fs.call_s3("head_object", **_address(fs, path))
            return FileInfo(uri, int(facts["ContentLength"]), _fingerprint(facts))
        facts = fs.info(path)
    if facts["type"] == "directory":
        raise FileNotFoundError(errno.ENOENT, "no such file", uri)
    return file_info(uri, facts)


def file_info(uri: str, facts: dict[str, Any]) -> FileInfo:
    """The facts that a driver gives of an object, as FileInfo."""
    return FileInfo(uri, int(facts["size"]), _fingerprint(facts))


def _fingerprint(facts: dict[str, Any]) -> str:
    """The etag, else the modification time; each driver has names of its own for them."""
    for name in ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created"):
        value = facts.get(name)
        if isinstance(value, datetime):
            since = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            return str(since // timedelta(microseconds=1) * 1000)
        if isinstance(value, float):
            # Where a listing has seconds: the same time as above, exact to a microsecond.
            return str(round(value * 1e6) * 1000)
        if value:
            return str(value).strip('"')
    return ""


def write(uri: str, content: Content, naming: Naming = nullcontext) -> Written:
    """Spools the content first, since drivers finish an upload also after an exception; puts it inside
    `naming`.
    """
    fs, path = driver_of(uri)
    with writing(uri):
        unfinished.remove_left_spools()
        spool = tempfile.NamedTemporaryFile(prefix=unfinished.SPOOL, buffering=0)  # noqa: SIM115
    with spool:
        unfinished.hold(spool.fileno())
        written = fill(spool, uri, content)
        with naming(), writing(uri):
            fs.put_file(spool.name, path, **_uploading(uri, written.bytes))
    return written


def stream(uri: str, content: Content) -> Written:
    """Uploads the content in pieces while it comes, where the driver is one of STREAMED; `write`
    elsewhere.
    """
    fs, path = driver_of(uri)
    if split(uri)[0] not in STREAMED:
        return write(uri, content)
    with writing(uri):
        upload = fs.open(path, "wb", block_size=min(UPLOAD_PIECE_BYTES, STREAM_PIECE_BYTES))
    try:
        written = fill(upload, uri, content)
        with writing(uri):
            upload.close()
    except BaseException:
        # A driver completes the upload of a file that is closed, or collected while it is open.
        upload.closed = True
        with suppress(Exception):
            upload.discard()
        raise
    return written


def create(uri: str, data: bytes) -> bool:
    """Puts an object on the condition that there is none of that name; False where there is one.

    A store that ignores the condition replaces the object, and one that refuses conditions gets a
    plain put: whoever may meet others there has to look first.
    """
    fs, path = driver_of(uri)
    with writing(uri):
        try:
            fs.pipe_file(path, data, **_ON_CONDITION.get(split(uri)[0], {"mode": "create"}))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            fs.pipe_file(path, data)
    return True


def copy(source: str, target: str, size_bytes: int | None) -> None:
    """Copies an object within its store; FileNotFoundError where there is none.

    `size_bytes` is its size where the caller knows it: the S3 driver would ask first, since S3 copies
    what is larger than COPY_BYTES in pieces.
    """
    fs, path = driver_of(source)
    _, place = driver_of(target)
    with guard("moved", source):
        if _speaks_s3(fs) and size_bytes is not None and size_bytes <= COPY_BYTES:
            fs.call_s3("copy_object", **_address(fs, place), CopySource=_address(fs, path))
        else:
            fs.cp_file(path, place)


def _speaks_s3(fs: Any) -> bool:
    """Whether a driver sends single requests of S3's protocol."""
    return hasattr(fs, "call_s3")


def _address(fs: Any, path: str) -> dict[str, str]:
    """An object as S3's protocol names it."""
    bucket, key, _ = fs.split_path(path)
    return {"Bucket": bucket, "Key": key}


def _uploading(uri: str, size_bytes: int) -> dict[str, int]:
    """The size of the pieces of an upload, for drivers that take one.

    The default of the S3 driver keeps half a gigabyte in memory. A store takes 10,000 pieces.
    """
    if split(uri)[0] not in IN_PIECES:
        return {}
    return {"chunksize": max(UPLOAD_PIECE_BYTES, -(-size_bytes // 9000))}
