"""Images of rows: read from a row's bytes or URI, checked, decoded, or made a data: URL."""

import asyncio
import base64
import binascii
import errno
import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable

if TYPE_CHECKING:  # only workers whose engines take images have Pillow
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded, by mature readers of which none starts a program."""

IMAGE_BYTES = 64 * 2**20
"""Most bytes of an image file."""

IMAGE_PIXELS = 64 * 2**20
"""Most pixels of an image: 200 MB decoded. A file of a few kB may have more."""

READ_TRIES = 4
"""Tries, over a few seconds, to read a URI whose store does not answer."""

READ_SECONDS = 60.0
"""Most seconds to read all images of a row; less than the time after which a stalled engine is
ended."""

READ_THREADS = 16
"""Reads at the same time in a child. A read that hangs keeps its thread."""

CHECK_SECONDS = 1.0
"""How often a read is checked for its time limit."""

PERMANENT = frozenset({errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of a file or its name that no further try ends."""

OF_TASK = "task.image_roots names"
"""Who names the roots of a task's images."""

T = TypeVar("T")

DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
WEB_URI = re.compile(r"https?://", re.IGNORECASE)


Messages = Sequence[Mapping[str, Any]]


class BadImage(ValueError):
    """The image of a row cannot be used; the message says why."""


class Reads:
    """Reads images for an event loop in threads of its own: a store that hangs blocks only them."""

    def __init__(self, threads: int = READ_THREADS, seconds: float = READ_SECONDS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="images")
        self._seconds = seconds
        self._moved_at = time.monotonic()

    async def run(self, read: Callable[[], T]) -> T:
        """What `read` returns or raises, run in a thread.

        StorageUnavailable when `read` takes too long, or when for as long no read has ended and no
        thread was free. The time to wait for a thread, while other reads end, does not count.
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
            while not (await asyncio.wait([reading], timeout=min(CHECK_SECONDS, self._seconds)))[0]:
                since = max(asked_at, self._moved_at) if began_at is None else began_at
                if time.monotonic() - since > self._seconds:
                    raise StorageUnavailable(
                        f"images of a row could not be read within {self._seconds:g} s"
                    )
            return reading.result()
        finally:
            reading.cancel()

    def close(self) -> None:
        """Cancels the reads that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class BatchReads:
    """The reads of one batch: after an outage of the store, its other rows are not tried."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._outage: StorageUnavailable | None = None

    async def run(self, read: Callable[[], T]) -> T:
        """Like Reads.run; StorageUnavailable also after an outage that another row met."""

        def read_unless_away() -> T:
            if self._outage is not None:
                raise StorageUnavailable(str(self._outage))
            try:
                return read()
            except StorageUnavailable as error:
                self._outage = error  # here already: the next read may begin before the loop runs
                raise

        try:
            return await self._reads.run(read_unless_away)
        except StorageUnavailable as error:  # also a read that hung
            self._outage = error
            raise


@dataclass(frozen=True, slots=True)
class Image:
    """The value of a row's image column: the bytes of an image file, or a URI.

    A URI is a local path, s3://, gs:// or data:. It comes from a submitter's data and must lie
    below the operator's allowed `roots`, below the `image_roots` of the task, and below those that the job
    is held to, `job_roots`. No link leads it out of them.

    Each method raises BadImage for an image that cannot be used, and StorageUnavailable when the
    store does not answer, for which the row is not to blame.
    """

    value: bytes | str
    roots: tuple[str, ...] = ()
    image_roots: tuple[str, ...] = ()
    job_roots: tuple[str, ...] | None = None

    def content(self) -> tuple[bytes, str]:
        """The bytes of the file and their MIME type; only the header is checked.

        Reads from storage, so not for an event loop.
        """
        data = self._bytes()
        with _header(data) as picture:
            return data, str(picture.get_format_mimetype())

    def fetched(self) -> "Image":
        """The same image with its bytes: its methods then read from no store."""
        return Image(self._bytes())

    def picture(self) -> "Picture":
        """The first frame, decoded and upright."""
        from PIL import ImageOps

        with _header(self._bytes()) as picture:
            try:
                return ImageOps.exif_transpose(picture)
            except Exception as error:  # a decoder raises many types for broken bytes
                raise BadImage(f"the image cannot be decoded ({error})") from error

    def data_url(self) -> str:
        """The image as remote APIs take it."""
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
            location = storage.resolve(uri)
            storage.check_roots([location], self.roots)
            storage.check_roots([location], self.image_roots, OF_TASK)
            storage.check_held([location], self.job_roots, storage.OF_JOB)
            retrying = Retrying(
                retry=retry_if_exception(_may_end),
                wait=wait_random_exponential(multiplier=0.5, max=5),
                stop=stop_after_attempt(READ_TRIES),
                reraise=True,
            )
            with (
                storage.within(self.roots or None, storage.SETTING),
                storage.within(self.image_roots or None, OF_TASK),
                storage.within(self.job_roots, storage.OF_JOB),
            ):
                return retrying(_read, location)
        except FileNotFoundError as error:
            raise BadImage(f"the image {uri[:200]} is not there") from error
        except BadInput as error:
            raise BadImage(str(error)) from error
        except StorageUnavailable as error:
            if _may_end(error):
                raise
            raise BadImage(str(error)) from error


def with_images(
    messages: Messages, make_part: Callable[[Image], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The messages with `make_part(image)` as the part of each image."""
    return [
        {
            **message,
            "content": [
                make_part(part["image"]) if part["type"] == "image" else dict(part)
                for part in message["content"]
            ],
        }
        if isinstance(message["content"], list)
        else dict(message)
        for message in messages
    ]


def _read(location: str) -> bytes:
    """The bytes of a regular file, of a too large one just one byte too many."""
    size = storage.stat(location).size
    return storage.read_range(location, 0, min(size, IMAGE_BYTES + 1))


def _may_end(error: BaseException) -> bool:
    """Whether the error may end: not a missing permission, nor a wrong file or name."""
    if not isinstance(error, StorageUnavailable):
        return False
    cause = error.__cause__
    is_permanent = isinstance(cause, OSError) and cause.errno in PERMANENT
    return not is_permanent and not isinstance(cause, PermissionError)


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
