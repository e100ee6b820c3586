"""Images of rows: the bytes or the URI that a row has, as bytes, as a picture, as a data: URL."""

import asyncio
import base64
import binascii
import errno
import io
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable

if TYPE_CHECKING:  # Pillow comes with the engines that see; other workers do without
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""What is decoded: well-tried readers only, and none that starts a program."""

IMAGE_BYTES = 64 * 2**20
"""Largest file of an image."""

IMAGE_PIXELS = 64 * 2**20
"""Most pixels of an image: 200 MB decoded. A file of a few kB may claim any number."""

READ_TRIES = 4
"""Of a URI whose store does not answer, over a few seconds; then it is an outage."""

READ_SECONDS = 60.0
"""Of all images of a row; less than the time after which an engine that stands still is ended."""

READ_THREADS = 16
"""Reads at once in a child; one that hangs holds its thread until its store lets go."""

LOOK_SECONDS = 1.0
"""How often a read is looked after."""

LASTING = frozenset({errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""What is wrong with a file or its name, however often it is read."""

T = TypeVar("T")

DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
WEB_URI = re.compile(r"https?://", re.IGNORECASE)


class BadImage(ValueError):
    """The image of a row cannot be used; the message says why, in words."""


class Reads:
    """Reads images for an event loop, in threads of its own: a store that hangs holds no others."""

    def __init__(self, threads: int = READ_THREADS, seconds: float = READ_SECONDS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="images")
        self._seconds = seconds
        self._moved_at = time.monotonic()

    async def run(self, read: Callable[[], T]) -> T:
        """What `read` returns or raises; StorageUnavailable once it has hung for too long, or no
        thread came free for as long. Waiting while others are read counts for nothing.
        """
        began_at: float | None = None

        def timed() -> T:
            nonlocal began_at
            began_at = time.monotonic()
            try:
                return read()
            finally:
                self._moved_at = time.monotonic()

        asked_at = time.monotonic()
        reading = asyncio.get_running_loop().run_in_executor(self._threads, timed)
        try:
            while not (await asyncio.wait([reading], timeout=min(LOOK_SECONDS, self._seconds)))[0]:
                since = max(asked_at, self._moved_at) if began_at is None else began_at
                if time.monotonic() - since > self._seconds:
                    raise StorageUnavailable(
                        f"images of a row could not be read within {self._seconds:g} s"
                    )
            return reading.result()
        finally:
            reading.cancel()

    def close(self) -> None:
        """Nothing more is read."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class BatchReads:
    """The reads of one batch: once a store was away for one row, the others do not ask it."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._outage: StorageUnavailable | None = None

    async def run(self, read: Callable[[], T]) -> T:
        """As Reads.run; StorageUnavailable also when it was the lot of a row before."""

        def asked() -> T:
            if self._outage is not None:
                raise StorageUnavailable(str(self._outage))
            try:
                return read()
            except StorageUnavailable as error:
                self._outage = error  # at once: the next read may begin before the loop hears of it
                raise

        try:
            return await self._reads.run(asked)
        except StorageUnavailable as error:  # one that hung as well
            self._outage = error
            raise


@dataclass(frozen=True, slots=True)
class Image:
    """What a row's column holds: the bytes of an image file, or a local path, s3://, gs:// or data:
    URI. URIs are held to the operator's allowed `roots`: a submitter's data names them.

    Each way to read it raises BadImage for what cannot be used, and StorageUnavailable when its
    store does not answer, which says nothing of the row.
    """

    value: bytes | str
    roots: tuple[str, ...] = ()

    def content(self) -> tuple[bytes, str]:
        """The bytes of the file and their MIME type; the header is looked at, nothing is decoded.

        Reads from storage, so not for an event loop.
        """
        data = self._bytes()
        with _header(data) as picture:
            return data, str(picture.get_format_mimetype())

    def fetched(self) -> "Image":
        """The same with its bytes at hand: what is asked of it then waits for no store."""
        return Image(self._bytes())

    def picture(self) -> "Picture":
        """Decoded and upright: the first frame."""
        from PIL import ImageOps

        with _header(self._bytes()) as picture:
            try:
                return ImageOps.exif_transpose(picture)
            except Exception as error:  # a decoder raises what it likes at broken bytes
                raise BadImage(f"the image cannot be decoded ({error})") from error

    def data_url(self) -> str:
        """As remote APIs take it."""
        data, mime = self.content()
        return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"

    def _bytes(self) -> bytes:
        if isinstance(self.value, bytes):
            data = self.value
        elif match := DATA_URI.match(self.value):
            try:
                data = base64.b64decode(self.value[match.end() :], validate=True)
            except (binascii.Error, ValueError) as error:
                raise BadImage(f"the data: URI is no base64 ({error})") from error
        else:
            data = self._stored(self.value)
        if len(data) > IMAGE_BYTES:
            raise BadImage(f"the image is larger than {IMAGE_BYTES} bytes")
        return data

    def _stored(self, uri: str) -> bytes:
        if WEB_URI.match(uri):
            raise BadImage(f"{uri[:200]}: images are not fetched from the web; store them first")
        if "://" not in uri and not uri.startswith("/"):
            raise BadImage(f"{uri[:200]!r} is no absolute path and no s3://, gs:// or data: URI")
        try:
            place = storage.resolve(uri)
            storage.check_roots([place], self.roots)
            for attempt in Retrying(
                retry=retry_if_exception(_may_pass),
                wait=wait_random_exponential(multiplier=0.5, max=5),
                stop=stop_after_attempt(READ_TRIES),
                reraise=True,
            ):
                with attempt:
                    return _read(place)
        except FileNotFoundError as error:
            raise BadImage(f"the image {uri[:200]} is not there") from error
        except BadInput as error:
            raise BadImage(str(error)) from error
        except StorageUnavailable as error:
            if _may_pass(error):
                raise
            raise BadImage(str(error)) from error
        raise AssertionError("a retry ends with a result or an error")


def _read(place: str) -> bytes:
    """Only a regular file, and one byte more than is allowed at most."""
    size = storage.stat(place).size
    return storage.read_range(place, 0, min(size, IMAGE_BYTES + 1))


def _may_pass(error: BaseException) -> bool:
    """Whether the store may answer later; a file that may not be read never can be."""
    if not isinstance(error, StorageUnavailable):
        return False
    cause = error.__cause__
    lasts = isinstance(cause, OSError) and cause.errno in LASTING
    return not lasts and not isinstance(cause, PermissionError)


def _header(data: bytes) -> "ImageFile":
    import PIL.Image

    try:
        picture = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise BadImage(f"the image has more than {IMAGE_PIXELS} pixels") from error
    except Exception as error:
        known = ", ".join(FORMATS)
        raise BadImage(f"the value is no image of a known format ({known})") from error
    width, height = picture.size
    if width * height > IMAGE_PIXELS:
        raise BadImage(f"the image has {width} x {height} pixels, more than {IMAGE_PIXELS}")
    return picture
